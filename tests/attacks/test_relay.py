"""Calls from another program: signatures it does not have, re-entrancy, several calls in one instruction."""

from __future__ import annotations

import attack_relay as relay
import pytest
from attack_baselines import BASELINES, EVERY, get_honest
from attack_chain import AccountState, replace_account
from attack_money_baselines import get_redeem_call
from attack_scenes import Scene, build_scene
from programs_harness import NO_HINT
from solders.instruction import AccountMeta, Instruction

from psyche_py.chain.anchor import get_program


@pytest.fixture(autouse=True)
def _deployed(request: pytest.FixtureRequest) -> None:
    """The relay is on the chain of every shared scene that a test asks for."""
    if "key" in request.fixturenames:
        relay.deploy(get_honest(request.getfixturevalue("key"))[1].chain)


def build_relayed() -> Scene:
    scene = build_scene("waiting")
    relay.deploy(scene.chain)
    return scene


@EVERY
def test_a_call_from_another_program_does_the_same(key: tuple[str, str]) -> None:
    _, scene, call = get_honest(key)
    outcome = scene.chain.honest(call)
    found = relay.judge_relayed(scene.chain, f"{key[1]} through the relay", call)
    assert found.error is None
    assert found.changes == outcome.changes


@EVERY
def test_another_program_cannot_sign_for_anybody(key: tuple[str, str]) -> None:
    _, scene, call = get_honest(key)
    for meta in call.accounts:
        if not meta.is_signer:
            continue
        hostile = relay.wrap(call, unsigned=[meta.pubkey])
        scene.chain.attack(f"{key[1]} signed by the relay", "PrivilegeEscalation", hostile)


@EVERY
def test_our_programs_call_no_other_program_back(key: tuple[str, str]) -> None:
    """The relay in the place of each program that is called, with a way back into ours in its accounts."""
    base, scene, call = get_honest(key)
    for slot, name in enumerate(base.slots):
        if not name.endswith("_program"):
            continue
        hostile = replace_account(call, slot, pubkey=relay.PROGRAM)
        back = Instruction(hostile.program_id, bytes(hostile.data), [
            *hostile.accounts,
            AccountMeta(call.program_id, False, False),
        ])  # fmt: skip
        names = ("WrongProgram", "IncorrectProgramId")
        scene.chain.attack(f"{key[1]} with {name} the relay", names, back)
        scene.chain.attack(f"{key[1]} from the relay into the relay", names, relay.wrap(hostile))


def test_nothing_is_paid_twice_in_one_instruction() -> None:
    """All that can be paid once, several times in a row, and with different amounts."""
    scene = build_relayed()
    chain, funded = scene.chain, scene.funded
    claim = [
        get_program("treasurer").encode(
            "participant_claim",
            funded.get_claim_accounts(funded.wallets[0]),
            {"claim_earned_points": points},
        )
        for points in (50, 40, 10, 1)
    ]
    full, most, rest, one = claim
    relay.judge_relayed(chain, "claiming in two parts", most, rest)
    chain.honest(relay.wrap(most, rest))
    chain.attack("claiming twice", "InsufficientPoints", relay.wrap(full, full))
    chain.attack("claiming in parts, and more", "InsufficientPoints", relay.wrap(most, rest, one))
    chain.attack("claiming all and more", "InsufficientPoints", relay.wrap(full, one))
    twice = {
        ("mining_pool", "lender_claim"): "ParamsRedeemableAmountIsTooLarge",
        ("treasurer", "run_withdraw"): "CollateralIsPromised",
        ("distributor", "airdrop_withdraw"): "AirdropIsGuaranteed",
        ("distributor", "claim_redeem"): "ParamsCollateralAmountIsTooLarge",
        ("treasurer", "participant_migrate"): "NothingToMigrate",
        ("treasurer", "bond_slash"): "NothingToSlash",
        ("treasurer", "bond_return"): "WrongOwner",
    }
    for key, error in twice.items():
        call = BASELINES[key].build(scene)
        chain.honest(relay.wrap(call))
        chain.attack(f"{key[1]} twice in one instruction", error, relay.wrap(call, call))


def test_a_closed_account_is_gone_within_the_instruction() -> None:
    """Run, vault and coordinator account are closed and used again before the runtime has looked."""
    scene = build_relayed()
    chain = scene.chain
    close = BASELINES["treasurer", "run_close"].build(scene)
    update = BASELINES["treasurer", "run_update"].build(scene)
    update = Instruction(update.program_id, bytes(update.data), [
        AccountMeta(pubkey, meta.is_signer, meta.is_writable)
        for meta, pubkey in zip(update.accounts, scene.empty.get_update_accounts().values(), strict=True)
    ])  # fmt: skip
    relay.judge_relayed(chain, "closing through the relay", close)
    chain.honest(relay.wrap(close))
    for call in (update, close):
        chain.attack("using a run closed just before", "WrongOwner", relay.wrap(close, call))
    leave = scene.empty.encode("tick", scene.thief)
    chain.attack("ticking a run closed just before", "WrongOwner", relay.wrap(close, leave))


def test_what_the_attacker_writes_is_never_taken_for_ours() -> None:
    """An account of the relay's that gets the bytes of a real one between two calls."""
    scene = build_relayed()
    chain, funded = scene.chain, scene.funded
    claim = BASELINES["treasurer", "participant_claim"].build(scene)
    forged = chain.make_key("forged").pubkey()
    for slot in (4, 8):  # the mint; the participant
        real = chain.get_state(claim.accounts[slot].pubkey)
        chain.set_state(forged, AccountState(10**9, relay.PROGRAM, bytes(len(real.data))))
        hostile = replace_account(claim, slot, pubkey=forged)
        write = relay.encode_write(forged, real.data)
        chain.attack("a forged account", ("WrongOwner", "WrongAccount"), relay.wrap(write, hostile))
    line = get_redeem_call(scene.airdrop, 1, 1)
    real = chain.get_state(line.accounts[5].pubkey)
    chain.set_state(forged, AccountState(10**9, relay.PROGRAM, bytes(len(real.data))))
    write = relay.encode_write(forged, real.data)
    chain.attack("a forged claim", "WrongOwner", relay.wrap(write, replace_account(line, 5, pubkey=forged)))
    assert funded.account.find_entry(bytes(relay.SELF)) is None


def test_a_program_that_joins_gets_what_a_wallet_gets() -> None:
    """The relay's own address as a client: the rules are those for everybody."""
    scene = build_relayed()
    chain, run = scene.chain, scene.run
    accounts = {
        "user": relay.SELF,
        "p2p": scene.thief.pubkey(),
        "instance": run.instance,
        "coordinator_account": run.address,
        "authorization": run.authorization,
    }
    join = get_program("coordinator").encode("join_run", accounts, {"address_hint": NO_HINT})
    assert relay.judge_relayed(chain, "the relay joins", join).error is None
    assert relay.judge_relayed(chain, "the relay joins twice", join, join).error is None
    taken = chain.make_wallet("client 0")
    hostile = replace_account(join, 0, pubkey=taken.pubkey())
    chain.attack(
        "the relay joins as another", "PrivilegeEscalation", relay.wrap(hostile, unsigned=[taken.pubkey()])
    )
