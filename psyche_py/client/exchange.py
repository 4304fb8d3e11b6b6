"""Payloads by hash, and questions to peers about what a witness attested."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from psyche_py.client import actions as act
from psyche_py.client.openings import decode_opening
from psyche_py.coordinator.commitment import COMMITMENT_BYTES
from psyche_py.errors import NetworkError

if TYPE_CHECKING:
    from psyche_py.client.jobs import TrainerJobs
    from psyche_py.client.machine import ClientMachine
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

PAYLOAD_DEADLINE_SECONDS = 60.0
ASK_DEADLINE_SECONDS = 5.0
OPENING_REQUEST = "opening"
MAX_PARTIAL_ANSWERS = 16
OPENING_QUESTION = struct.Struct("<HIH32s")
"""Epoch, height, number of results, Merkle root. The answer is so many commitments, or nothing."""
ASKED_AT_ONCE = 4
"""An answer can have 24 KB, so not everybody is asked for the same one."""


class Exchange:
    """Answers and asks; what comes of it is fed to the machine."""

    def __init__(
        self,
        network: Network,
        machine: ClientMachine,
        jobs: TrainerJobs,
        sink: EventSink,
        feed: Callable[[act.Input], None],
    ) -> None:
        self._network, self._machine, self._jobs = network, machine, jobs
        self._sink, self._feed = sink, feed
        network.set_request_handler(OPENING_REQUEST, self._answer_opening)

    async def _answer_opening(self, sender_key: bytes, body: bytes) -> bytes:
        if len(body) != OPENING_QUESTION.size:
            return b""
        epoch, height, num_results, root = OPENING_QUESTION.unpack(body)
        return b"".join(self._machine.get_opening(epoch, height, root, num_results))

    async def fetch_payload(self, action: act.FetchPayload) -> None:
        """Get a payload and say whether it is one of this model."""
        size = self._jobs.payload_num_bytes
        try:
            payload = await self._network.fetch(
                action.digest, size, action.holders, deadline_seconds=PAYLOAD_DEADLINE_SECONDS
            )
        except NetworkError as error:
            self._sink.emit("warning", message=f"payload {action.digest.hex()[:12]}: {error}")
            await trio.sleep(0.5)
            self._feed(act.FetchGaveUp(action.height, action.digest))
            return
        valid = self._jobs.is_valid_payload(payload)
        if not valid:
            self._network.store.drop(action.digest)
        self._feed(act.PayloadFetched(action.height, action.digest, valid))

    async def ask_opening(self, action: act.AskOpening) -> None:
        """Ask the holders, a few at a time, until one has it; else pass on what they know of it.

        The machine puts that together, and asks again if it is not enough.
        """
        question = OPENING_QUESTION.pack(action.epoch, action.height, action.num_results, action.root)
        found: set[bytes] = set()
        partial: set[bytes] = set()

        async def ask(key: bytes) -> None:
            try:
                answer = await self._network.request(
                    key,
                    OPENING_REQUEST,
                    question,
                    max_response_bytes=COMMITMENT_BYTES * action.num_results,
                    deadline_seconds=ASK_DEADLINE_SECONDS,
                )
            except NetworkError:
                return  # another peer may know
            if decode_opening(action.root, action.num_results, answer) is not None:
                found.add(answer)
                nursery.cancel_scope.cancel()
            elif answer and len(partial) < MAX_PARTIAL_ANSWERS:
                partial.add(answer)

        holders = list(action.holders)
        while holders and not found:
            async with trio.open_nursery() as nursery:
                for key in holders[:ASKED_AT_ONCE]:
                    nursery.start_soon(ask, key)
            del holders[:ASKED_AT_ONCE]
        if not found:
            await trio.sleep(0.5)
        self._feed(
            act.OpeningHeard(action.height, action.root, action.num_results, tuple(sorted(found or partial)))
        )
