"""Tiles and evidence over the in-memory mesh: only for those who may, once, and by hash."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from machine_world import World
from rulebook_driver import get_p2p_key
from verify_case import CONFIG, LR, NANO, Counting

from psyche_py.client import verification_actions as ver
from psyche_py.client.evidence_desk import HELD, HOLD_QUESTION, REVEAL_QUESTION, EvidenceDesk
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.options import ClientOptions
from psyche_py.client.targets import Target
from psyche_py.client.trainer import Trainer
from psyche_py.client.verification_jobs import VerificationJobs
from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE
from psyche_py.distro import Constant, DistroConfig
from psyche_py.model.loader import load_from_config
from psyche_py.observe.events import EventSink
from psyche_py.p2p.memory import MemoryHub, MemoryNetwork
from psyche_py.p2p.port import PeerInfo
from psyche_py.verify import Duty, Reason, compute_sampled_tiles, decode_reveal


@dataclass
class Stage:
    """A run's machines in mid-epoch, a drawn trainer's real work, and two connected nodes."""

    world: World
    target: Target
    verifier_key: bytes
    jobs: VerificationJobs
    desk: EvidenceDesk
    ours: MemoryNetwork
    other: MemoryNetwork
    heard: list[object]


def play_world() -> tuple[World, Target]:
    """Run until somebody has looked at a result, and the machines still are in that round."""
    world = World(6, 1, verification_percent=40, total_steps=60, epoch_time=400, min_clients=2)
    while not world.court.checked or world.driver.account.step < 6:
        world.step()
    return world, world.court.checked[-1]


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """The desk is the looked-at trainer's."""
    world, target = play_world()
    trainer = Trainer(load_from_config(NANO, 1), DistroConfig(), Constant(LR), Counting(), device="cpu")
    all_jobs = TrainerJobs(ClientOptions("run"))
    jobs = all_jobs.verification = VerificationJobs(trainer, CONFIG, 1, lambda: False)
    jobs.momentum.prepare_training()
    assert trainer.train(*target.ranges[0], target.step, lambda: False) is not None
    jobs.momentum.take_result(target.height)
    replica = next(r for r in world.replicas if get_p2p_key(r.number) == target.trainer_key)
    verifier_key = world.driver.account.epoch_clients[target.verifier].p2p_key
    hub, heard = MemoryHub(), []
    async with hub.open_network(b"\1" * 32) as ours, hub.open_network(b"\2" * 32) as other:
        for node in (ours, other):
            node.set_peers([PeerInfo(peer.key, peer.hint) for peer in (ours, other)])
        sink = EventSink(None, lambda: 0.0)
        desk = EvidenceDesk(ours, replica.machine, all_jobs, sink, heard.append)
        with trio.fail_after(30):
            while ours.num_connected < 1 or other.num_connected < 1:
                await trio.sleep(0.01)
            yield Stage(world, target, verifier_key, jobs, desk, ours, other, heard)


def test_tiles_are_shown_once_to_whom_the_draw_allows() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            target, answer = stage.target, stage.desk._answer_reveal
            question = REVEAL_QUESTION.pack(target.epoch, target.height, target.verifier)
            assert stage.jobs.prepare_reveal(target)
            for client in stage.world.driver.account.epoch_clients:
                if client.index != target.verifier:
                    assert await answer(client.p2p_key, question) == b""
            assert await answer(bytes(32), question) == b""
            assert await answer(stage.verifier_key, question[:-1]) == b""
            later = REVEAL_QUESTION.pack(target.epoch + 1, target.height, target.verifier)
            assert await answer(stage.verifier_key, later) == b""
            shown = await answer(stage.verifier_key, question)
            assert len(shown) == stage.jobs.get_reveal_bytes(target)
            layout, duty = stage.jobs._layout, Duty(target.verifier, target.trainer)
            tiles = compute_sampled_tiles(target.random_seed, duty, layout.num_tiles, target.num_sampled)
            assert [tile.tile for tile in decode_reveal(layout, tiles, shown)] == tiles
            assert await answer(stage.verifier_key, question) == b"", "2 MB are not given away twice"

    trio.run(main)


def test_an_answer_about_another_round_cannot_be_made() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            stage.jobs.momentum.take_result(stage.target.height + 1)
            assert not stage.jobs.prepare_reveal(stage.target)

    trio.run(main)


def test_evidence_is_held_for_a_drawn_verifier_until_the_epoch_ends() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            target, hold = stage.target, stage.desk._answer_hold
            reason = Reason.RESIDUAL
            evidence = bytes(stage.jobs.get_evidence_bytes(target, reason))
            digest = stage.other.store.put(evidence)
            question = HOLD_QUESTION.pack(target.epoch, target.height, target.trainer, reason, digest)
            assert await hold(get_p2p_key(99), question) == b""
            assert await hold(target.trainer_key, question) == b""
            assert await hold(stage.verifier_key, question[:-1]) == b""
            none = HOLD_QUESTION.pack(target.epoch, target.height, target.trainer, 9, digest)
            assert await hold(stage.verifier_key, none) == b""
            assert not stage.ours.store.has(digest)
            assert await hold(stage.verifier_key, question) == HELD
            assert stage.ours.store.get(digest) == evidence
            stage.desk.start_epoch()
            assert not stage.ours.store.has(digest)

    trio.run(main)


def test_evidence_is_kept_as_long_as_its_round_can_be_judged() -> None:
    """A piece has 2 MB, verifiers decide how many there are, and an epoch may last longer than memory."""

    async def main() -> None:
        async with open_stage() as stage:
            driver, desk, store = stage.world.driver, stage.desk, stage.ours.store
            begun, num_kept = driver.account.current_round.height, 0
            while driver.account.current_round.height < begun + 3 * ROUNDS_TO_JUDGE:
                height = desk._machine.account.current_round.height - 1
                digest = desk.keep(num_kept.to_bytes(1000), height)
                num_kept += 1
                assert store.has(digest)
                held = set(desk._held.values())
                assert max(held) - min(held) <= ROUNDS_TO_JUDGE
                assert len(store) == len(desk._held)
                while desk._machine.account.current_round.height - 1 == height:
                    stage.world.step()
            assert num_kept > 2 * ROUNDS_TO_JUDGE > len(desk._held)

    trio.run(main)


def test_evidence_comes_by_its_hash_or_not_at_all() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            data = bytes(stage.jobs.get_evidence_bytes(stage.target, Reason.NO_ANSWER))
            digest, missing = stage.other.store.put(data), hashlib.sha256(b"nobody has this").digest()
            for name in (digest, missing):
                await stage.desk.fetch(
                    ver.FetchEvidence(name, Reason.NO_ANSWER, stage.target, stage.other.key, 1.0)
                )
            assert stage.heard == [ver.EvidenceHeard(digest, data), ver.EvidenceHeard(missing, None)]

    trio.run(main)
