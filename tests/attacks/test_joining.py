"""Joining as, with the key of, or in the place of somebody else; being thrown out by a stranger."""

from __future__ import annotations

from typing import Any

import numpy as np
from attack_chain import replace_account
from attack_oracle import judge, judge_and_keep
from attack_scenes import REVOKED, Scene, build_scene, get_scene
from programs_harness import NO_HINT, make_p2p_key
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization
from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT, MAX_CLIENTS, ClientState, RunState

P2P = 1
"""Place of the p2p key among the accounts of join_run."""


def make_join(scene: Scene, user: Keypair, p2p: Keypair | None = None, **args: Any) -> Instruction:
    """An honest join of a wallet, or one with another's key."""
    values = {"p2p": p2p or make_p2p_key(user), "address_hint": NO_HINT, **args}
    return scene.run.encode("join_run", user, **values)


def test_a_stranger_cannot_remove_clients_of_a_migrated_run() -> None:
    """Entries of layout version 1 say nothing about their authorization: no account proves it gone."""
    scene = build_scene("older")
    chain, run = scene.chain, scene.run
    chain.commit(run.encode("migrate", scene.thief))
    for number in range(len(run.account.entries)):
        for address in (SYSTEM_PROGRAM, run.authorization):
            hostile = run.encode("remove_unauthorized", scene.thief, entry=number, authorization=address)
            names = ("WrongAccount", "AuthorizationStillValid")
            chain.attack("removing a client of a migrated run", names, hostile)


def test_a_p2p_key_of_the_run_is_nobody_elses() -> None:
    """In every state that takes joiners, whether its holder lets it sign or not, and after it has left."""
    for state in ("waiting", "warmup", "training", "cooldown", "paid"):
        scene = get_scene(state)
        chain, holder = scene.chain, scene.run.wallets[0]
        chain.honest(make_join(scene, scene.thief))
        hostile = make_join(scene, scene.thief, p2p=make_p2p_key(holder))
        chain.attack(f"joining in {state} with another's p2p key", "P2pKeyInUse", hostile)
        mine = make_p2p_key(holder).pubkey()
        unsigned = replace_account(hostile, P2P, is_signer=False)
        chain.attack(f"joining in {state} with a key not owned", "NotSigner", unsigned)
        leave = scene.run.encode("leave_run", holder)
        chain.attack("joining with the key of one who leaves", "P2pKeyInUse", leave, hostile)
        assert hostile.accounts[P2P].pubkey == mine


def test_one_key_twice_in_a_transaction() -> None:
    """Two new wallets, one p2p key; and one wallet, two keys."""
    scene = get_scene("waiting")
    chain, (one, other) = scene.chain, (scene.chain.make_wallet(f"joiner {i}") for i in range(2))
    key = chain.make_key("shared key")
    first, second = make_join(scene, one, p2p=key), make_join(scene, other, p2p=key)
    chain.honest(first)
    chain.honest(second)
    chain.attack("one key for two wallets", "P2pKeyInUse", first, second)
    again = make_join(scene, one, p2p=chain.make_key("second key"))
    judge(chain, "one wallet, two keys", first, again)
    outcome = judge(chain, "joining twice", first, first)
    assert outcome.error is None
    assert outcome.changes == chain.honest(first).changes, "joining twice is joining once"


def test_a_client_of_an_epoch_keeps_its_key() -> None:
    """Peers know it by its key while the epoch lasts; a wallet that signs as p2p key is no way around."""
    scenes = {state: get_scene(state) for state in ("warmup", "first_round", "training", "witnessing")}
    scenes["cooldown"] = build_scene("first_round")
    scenes["cooldown"].chain.advance(200)
    while scenes["cooldown"].run.state is RunState.RoundTrain:
        scenes["cooldown"].run.play_round()
    assert scenes["cooldown"].run.state is RunState.Cooldown
    for state, scene in scenes.items():
        chain, client = scene.chain, scene.run.wallets[0]
        assert scene.run.find_client(client).state is ClientState.Healthy
        for key in (chain.make_key("new key"), client, scene.thief):
            hostile = make_join(scene, client, p2p=key)
            chain.attack(f"changing the key in {state}", "ClientKeysInUse", hostile)
        judge(chain, "rejoining with the same key", make_join(scene, client))


