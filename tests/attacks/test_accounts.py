"""Wrong accounts in every place of every instruction of every program.

Each test starts from the instruction's honest call (attack_baselines), shows that it succeeds, and then puts
something else in each place. It must be refused by the right name, or do exactly what the rules allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from attack_baselines import BASELINES, EVERY, INSTRUCTIONS, Baseline, get_honest
from attack_chain import AccountState, replace_account, replace_data
from attack_money_baselines import get_lender_accounts
from attack_oracle import HANDLERS, find_breaches, judge
from attack_scenes import Scene, get_scene
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_PROGRAM, find_claim
from psyche_py.coordinator.layout import ACCOUNT_SIZE

EVIL = Pubkey(bytes([0xE7] * 32))
WRONG_KIND = {
    "WrongDiscriminator",
    "WrongVersion",
    "WrongAccount",
    "CoordinatorAccountIncorrectSize",
    "NothingToMigrate",
}
NOT_THIS_ONE = WRONG_KIND | {
    "WrongOwner",
    "WrongPda",
    "NotAuthorized",
    "AlreadyInitialized",
    "WrongAuthority",
    "BondMissing",
}
"""What an account that is not the right one may be called; which it is depends on where it stands."""


def get_owned(scene: Scene, call: Instruction) -> Iterator[tuple[int, AccountState]]:
    """Places of accounts whose content some program wrote: ours and tokens."""
    owners = {*map(get_program_id, PROGRAM_NAMES), TOKEN_PROGRAM}
    for slot, meta in enumerate(call.accounts):
        state = scene.chain.get_state(meta.pubkey)
        if state.owner in owners:
            yield slot, state


def name(base: Baseline, slot: int, what: str) -> str:
    return f"{base.program}.{base.name}: {base.slots[slot]} {what}"


def by_called_programs(base: Baseline) -> list[str]:
    """Refusals of the token programs, for what an instruction leaves to them to check."""
    is_left = "associated_token_program" in base.slots
    return ["InvalidSeeds", "IncorrectProgramId", f"{TOKEN_PROGRAM} 2"] if is_left else []


def is_unread(base: Baseline, slot: int) -> bool:
    """Places where anything may stand: it is only paid lamports, or it is no good that counts."""
    name = base.slots[slot]
    # a bond whose run is gone is free: what is no run any more says so
    places = (("remove_unauthorized", "authorization"), ("bond_return", "coordinator_account"))
    return name == "spill" or (base.name, name) in places


def attack_or_judge(
    scene: Scene, base: Baseline, slot: int, call: Instruction, what: str, names: list[str]
) -> None:
    """The honest call over a damaged account: refused by name, or (where anything may stand) by the rules."""
    if is_unread(base, slot):
        judge(scene.chain, name(base, slot, what), call)
    else:
        scene.chain.attack(name(base, slot, what), names, call)


def test_every_instruction_has_a_baseline_and_rules() -> None:
    assert set(BASELINES) == set(INSTRUCTIONS)
    assert set(HANDLERS) == {".".join(key) for key in INSTRUCTIONS}


@EVERY
def test_the_honest_call_does_what_the_rules_say(key: tuple[str, str]) -> None:
    _, scene, call = get_honest(key)
    outcome = scene.chain.honest(call)
    assert outcome.changes
    assert find_breaches(scene.chain, call, outcome) == []


@EVERY
def test_missing_signature(key: tuple[str, str]) -> None:
    base, scene, call = get_honest(key)
    for slot, meta in enumerate(call.accounts):
        if not meta.is_signer:
            continue
        hostile = call
        for other, same in enumerate(call.accounts):  # one signature counts in all places of an account
            if same.pubkey == meta.pubkey:
                hostile = replace_account(hostile, other, is_signer=False)
        scene.chain.attack(name(base, slot, "does not sign"), "NotSigner", hostile)


@EVERY
def test_readonly_where_it_is_written(key: tuple[str, str]) -> None:
    base, scene, call = get_honest(key)
    for slot, meta in enumerate(call.accounts):
        if not meta.is_writable:
            continue
        hostile = call
        for other, same in enumerate(call.accounts):
            if same.pubkey == meta.pubkey:
                hostile = replace_account(hostile, other, is_writable=False)
        scene.chain.attack(name(base, slot, "is read only"), "NotWritable", hostile)


@EVERY
def test_missing_accounts(key: tuple[str, str]) -> None:
    base, scene, call = get_honest(key)
    for num in range(len(call.accounts)):
        hostile = Instruction(call.program_id, bytes(call.data), call.accounts[:num])
        # a place may also be refused first because what is left of the message signs or writes less
        expected = ("MissingAccount", "NotSigner", "NotWritable", "BondMissing")
        scene.chain.attack(name(base, num, "is missing"), expected, hostile)


@EVERY
def test_wrong_signer(key: tuple[str, str]) -> None:
    """A stranger, or a client of another run, signs in the place of the one who may."""
    base, scene, call = get_honest(key)
    for slot, meta in enumerate(call.accounts):
        if not meta.is_signer or meta.pubkey in (scene.fresh.pubkey(),):
            continue
        for stranger in (scene.thief, scene.rival.wallets[0], scene.rival.owner, scene.run.wallets[-1]):
            if stranger.pubkey() == meta.pubkey:
                continue
            hostile = replace_account(call, slot, pubkey=stranger.pubkey())
            judge(scene.chain, name(base, slot, f"is {stranger.pubkey()}"), hostile)


@EVERY
def test_wrong_owner(key: tuple[str, str]) -> None:
    """The right bytes in an account of another program."""
    base, scene, call = get_honest(key)
    for slot, state in get_owned(scene, call):
        if base.slots[slot] == "spill":
            continue
        for owner in {SYSTEM_PROGRAM, EVIL, *map(get_program_id, PROGRAM_NAMES)} - {state.owner}:
            with scene.chain.altered(call.accounts[slot].pubkey, owner=owner):
                expected = ["NotAuthorized", "WrongAccount", "WrongOwner", "BondMissing"]
                attack_or_judge(scene, base, slot, call, f"of {owner}", expected)


@EVERY
def test_wrong_length(key: tuple[str, str]) -> None:
    """Of zero length, truncated, oversized."""
    base, scene, call = get_honest(key)
    for slot, state in get_owned(scene, call):
        data, address = state.data, call.accounts[slot].pubkey
        lengths = {0, 1, 7, 8, len(data) - 8, len(data) - 1, len(data) + 1, len(data) + 8, ACCOUNT_SIZE}
        for length in sorted(lengths - {len(data)}):
            if base.slots[slot] == "authorization" and length == len(data) - 8:
                continue  # the older layout, which ends before the expiry
            with scene.chain.altered(address, data=data[:length].ljust(length, b"\0")):
                expected = sorted(NOT_THIS_ONE - {"WrongAuthority", "WrongPda"}) + by_called_programs(base)
                attack_or_judge(scene, base, slot, call, f"of {length} bytes", expected)


@EVERY
def test_wrong_kind_and_version(key: tuple[str, str]) -> None:
    """Another discriminator, and every version but the one there is."""
    base, scene, call = get_honest(key)
    ours = set(map(get_program_id, PROGRAM_NAMES))
    for slot, state in get_owned(scene, call):
        if state.owner not in ours or call.accounts[slot].pubkey == scene.fresh.pubkey():
            continue
        for at in range(8):
            data = bytearray(state.data)
            data[at] ^= 0x80
            with scene.chain.altered(call.accounts[slot].pubkey, data=bytes(data)):
                expected = ["WrongDiscriminator", "NotAuthorized", "WrongAccount", "BondMissing"]
                attack_or_judge(scene, base, slot, call, "of another kind", expected)
        if len(state.data) != ACCOUNT_SIZE:
            continue
        for version in {0, 3, 2**32, 2**63, 2**64 - 1}:
            data = state.data[:8] + version.to_bytes(8, "little") + state.data[16:]
            with scene.chain.altered(call.accounts[slot].pubkey, data=data):
                expected = ("NothingToMigrate", "WrongVersion", "WrongAccount")
                scene.chain.attack(name(base, slot, f"of version {version}"), expected, call)


@EVERY
def test_account_of_another_run_or_kind(key: tuple[str, str]) -> None:
    """Every other account that anybody has, in the place of each account that is read."""
    base, scene, call = get_honest(key)
    for slot, meta in enumerate(call.accounts):
        if meta.is_signer:
            continue  # test_wrong_signer
        for other in sorted(list_others() - {meta.pubkey}, key=bytes):
            judge(scene.chain, name(base, slot, f"is {other}"), replace_account(call, slot, pubkey=other))


@cache
def list_others() -> frozenset[Pubkey]:
    """Accounts of all honest calls, and the rivals'."""
    calls = [base.get()[1] for base in BASELINES.values()]
    scene = get_scene("waiting")
    rivals = {scene.rival.instance, scene.rival.address, scene.rival.authorization}
    rivals |= set(scene.rival_funded.get_claim_accounts(scene.rival_funded.wallets[0]).values())
    return frozenset({meta.pubkey for call in calls for meta in call.accounts} | rivals)


