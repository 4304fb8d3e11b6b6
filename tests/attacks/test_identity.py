"""Addresses, re-initialisation, closing and reviving."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from attack_baselines import BASELINES, Baseline, make_authorization
from attack_chain import ABSENT, replace_account
from attack_oracle import find_breaches, judge_and_keep
from attack_scenes import Scene, build_scene, get_scene
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization, find_instance
from psyche_py.coordinator.layout import ACCOUNT_SIZE


def find_created(scene: Scene, call: Instruction) -> Iterator[int]:
    """Places of accounts that the call creates."""
    for slot, meta in enumerate(call.accounts):
        is_new = scene.chain.get_state(meta.pubkey) == ABSENT
        if is_new and meta.is_writable and meta.pubkey not in scene.chain.keys:
            yield slot


def get_creators() -> list[Baseline]:
    """Instructions that create accounts at addresses derived from our programs."""
    bases = (base for base in BASELINES.values() if base.name != "pool_claimable")  # creates a vault alone
    return [base for base in bases if any(find_created(*base.get()))]


CREATORS = pytest.mark.parametrize("base", get_creators(), ids=lambda b: f"{b.program}.{b.name}")


def list_seeds(base: Baseline, scene: Scene) -> list[bytes]:
    """Seeds of what an honest call creates first."""
    owner, funded = bytes(scene.run.owner.pubkey()), scene.funded
    grantee = bytes(scene.chain.make_wallet("grantee").pubkey())
    thief = bytes(scene.thief.pubkey())
    return {
        "pool_create": [b"Pool", (3).to_bytes(8, "little")],
        "lender_create": [b"Lender", bytes(scene.pool.address), thief],
        "airdrop_create": [b"Airdrop", (9).to_bytes(8, "little")],
        "claim_create": [b"Claim", bytes(scene.airdrop.address), thief, (5).to_bytes(8, "little")],
        "init_coordinator": [b"coordinator", b"fresh"],
        "authorization_create": [b"Authorization", owner, grantee, b"CoordinatorJoinRun"],
        "run_create": [b"Run", (4711).to_bytes(8, "little")],
        "bond_post": [b"Bond", bytes(scene.staked.fund), bytes(scene.staked.poster.pubkey())],
        "participant_create": [
            b"Participant",
            bytes(funded.fund),
            bytes(funded.wallets[1].pubkey()),
        ],
    }[base.name]


@CREATORS
def test_non_canonical_bump(base: Baseline) -> None:
    """The same seeds with every other bump that gives an address."""
    scene, call = base.get()
    scene.chain.honest(call)
    slot, seeds = next(iter(find_created(scene, call))), list_seeds(base, scene)
    canonical, bump = Pubkey.find_program_address(seeds, call.program_id)
    assert call.accounts[slot].pubkey == canonical
    tried = 0
    for other in reversed(range(bump)):
        address = derive(seeds, other, call.program_id)
        if address is None:
            continue
        tried += 1
        hostile = replace_account(call, slot, pubkey=address)
        # an airdrop's vault is not that of such an address, which is looked at first
        names = ("WrongPda", "WrongAccount") if base.name == "airdrop_create" else "WrongPda"
        scene.chain.attack(f"{base.name} with bump {other}", names, hostile)
    assert tried > 50


def derive(seeds: list[bytes], bump: int, program: Pubkey) -> Pubkey | None:
    """The address of these seeds; None when it would be on the curve, so that a key could sign for it."""
    parts = (*seeds, bytes([bump]), bytes(program), b"ProgramDerivedAddress")
    address = Pubkey(hashlib.sha256(b"".join(parts)).digest())
    return None if address.is_on_curve() else address


@pytest.mark.parametrize(
    "base",
    [base for base in get_creators() if base.name != "bond_post"],
    ids=lambda b: f"{b.program}.{b.name}",
)
def test_reinitialisation(base: Baseline) -> None:
    """What is created once is not created again, by the same sender or in the same transaction."""
    scene = build_scene(base.state)
    call = base.build(scene)
    scene.chain.attack(f"{base.name} twice at once", "AlreadyInitialized", call, call)
    scene.chain.commit(call)
    scene.chain.attack(f"{base.name} again", "AlreadyInitialized", call)
    if scene.fresh.pubkey() in [meta.pubkey for meta in call.accounts]:
        scene.refresh()  # even with another account for the run
        scene.chain.attack(f"{base.name} with a new account", "AlreadyInitialized", call)


def test_a_bond_is_made_once() -> None:
    """Posting again adds to what is there, in the same transaction too."""
    scene = build_scene("waiting")
    run, post = scene.staked, BASELINES["treasurer", "bond_post"].build(scene)
    assert judge_and_keep(scene.chain, "posting twice", post, post).error is None
    assert judge_and_keep(scene.chain, "posting again", post).error is None
    assert run.get_amount(run.find_bond(run.poster)) == 90
    assert run.get_amount(run.poster.pubkey()) == 10


@CREATORS
def test_lamports_sent_before_do_not_block_creation(base: Baseline) -> None:
    """Lamports that anybody sends to an address do not keep its rightful creator from creating it."""
    scene, call = base.get()
    for slot in find_created(scene, call):
        for lamports in (1, 890_880, 10**9):
            with scene.chain.altered(call.accounts[slot].pubkey, lamports=lamports):
                outcome = scene.chain.attempt(call)
                breaches = find_breaches(scene.chain, call, outcome)
                is_held = outcome.error is None and not breaches
                scene.chain.judge(f"{base.name} after {lamports} lamports", is_held, outcome, breaches)


def test_a_run_account_is_taken_once() -> None:
    """A second run cannot move into the account of the first, nor the first into a second account."""
    scene = get_scene("waiting")
    base = BASELINES["coordinator", "init_coordinator"]
    call = base.build(scene)
    scene.chain.honest(call)
    scene.chain.remember(scene.run.account_key)
    hostile = replace_account(call, 2, pubkey=scene.run.address)
    scene.chain.attack("init in a run's account", "AlreadyInitialized", hostile)
    for run in (scene.run, scene.rival, scene.funded):
        hostile = replace_account(call, 1, pubkey=run.instance)
        scene.chain.attack("init with a run's instance", "WrongPda", hostile)


def test_an_unsigned_account_is_not_made_a_run() -> None:
    """Whoever allocated an account for a run decides whose run it becomes: its key signs."""
    scene = get_scene("waiting")
    call = BASELINES["coordinator", "init_coordinator"].build(scene)
    scene.chain.honest(call)
    thief = replace_account(call, 0, pubkey=scene.thief.pubkey())
    hostile = replace_account(thief, 2, is_signer=False)
    scene.chain.attack("init in another's empty account", "NotSigner", hostile)


def test_closing_and_reviving_in_one_transaction() -> None:
    """After a close nothing of the old account can be used, even if it is paid back to life at once."""
    scene = build_scene("paused")
    chain, run = scene.chain, scene.run
    close = BASELINES["coordinator", "free_coordinator"].build(scene)
    revive = [_pay(scene, run.address), _pay(scene, run.instance)]
    join = run.encode("leave_run", run.wallets[0])
    chain.honest(close)
    outcome = chain.honest(close, *revive)
    for address in (run.address, run.instance):  # what is left is lamports, owned by nobody's program
        assert outcome.changes[address][1] == (10**9, SYSTEM_PROGRAM, b"")
    for between in ([], revive):
        chain.attack("using a closed run", "WrongOwner", close, *between, join)
        chain.attack("closing a run twice", "WrongOwner", close, *between, close)


def test_a_revived_run_starts_from_nothing() -> None:
    """Closing, allocating and initialising again in one transaction leaves no old byte."""
    scene = build_scene("paused")
    chain, run = scene.chain, scene.run
    close = BASELINES["coordinator", "free_coordinator"].build(scene)
    allocate = create_account(
        CreateAccountParams(
            from_pubkey=run.owner.pubkey(),
            to_pubkey=run.address,
            lamports=chain.svm.minimum_balance_for_rent_exemption(ACCOUNT_SIZE),
            space=ACCOUNT_SIZE,
            owner=get_program_id("coordinator"),
        )
    )
    init = BASELINES["coordinator", "init_coordinator"].build(scene)
    init = replace_account(replace_account(init, 1, pubkey=run.instance), 2, pubkey=run.address)
    data = bytes(init.data).replace(b"\5\0\0\0fresh", b"\3\0\0\0run")
    init = Instruction(init.program_id, data, init.accounts)
    old = chain.get_state(run.address).data
    outcome = chain.honest(close, allocate, init)
    new = outcome.changes[run.address][1].data
    assert new[:16] == old[:16]
    assert new.count(0) > len(new) - 40, "bytes of the old run are left"


def test_authorization_closed_and_revived() -> None:
    scene = build_scene("waiting")
    chain = scene.chain
    close = BASELINES["authorizer", "authorization_close"].build(scene)
    made = make_authorization(scene, active=False)
    update = BASELINES["authorizer", "authorization_grantor_update"].build(scene)
    update = replace_account(update, 1, pubkey=made["authorization"])
    chain.honest(close)
    chain.honest(update)
    pay = _pay(scene, made["authorization"])
    for between in ([], [pay]):
        chain.attack("switching on what is closed", "WrongOwner", close, *between, update)


def test_the_spill_is_not_what_is_closed() -> None:
    scene = get_scene("paused")
    close = BASELINES["coordinator", "free_coordinator"].build(scene)
    scene.chain.honest(close)
    for slot in (2, 3):
        hostile = replace_account(close, 1, pubkey=close.accounts[slot].pubkey)
        scene.chain.attack("closing into itself", "WrongAccount", hostile)
    close = BASELINES["authorizer", "authorization_close"].get()[1]
    hostile = replace_account(close, 1, pubkey=close.accounts[2].pubkey)
    get_scene("waiting").chain.attack("closing into itself", "WrongAccount", hostile)


def test_an_authorization_for_another_scope_or_grantor_is_none() -> None:
    """The thief's own authorizations, of every kind, do not open the run of another."""
    scene = build_scene("waiting")
    chain, thief = scene.chain, scene.thief
    chain.authorize(thief, thief.pubkey())
    join = BASELINES["coordinator", "join_run"].build(scene)
    chain.honest(join)
    slot = BASELINES["coordinator", "join_run"].slots.index("authorization")
    own = find_authorization(thief.pubkey(), thief.pubkey())
    for address in (own, scene.rival.authorization, SYSTEM_PROGRAM, find_instance("run")):
        hostile = replace_account(join, slot, pubkey=address)
        chain.attack("joining by another's authorization", "NotAuthorized", hostile)


def _pay(scene: Scene, address: Pubkey) -> Instruction:
    thief = scene.thief.pubkey()
    return transfer(TransferParams(from_pubkey=thief, to_pubkey=address, lamports=10**9))
