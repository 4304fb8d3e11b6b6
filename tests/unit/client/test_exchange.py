"""What a witness's root is over, asked over the in-memory mesh of peers that know, lie or are silent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import trio
from distro_tools import make_message
from machine_world import World

from psyche_py.client import actions as act
from psyche_py.client.exchange import OPENING_QUESTION, OPENING_REQUEST, Exchange
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.openings import decode_opening
from psyche_py.client.options import ClientOptions
from psyche_py.distro import DistroConfig, PayloadLayout
from psyche_py.distro.payload import check_payload, encode_payload
from psyche_py.observe.events import EventSink
from psyche_py.p2p.memory import MemoryHub, MemoryNetwork
from psyche_py.p2p.port import PeerInfo

LAYOUT = PayloadLayout.from_shapes({"w": (40, 70)}, DistroConfig(compression_topk=4, compression_chunk=64))


@dataclass
class Stage:
    """We, two peers of whom the second knows all, and the root that a witness attested."""

    ours: Exchange
    nodes: list[MemoryNetwork]
    heard: list[act.Input]
    asked: act.AskOpening
    answer: bytes


def play_world() -> World:
    """In a round whose predecessor's results are attested."""
    world = World(4, 1, init_min_clients=4, min_clients=2, total_steps=30)
    while world.driver.account.step < 6:
        world.step()
    return world


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    world = play_world()
    machines = [replica.machine for replica in world.replicas[:3]]
    session = machines[2].session
    assert session is not None
    record = session.records[session.newest - 2]
    (root, num) = next(iter(record.openings.found))
    hub, heard = MemoryHub(), list[act.Input]()
    async with (
        hub.open_network(b"\1" * 32) as ours,
        hub.open_network(b"\2" * 32) as first,
        hub.open_network(b"\3" * 32) as second,
    ):
        nodes = [ours, first, second]
        for node in nodes:
            node.set_peers([PeerInfo(peer.key, peer.hint) for peer in nodes])
        parts = TrainerJobs(ClientOptions("run")), EventSink(None, lambda: 0.0), heard.append
        exchanges = [Exchange(node, machine, *parts) for node, machine in zip(nodes, machines, strict=True)]
        with trio.fail_after(30):
            while any(node.num_connected < 2 for node in nodes):
                await trio.sleep(0.01)
            asked = act.AskOpening(session.epoch, record.height, root, num, (first.key, second.key))
            answer = b"".join(record.get_opening(root, num, None))
            yield Stage(exchanges[0], nodes, heard, asked, answer)


async def lie(sender_key: bytes, body: bytes) -> bytes:
    return b"\5" * 96 * OPENING_QUESTION.unpack(body)[2]


async def keep_silent(sender_key: bytes, body: bytes) -> bytes:
    await trio.sleep_forever()
    raise AssertionError


def test_one_true_answer_is_enough() -> None:
    async def main() -> None:
        for wrong in (lie, keep_silent):
            async with open_stage() as stage:
                stage.nodes[1].set_request_handler(OPENING_REQUEST, wrong)
                await stage.ours.ask_opening(stage.asked)
                asked = stage.asked
                expected = act.OpeningHeard(asked.height, asked.root, asked.num_results, (stage.answer,))
                assert stage.heard == [expected]
                assert len(stage.answer) == 96 * asked.num_results > 96

    trio.run(main)


def test_an_answer_that_the_root_does_not_prove_is_none() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            for node in stage.nodes[1:]:
                node.set_request_handler(OPENING_REQUEST, lie)
            await stage.ours.ask_opening(stage.asked)
            asked = stage.asked
            (heard,) = stage.heard
            assert isinstance(heard, act.OpeningHeard)
            # what peers know of it goes on, in case that all together know it; a lie proves nothing there
            proven = [decode_opening(asked.root, asked.num_results, answer) for answer in heard.answers]
            assert proven == [None]

    trio.run(main)


def test_odd_questions_get_no_answer() -> None:
    async def main() -> None:
        async with open_stage() as stage:
            asked, ask = stage.asked, stage.nodes[0].request
            true = (asked.epoch, asked.height, asked.num_results, asked.root)
            odd = [
                (9, *true[1:]),
                (*true[:1], 99, *true[2:]),
                (*true[:2], 256, true[3]),
                (*true[:3], bytes(32)),
            ]
            bodies = [b"", OPENING_QUESTION.pack(*true) + b"x", *(OPENING_QUESTION.pack(*q) for q in odd)]
            for body in bodies:
                key = stage.nodes[2].key
                said = await ask(key, OPENING_REQUEST, body, max_response_bytes=10**5, deadline_seconds=5.0)
                assert said == b""
            body = OPENING_QUESTION.pack(*true)
            said = await ask(key, OPENING_REQUEST, body, max_response_bytes=10**5, deadline_seconds=5.0)
            assert said == stage.answer

    trio.run(main)


class OneModel:
    """As much of a trainer as says what is a payload of its model."""

    payload_num_bytes = LAYOUT.num_bytes

    def check_payload(self, payload: bytes) -> None:
        check_payload(LAYOUT, payload)


@pytest.mark.parametrize("is_well_formed", [True, False])
def test_a_payload_with_the_announced_hash_that_does_not_decode_is_not_kept(is_well_formed: bool) -> None:
    """It is no offence of the peer that served it: the machine hears of it, which knows who announced it."""

    async def main() -> None:
        async with open_stage() as stage:
            ours, holder = stage.nodes[:2]
            well_formed = encode_payload(LAYOUT, make_message(LAYOUT, np.random.default_rng(1)))
            payload = well_formed if is_well_formed else b"\xff" * LAYOUT.num_bytes
            digest = holder.store.put(payload)
            stage.ours._jobs._trainer = OneModel()
            await stage.ours.fetch_payload(act.FetchPayload(stage.asked.height, digest, (holder.key,)))
            assert stage.heard == [act.PayloadFetched(stage.asked.height, digest, is_well_formed)]
            assert (ours.store.get(digest) is not None) == is_well_formed
            assert not ours.stats.offences

    trio.run(main)