def list_rivals(scene: Scene, base: Baseline) -> dict[str, Pubkey]:
    """Slot -> the account of the same kind that belongs to somebody else's run, pool or airdrop."""
    if base.name.startswith("bond_"):
        staked = scene.rival_staked
        return {
            **{
                name: key
                for name, key in staked.get_bond_accounts(staked.free).items()
                if name != "token_program"
            },
            "run": staked.fund,
            "run_collateral": staked.vault,
            "user_collateral": staked.find_own(staked.free.pubkey()),
            "coordinator_instance": staked.instance,
            "coordinator_account": staked.address,
        }
    if base.name == "join_run":
        staked = scene.rival_staked
        accounts = {"instance": staked.instance, "coordinator_account": staked.address}
        return accounts | {"authorization": staked.authorization, "bond": staked.find_bond(staked.newcomer)}
    if base.program == "treasurer":
        run = scene.funded if base.name == "participant_migrate" else scene.rival_funded
        claim = run.get_claim_accounts(run.wallets[0])
        withdraw = {"authority_collateral": claim["user_collateral"]}
        return {name: key for name, key in (claim | withdraw).items() if not name.endswith("_program")}
    if base.program == "mining_pool":
        pool = scene.pool if base.name == "lender_claim" else scene.rival_pool
        user = scene.chain.make_wallet("lender 1")
        lent, repaid = (get_lender_accounts(pool, user, kind) for kind in ("collateral", "redeemable"))
        more = {
            "redeemable_authority": pool.redeemable_authority,
            "authority_collateral": lent["user_collateral"],
        }
        return {name: key for name, key in (lent | repaid | more).items() if not name.endswith("_program")}
    if base.program == "distributor":
        airdrop = scene.airdrop if base.name == "airdrop_update" else scene.rival_airdrop
        line = airdrop.lines[0]
        own = airdrop.token.find_account(line.wallet)
        return {
            "airdrop": airdrop.address,
            "airdrop_collateral": airdrop.vault,
            "collateral_mint": airdrop.mint,
            "claim": find_claim(airdrop.address, line.wallet, line.nonce),
            "recipient_collateral": own,
            "claimer_collateral": own,
        }
    rival = scene.rival
    accounts = {"instance": rival.instance, "coordinator_account": rival.address}
    return accounts | {"authorization": rival.authorization}


