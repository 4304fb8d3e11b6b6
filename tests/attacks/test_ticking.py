"""Ticks by a stranger, at every state and second: they may help, they may never hurt."""

from __future__ import annotations

import pytest
from attack_oracle import judge, judge_and_keep
from attack_scenes import STATES, Scene, build_scene, get_scene
from programs_harness import RunHarness, make_config

from psyche_py.coordinator.layout import ClientState, RunState

SECONDS = (*range(45), 99, 100, 101, 199, 200, 201, 3_599, 3_600, 10**6, 2**31, 2**40)


@pytest.mark.parametrize("state", STATES)
def test_a_strangers_tick_is_the_rule_books(state: str) -> None:
    """One tick at each second: as the rule book says, and the same whoever sends it."""
    scene = get_scene(state)
    chain, run = scene.chain, scene.run
    ticks = [
        run.encode("tick", user)
        for user in (scene.thief, run.owner, run.wallets[0] if run.wallets else run.owner)
    ]
    for seconds in SECONDS:
        with chain.undone(run.address):
            chain.advance(seconds)
            found = [judge(chain, f"tick in {state} after {seconds} s", tick) for tick in ticks]
            assert len({outcome.error for outcome in found}) == 1
            after = [outcome.changes.get(run.address) for outcome in found]
            assert all(change == after[0] for change in after)


@pytest.mark.parametrize("state", ["waiting", "due", "warmup", "first_round", "training", "cooldown", "paid"])
def test_a_stranger_that_ticks_every_second(state: str) -> None:
    """Kept, for longer than an epoch without anybody else: the rule book follows every step."""
    scene = build_scene(state)
    chain, run = scene.chain, scene.run
    earned = sum(entry.earned for entry in run.account.entries)
    for _ in range(130):
        chain.advance(1)
        judge_and_keep(chain, f"ticking on from {state}", run.encode("tick", scene.thief))
        now = sum(entry.earned for entry in run.account.entries)
        assert now >= earned, "a tick took points away"
        earned = now
    assert not any(entry.slashed for entry in run.account.entries), "ticks alone slashed somebody"


def build_short() -> Scene:
    """Four clients wait for an epoch of 24 seconds."""
    scene = build_scene("paused")
    scene.run.update(config=make_config(epoch_time=24, warmup_time=4, max_round_train_time=5).to_bytes())
    scene.run.own("set_paused", paused=False)
    scene.run.join_all()
    return scene


def play(scene: Scene, *, is_pestered: bool) -> tuple[list[int], int]:
    """Two epochs in which all attend; points of each client, and the step that was reached."""
    run = scene.run
    for _ in range(2):
        pester(scene, is_pestered)
        run.tick(4)
        assert run.state is RunState.Warmup
        for client in run.account.epoch_clients:
            pester(scene, is_pestered)
            run.act("warmup_witness", run.get_wallet(client), index=client.index)
        attend(scene, is_pestered)
        run.join_all()
    return [entry.earned for entry in run.account.entries], run.account.step


def attend(scene: Scene, is_pestered: bool) -> None:
    """All rounds of an epoch, everybody present."""
    run: RunHarness = scene.run
    while run.state is RunState.RoundTrain:
        run.chain.advance(1)
        for client in run.get_elected():
            pester(scene, is_pestered)
            if run.state is RunState.RoundTrain:
                run.witness(client)
        assert all(client.state is ClientState.Healthy for client in run.account.epoch_clients)
    for _ in range(10):
        pester(scene, is_pestered)
        run.chain.advance(1)
    run.act("tick", run.owner)
    assert run.state is RunState.WaitingForMembers


def pester(scene: Scene, is_pestered: bool) -> None:
    """A stranger's tick, twice."""
    if is_pestered:
        for _ in range(2):
            judge_and_keep(scene.chain, "a tick in between", scene.run.encode("tick", scene.thief))


def test_a_stranger_that_ticks_between_all_that_others_do() -> None:
    """Nobody earns less for it, is dropped, or gets less far."""
    alone = play(build_short(), is_pestered=False)
    pestered = play(build_short(), is_pestered=True)
    assert sum(alone[0]) == 200
    assert pestered == alone
