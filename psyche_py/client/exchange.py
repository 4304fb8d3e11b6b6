"""Payloads by hash, and questions to peers about results that we did not hear of."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from psyche_py.client import actions as act
from psyche_py.coordinator.commitment import COMMITMENT_BYTES
from psyche_py.errors import NetworkError

if TYPE_CHECKING:
    from psyche_py.client.jobs import TrainerJobs
    from psyche_py.client.machine import ClientMachine
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

PAYLOAD_DEADLINE_SECONDS = 60.0
ASK_DEADLINE_SECONDS = 5.0
CANDIDATES_REQUEST = "candidates"
CANDIDATES_QUESTION = struct.Struct("<HIH")
MAX_ANSWERED_CANDIDATES = 8


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
        network.set_request_handler(CANDIDATES_REQUEST, self._answer_candidates)

    async def _answer_candidates(self, sender_key: bytes, body: bytes) -> bytes:
        if len(body) != CANDIDATES_QUESTION.size:
            return b""
        epoch, height, index = CANDIDATES_QUESTION.unpack(body)
        known = self._machine.get_candidates(epoch, height, index)
        return b"".join(known[:MAX_ANSWERED_CANDIDATES])

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

    async def ask_candidates(self, action: act.AskCandidates) -> None:
        """Ask every peer of the run; an empty answer comes back as such, and the machine asks again."""
        question = CANDIDATES_QUESTION.pack(action.epoch, action.height, action.index)
        found: set[bytes] = set()

        async def ask(key: bytes) -> None:
            try:
                answer = await self._network.request(
                    key,
                    CANDIDATES_REQUEST,
                    question,
                    max_response_bytes=COMMITMENT_BYTES * MAX_ANSWERED_CANDIDATES,
                    deadline_seconds=ASK_DEADLINE_SECONDS,
                )
            except NetworkError:
                return  # another peer may know
            places = range(0, len(answer) - COMMITMENT_BYTES + 1, COMMITMENT_BYTES)
            found.update(answer[i : i + COMMITMENT_BYTES] for i in places)

        account = self._machine.account
        assert account is not None
        async with trio.open_nursery() as nursery:
            for client in account.epoch_clients:
                if client.p2p_key != self._network.key:
                    nursery.start_soon(ask, client.p2p_key)
        if not found:
            await trio.sleep(0.5)
        self._feed(act.CandidatesHeard(action.height, action.index, tuple(sorted(found))))
