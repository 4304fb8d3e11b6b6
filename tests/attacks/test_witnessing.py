"""Attesting for others, twice, of another round, or what cannot be; warm-up and health reports that lie."""

from __future__ import annotations

from typing import Any

import pytest
from attack_scenes import Scene, build_scene, get_scene
from solders.instruction import Instruction
from solders.keypair import Keypair

from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.coordinator.state import EpochClient


def make_witness(
    scene: Scene, client: EpochClient, signer: Keypair | None = None, **args: Any
) -> Instruction:
    """A right witness of ``client``, but for ``args``, sent by ``signer``."""
    run = scene.run
    return run.encode("witness", signer or run.get_wallet(client), **run.make_witness(client, **args))


def test_witness_for_another() -> None:
    scene = get_scene("training")
    first, second = scene.run.get_elected()[:2]
    scene.chain.honest(make_witness(scene, first))
    hostile = make_witness(scene, first, signer=scene.run.get_wallet(second))
    scene.chain.attack("witness for another", "InvalidWitness", hostile)
    for stranger in (scene.thief, scene.rival.wallets[0], scene.run.owner):
        hostile = make_witness(scene, first, signer=stranger)
        scene.chain.attack("witness of a stranger", "SignerNotAClient", hostile)


def test_witness_twice() -> None:
    scene = get_scene("training")
    first = scene.run.get_elected()[0]
    witness = make_witness(scene, first)
    scene.chain.honest(witness)
    scene.chain.attack("witness twice", "DuplicateWitness", witness, witness)
    other = make_witness(scene, first, broadcast_merkle=bytes([1] * 32))
    scene.chain.attack("witness with a second opinion", "DuplicateWitness", witness, other)


def test_witness_index_out_of_range() -> None:
    scene = get_scene("training")
    first = scene.run.get_elected()[0]
    scene.chain.honest(make_witness(scene, first))
    for index in (4, 5, 255, 256, 257, 2**15, 2**16 - 1, first.index + 256, first.index + 64):
        scene.chain.attack(f"witness {index}", "InvalidWitness", make_witness(scene, first, index=index))