@EVERY
def test_the_rivals_account(key: tuple[str, str]) -> None:
    """The account of the same kind of another's run is refused by name."""
    base, scene, call = get_honest(key)
    rivals = list_rivals(scene, base)
    for slot, slot_name in enumerate(base.slots):
        if slot_name in rivals and not call.accounts[slot].is_signer:
            hostile = replace_account(call, slot, pubkey=rivals[slot_name])
            expected = sorted(NOT_THIS_ONE) + by_called_programs(base)
            scene.chain.attack(name(base, slot, "of the rival"), expected, hostile)


@EVERY
def test_wrong_programs(key: tuple[str, str]) -> None:
    """Another program, of ours or of an attacker's, in the place of one that is called."""
    base, scene, call = get_honest(key)
    for slot, slot_name in enumerate(base.slots):
        if not slot_name.endswith("_program"):
            continue
        known = {SYSTEM_PROGRAM, TOKEN_PROGRAM, EVIL, *map(get_program_id, PROGRAM_NAMES)}
        expected = ["WrongProgram", *by_called_programs(base)]
        for other in sorted(known - {call.accounts[slot].pubkey}, key=bytes):
            hostile = replace_account(call, slot, pubkey=other)
            scene.chain.attack(name(base, slot, f"is {other}"), expected, hostile)


@EVERY
def test_duplicate_accounts(key: tuple[str, str]) -> None:
    """One account in two places, for every pair of places."""
    base, scene, call = get_honest(key)
    for slot in range(len(call.accounts)):
        for other, meta in enumerate(call.accounts):
            if other == slot or meta.pubkey == call.accounts[slot].pubkey:
                continue
            if call.accounts[slot].is_signer and meta.pubkey not in scene.chain.keys:
                continue  # an address without a key cannot be made to sign
            hostile = replace_account(call, slot, pubkey=meta.pubkey)
            judge(scene.chain, name(base, slot, f"is the same as {base.slots[other]}"), hostile)


@EVERY
def test_more_accounts_than_needed_change_nothing(key: tuple[str, str]) -> None:
    """Accounts behind the last place are not looked at, even thirty of them, even the victim's."""
    base, scene, call = get_honest(key)
    outcome = scene.chain.honest(call)
    extra = [AccountMeta(scene.rival.address, False, True), AccountMeta(scene.rival.instance, False, True)]
    for num in (1, 2, 30):
        longer = Instruction(call.program_id, bytes(call.data), [*call.accounts, *(extra * 15)[:num]])
        found = scene.chain.attempt(longer)
        is_same = found.error is None and found.changes == outcome.changes
        scene.chain.judge(name(base, 0, f"and {num} more accounts"), is_same, found, "no difference")


@EVERY
def test_arguments_cut_or_extended(key: tuple[str, str]) -> None:
    base, scene, call = get_honest(key)
    data = bytes(call.data)
    for length in range(len(data)):
        hostile = replace_data(call, data[:length])
        scene.chain.attack(name(base, 0, f"with {length} bytes"), "InvalidInstructionData", hostile)
    for extra in (b"\0", b"\1", bytes(8), b"\xff" * 100):
        hostile = replace_data(call, data + extra)
        scene.chain.attack(name(base, 0, "with more bytes"), "InvalidInstructionData", hostile)