def test_revoked_and_expired_authorizations_let_nobody_in() -> None:
    scene = build_scene("revoked")
    chain, run, owner = scene.chain, scene.run, scene.run.owner
    revoked = chain.make_wallet(REVOKED)
    own = find_authorization(owner.pubkey(), revoked.pubkey())
    hostile = make_join(scene, revoked, authorization=own)
    chain.attack("joining revoked", "NotAuthorized", hostile)
    late = chain.make_wallet("late")
    lasting = chain.authorize(owner, late.pubkey(), expires=chain.now + 10)
    join = make_join(scene, late, authorization=lasting)
    for seconds, is_in in ((0, True), (9, True), (10, False), (11, False), (10**9, False)):
        with chain.undone(run.address):
            chain.set_now(chain.now + seconds)
            if is_in:
                chain.honest(join)
            else:
                chain.attack(f"joining {seconds} s after", "NotAuthorized", join)
            judge(chain, "at the expiry", join)


def test_nobody_is_removed_whose_authorization_is_valid() -> None:
    """A stranger brings the real authorization, others' and none; in every state, for every entry."""
    for state in ("waiting", "warmup", "training", "cooldown", "paid"):
        scene = get_scene(state)
        chain, run = scene.chain, scene.run
        addresses = (run.authorization, scene.rival.authorization, SYSTEM_PROGRAM, run.instance)
        for number in (*range(len(run.account.entries) + 1), 255, 256, 2**16 - 1):
            for address in addresses:
                hostile = run.encode("remove_unauthorized", scene.thief, entry=number, authorization=address)
                names = ("WrongAccount", "AuthorizationStillValid", "SignerNotAClient")
                chain.attack(f"removing entry {number} in {state}", names, hostile)


def fill_entries(scene: Scene, claimable: int) -> None:
    """The list full: behind the real clients come wallets that are gone and may claim ``claimable``."""
    chain, run = scene.chain, scene.run
    state = chain.get_state(run.address)
    record = np.frombuffer(bytearray(state.data), dtype=COORDINATOR_ACCOUNT)
    number = int(record["num_entries"][0])
    for index in range(number, MAX_CLIENTS):
        entry = record["entries"][0][index : index + 1]
        entry["signer"] = np.frombuffer(bytes([7]) * 30 + index.to_bytes(2, "little"), np.uint8)
        entry["p2p_key"] = np.frombuffer(bytes([8]) * 30 + index.to_bytes(2, "little"), np.uint8)
        entry["earned"], entry["slashed"], entry["claimed"] = 50, 10, 40 - claimable
    record["num_entries"] = MAX_CLIENTS
    chain.set_state(run.address, state._replace(data=record.tobytes()))


def test_nobody_is_replaced_that_is_owed_or_takes_part() -> None:
    """A full list: of the others nobody may be pushed out, in any state; not even for one point."""
    for state in ("waiting", "warmup", "training", "cooldown", "paid"):
        scene = build_scene(state)
        fill_entries(scene, claimable=1)
        # a client of the epoch that has left is still owed what it may earn in it
        judge_and_keep(scene.chain, "leaving", scene.run.encode("leave_run", scene.run.wallets[0]))
        if state != "waiting":  # where nobody is in an epoch yet, who leaves without points is gone
            hostile = make_join(scene, scene.thief)
            scene.chain.attack(f"pushing into a full list in {state}", "ClientsFull", hostile)


def test_who_replaces_inherits_nothing() -> None:
    """The newcomer in a paid client's place has no points, key, address or authorization of the old one."""
    scene = build_scene("training")
    chain, run = scene.chain, scene.run
    fill_entries(scene, claimable=0)
    old = list(run.account.entries)
    assert judge_and_keep(chain, "taking a free place", make_join(scene, scene.thief)).error is None
    number = run.account.find_entry(bytes(scene.thief.pubkey()))
    assert number is not None
    assert number >= len(run.wallets), "a client of the epoch was replaced"
    entry = run.account.entries[number]
    assert (entry.earned, entry.slashed, entry.claimed) == (0, 0, 0)
    assert old[number].earned == 50
    others = [other for index, other in enumerate(run.account.entries) if index != number]
    assert others == [other for index, other in enumerate(old) if index != number]
    key = Pubkey(bytes(old[number].p2p_key))
    assert key not in [Pubkey(bytes(other.p2p_key)) for other in run.account.entries]