def test_witness_names_whom_nobody_could_see() -> None:
    """Clients that were not in the round, that do not exist, or beyond the list."""
    scene = get_scene("training")
    first, num = scene.run.get_elected()[0], len(scene.run.account.epoch_clients)
    scene.chain.honest(make_witness(scene, first))
    for index in (num, num + 1, 63, 64, 128, 255):
        words = [0] * 4
        words[index // 64] = 1 << index % 64
        hostile = make_witness(scene, first, participants=words)
        scene.chain.attack(f"witness of ghost {index}", "InvalidWitness", hostile)
    hostile = make_witness(scene, first, participants=[2**64 - 1] * 4)
    scene.chain.attack("witness of everybody", "InvalidWitness", hostile)


def test_witness_in_the_first_round_names_nobody() -> None:
    scene = get_scene("first_round")
    first = scene.run.get_elected()[0]
    scene.chain.honest(make_witness(scene, first))
    hostile = make_witness(scene, first, participants=[1, 0, 0, 0])
    scene.chain.attack("witness before any result", "InvalidWitness", hostile)


@pytest.mark.parametrize("state", ["waiting", "warmup", "cooldown"])
def test_witness_outside_a_round(state: str) -> None:
    trained, scene = get_scene("training"), get_scene(state)
    witness = make_witness(trained, trained.run.get_elected()[0])
    trained.chain.honest(witness)
    scene.chain.attack(f"witness in {state}", "InvalidRunState", witness)


def test_witness_of_a_halted_run() -> None:
    trained = get_scene("training")
    witness = make_witness(trained, trained.run.get_elected()[0])
    trained.chain.honest(witness)
    for state in ("paused", "finished"):
        get_scene(state).chain.attack(f"witness in {state}", "Halted", witness)


def test_witness_of_a_past_round() -> None:
    """An honest witness that somebody held back until the next round is not taken for one of that round."""
    scene = build_scene("training")
    chain, run = scene.chain, scene.run
    held = {client.index: make_witness(scene, client) for client in run.get_elected()}
    for witness in held.values():
        chain.honest(witness)
    run.play_round(seen=run.account.previous_round.healthy_indices)  # type: ignore[union-attr]
    assert (run.state, run.account.current_round.height) == (RunState.RoundTrain, 3)
    chain.advance(1)
    for client in run.get_elected():
        chain.honest(make_witness(scene, client))
        chain.attack("witness of a past round", "InvalidWitness", held[client.index])


def test_witness_of_a_client_dropped_before_the_round() -> None:
    scene = build_scene("training")
    run, victim = scene.run, scene.run.account.epoch_clients[-1]
    run.act("health_check", run.wallets[0], index=victim.index)
    run.play_round()
    if run.state is RunState.RoundWitness:
        run.tick(5)
    assert run.account.current_round.height == 3
    assert victim.index not in run.account.current_round.healthy_set
    elected = run.get_elected()[0]
    scene.chain.honest(make_witness(scene, elected))
    hostile = run.encode(
        "witness", run.get_wallet(victim), **{**run.make_witness(elected), "index": victim.index}
    )
    scene.chain.attack("witness of a dropped client", "InvalidWitness", hostile)


def test_not_elected_is_no_witness() -> None:
    """With two of four elected, the others' witnesses are refused, whatever they put into them."""
    scene = build_scene("waiting")
    run = scene.run
    run.own("set_paused", paused=True)
    from programs_harness import make_config

    run.update(config=make_config(witness_nodes=2).to_bytes())
    run.own("set_paused", paused=False)
    run.join_all()
    run.start_training()
    scene.chain.advance(1)
    elected = run.get_elected()
    assert len(elected) == 2
    for client in elected:
        scene.chain.honest(make_witness(scene, client))
    others = [c for c in run.account.epoch_clients if c.index not in {e.index for e in elected}]
    for client in others:
        for changes in forge_proofs(scene, client, elected):
            scene.chain.attack(
                "witness not elected", "InvalidWitness", make_witness(scene, client, **changes)
            )


def forge_proofs(scene: Scene, client: EpochClient, elected: list[EpochClient]) -> list[dict[str, Any]]:
    """Arguments that claim an election that did not happen."""
    forged: list[dict[str, Any]] = [{}, *({"index": e.index} for e in elected)]
    if "position" in scene.run.make_witness(client):
        forged += [{"position": position} for position in (0, 1, 2, 31, 32, 255, 2**16 - 1)]
    return forged


def test_warmup_index_of_another() -> None:
    scene = get_scene("warmup")
    run = scene.run
    first, second = run.account.epoch_clients[:2]
    wallet = run.get_wallet(first)
    scene.chain.honest(run.encode("warmup_witness", wallet, index=first.index))
    for index in (second.index, 2, 3, 4, 255, 256, 2**16 - 1):
        hostile = run.encode("warmup_witness", wallet, index=index)
        scene.chain.attack("warm-up of another", "InvalidWitness", hostile)
    for stranger in (scene.thief, scene.rival.wallets[0]):
        hostile = run.encode("warmup_witness", stranger, index=first.index)
        scene.chain.attack("warm-up of a stranger", "SignerNotAClient", hostile)


def test_one_client_cannot_start_training_alone() -> None:
    """However often one client reports itself ready, the others are waited for."""
    scene = build_scene("warmup")
    run, chain = scene.run, scene.chain
    first = run.account.epoch_clients[0]
    ready = run.encode("warmup_witness", run.get_wallet(first), index=first.index)
    for _ in range(2 * len(run.account.epoch_clients)):
        chain.commit(ready)
        chain.advance(1)
    outcome = chain.honest(ready)
    chain.judge("training started alone", run.state is RunState.Warmup, outcome, "Warmup")


@pytest.mark.parametrize("state", ["waiting", "first_round", "cooldown"])
def test_warmup_report_at_another_time_changes_nothing(state: str) -> None:
    warm, scene = get_scene("warmup"), get_scene(state)
    first = warm.run.account.epoch_clients[0]
    ready = warm.run.encode("warmup_witness", warm.run.get_wallet(first), index=first.index)
    warm.chain.honest(ready)
    outcome = scene.chain.attempt(ready)
    is_held = outcome.error == "InvalidRunState" or (outcome.error is None and not outcome.changes)
    scene.chain.judge(f"warm-up report in {state}", is_held, outcome, "no change")


def test_health_check_of_a_healthy_client() -> None:
    """Only the one that no quorum saw can be reported."""
    scene = get_scene("training")
    run = scene.run
    unseen = run.account.epoch_clients[-1]
    for wallet in run.wallets:
        scene.chain.honest(run.encode("health_check", wallet, index=unseen.index))
        for index in (0, 1, 2, 4, 255, 256, 2**16 - 1, unseen.index + 256):
            hostile = run.encode("health_check", wallet, index=index)
            scene.chain.attack(f"health check of {index}", "InvalidHealthCheck", hostile)
    hostile = run.encode("health_check", scene.thief, index=unseen.index)
    scene.chain.attack("health check by a stranger", "SignerNotAClient", hostile)


def test_health_check_twice_and_of_the_dead() -> None:
    scene = build_scene("training")
    run = scene.run
    unseen = run.account.epoch_clients[-1]
    check = run.encode("health_check", run.wallets[0], index=unseen.index)
    scene.chain.commit(check)
    assert run.account.epoch_clients[-1].state is ClientState.Dropped
    scene.chain.attack("health check twice", "InvalidHealthCheck", check)


@pytest.mark.parametrize("state", ["warmup", "waiting", "cooldown", "paused"])
def test_health_check_outside_a_round(state: str) -> None:
    scene, trained = get_scene(state), get_scene("training")
    check = trained.run.encode("health_check", trained.run.wallets[0], index=3)
    trained.chain.honest(check)
    expected = "Halted" if state == "paused" else "InvalidRunState"
    scene.chain.attack(f"health check in {state}", expected, check)


def test_a_lone_liar_drops_nobody() -> None:
    """One elected witness of four that sees nobody leaves everybody safe from a health check."""
    scene = build_scene("training")
    run, chain = scene.run, scene.chain
    run.act("health_check", run.wallets[0], index=3)
    for _ in range(2):
        liar, *others = run.get_elected()
        chain.advance(1)
        run.witness(liar, seen=[])
        for client in others:
            run.witness(client, seen=[i for i in run.account.previous_round.healthy_indices if i != 3])  # type: ignore[union-attr]
        if run.state is RunState.RoundWitness:
            run.tick(5)
    for index in range(3):
        hostile = run.encode("health_check", run.wallets[0], index=index)
        chain.attack("dropped by a lone liar", "InvalidHealthCheck", hostile)
