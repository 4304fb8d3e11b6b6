"""Tiles and evidence over the mesh: who asks us gets what it may have, and what we need we ask for.

    reveal    epoch u16, height u32, verifier u16  ->  our tiles, as verify/reveal.py codes them
    hold      epoch u16, height u32, trainer u16, reason u8, evidence hash 32  ->  one byte when we hold it

An empty answer is none. Whoever may ask is told once per round and question: 2 MB are not given away twice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.targets import ResultHeader
from psyche_py.client.threads import in_thread
from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE
from psyche_py.coordinator.reasons import REASONS
from psyche_py.errors import NetworkError

if TYPE_CHECKING:
    from psyche_py.client.jobs import TrainerJobs
    from psyche_py.client.machine import ClientMachine
    from psyche_py.client.verification_jobs import VerificationJobs
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

REVEAL_REQUEST = "reveal"
REVEAL_QUESTION = struct.Struct("<HIH")
HOLD_REQUEST = "hold-evidence"
HOLD_QUESTION = struct.Struct("<HIHB32s")
HELD = b"\1"
RETRY_SECONDS = 1.0
TRY_SECONDS = 20.0
HOLD_SECONDS = 25.0
PREPARE_SECONDS = 20.0


class EvidenceDesk:
    """See the module."""

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
        self._answered: set[tuple[bytes, int, int]] = set()  # who asked, height, verifier
        self._held: dict[bytes, int] = {}  # evidence -> height of the result that it is about
        network.set_request_handler(REVEAL_REQUEST, self._answer_reveal)
        network.set_request_handler(HOLD_REQUEST, self._answer_hold)

    def start_epoch(self) -> None:
        """Disputes end with their epoch, and with them the need for evidence."""
        self._forget(None)

    def keep(self, evidence: bytes, height: int) -> bytes:
        """Serve our evidence about a result of round ``height`` while it can be judged. Returns its hash."""
        digest = self._network.store.put(evidence)
        self._hold(digest, height)
        return digest

    def _hold(self, digest: bytes, height: int) -> None:
        account = self._machine.account
        assert account is not None, "there is no duty before there is an account"
        self._held[digest] = height
        self._forget(account.current_round.height - ROUNDS_TO_JUDGE)

    def _forget(self, oldest: int | None) -> None:
        """What is about rounds before ``oldest``, or everything: an epoch has more than we can hold."""
        gone = [digest for digest, height in self._held.items() if oldest is None or height < oldest]
        for digest in gone:
            del self._held[digest]
            self._network.store.drop(digest)
        self._answered = {asked for asked in self._answered if oldest is not None and asked[1] >= oldest}

    # ---- answers ------------------------------------------------------------------------------------

    async def _answer_reveal(self, sender_key: bytes, body: bytes) -> bytes:
        if len(body) != REVEAL_QUESTION.size or self._jobs.verification is None:
            return b""
        epoch, height, verifier = REVEAL_QUESTION.unpack(body)
        key = self._machine.may_reveal(sender_key, epoch, height, verifier)
        question = (sender_key, height, verifier)
        if key is None or question in self._answered:
            return b""
        with trio.move_on_after(PREPARE_SECONDS):
            while True:
                jobs = self._jobs.verification
                answer = jobs.momentum.get_answer(key) if jobs is not None else b""
                if answer is not None:
                    self._answered.add(question)
                    self._forget(height - ROUNDS_TO_JUDGE)
                    return answer
                await trio.sleep(0.1)
        return b""

    async def _answer_hold(self, sender_key: bytes, body: bytes) -> bytes:
        """Hold a verifier's evidence; only for a duty that the draw gave to the sender."""
        jobs = self._jobs.verification
        if len(body) != HOLD_QUESTION.size or jobs is None:
            return b""
        epoch, height, trainer, reason, digest = HOLD_QUESTION.unpack(body)
        target = self._machine.find_target(sender_key, epoch, height, trainer)
        if target is None or reason not in REASONS:
            return b""
        size = jobs.get_evidence_bytes(target, reason)
        try:
            await self._network.fetch(digest, size, (sender_key,), deadline_seconds=HOLD_SECONDS)
        except NetworkError as error:
            self._sink.emit("warning", message=f"evidence {digest.hex()[:12]}: {error}")
            return b""
        self._hold(digest, height)
        return HELD

    # ---- questions ----------------------------------------------------------------------------------

    async def ask_reveal(self, action: ver.AskReveal) -> None:
        """Ask until the trainer answers or the time is over."""
        target, answer = action.target, b""
        jobs = self._jobs.verification
        size = jobs.get_reveal_bytes(target) if jobs is not None else 0
        question = REVEAL_QUESTION.pack(target.epoch, target.height, target.verifier)
        with trio.move_on_after(action.deadline_seconds):
            while not answer:
                answer = await self._try(target.trainer_key, REVEAL_REQUEST, question, size)
        self._feed(ver.RevealHeard(target.key, answer or None))

    async def _try(self, key: bytes, kind: str, question: bytes, size: int) -> bytes:
        try:
            answer = await self._network.request(
                key, kind, question, max_response_bytes=size, deadline_seconds=TRY_SECONDS
            )
        except NetworkError as error:
            self._sink.emit("warning", message=f"{kind} from {key.hex()[:12]}: {error}")
            answer = b""
        if not answer:
            await trio.sleep(RETRY_SECONDS)
        return answer

    async def share(self, action: ver.ShareEvidence) -> None:
        """Ask one peer after the other to hold our evidence, until one does. Never the accused."""
        target, answer = action.target, b""
        digest, reason = action.evidence, action.reason
        question = HOLD_QUESTION.pack(target.epoch, target.height, target.trainer, reason, digest)
        account = self._machine.account
        assert account is not None
        own = (self._network.key, target.trainer_key)
        peers = [c.p2p_key for c in account.epoch_clients if c.p2p_key not in own]
        with trio.move_on_after(action.deadline_seconds):
            while not answer and peers:
                for key in peers:
                    answer = await self._try(key, HOLD_REQUEST, question, len(HELD))
                    if answer:
                        break
        self._feed(ver.EvidenceShared(digest, bool(answer) or not peers))

    async def fetch(self, action: ver.FetchEvidence) -> None:
        """Get evidence by its hash from its accuser or any holder."""
        jobs = self._jobs.verification
        data: bytes | None = None
        if jobs is not None:
            size = jobs.get_evidence_bytes(action.target, action.reason)
            try:
                data = await self._network.fetch(
                    action.evidence, size, (action.accuser_key,), deadline_seconds=action.deadline_seconds
                )
                self._hold(action.evidence, action.target.height)
            except NetworkError as error:
                self._sink.emit("warning", message=f"evidence {action.evidence.hex()[:12]}: {error}")
        self._feed(ver.EvidenceHeard(action.evidence, data))

    # ---- work ---------------------------------------------------------------------------------------

    async def do_job(self, action: ver.VerificationJob) -> None:
        """The trainer's work: one thing at a time, in its thread."""
        match action:
            case ver.PrepareReveal(target):
                if not await in_thread(self._get_jobs().prepare_reveal, target):
                    text = f"cannot show our momentum of round {target.height} any more"
                    self._sink.emit("warning", message=text)
                self._feed(ver.RevealPrepared(target.key))
            case ver.Check():
                await self._check(action)
            case ver.Judge():
                await self._judge(action)

    async def _check(self, action: ver.Check) -> None:
        payload = self._network.store.get(action.commitment.payload_hash)
        assert payload is not None, "the machine checks only what the store holds"
        target = action.target
        previous = self._get_payloads(target.previous)
        checked = await in_thread(
            self._get_jobs().check,
            target,
            action.commitment,
            action.frame,
            payload,
            previous,
            action.answer,
        )
        finding = None
        if checked is not None:
            finding, evidence = checked
            if evidence:
                finding = replace(finding, evidence=self.keep(evidence, target.height))
        self._feed(ver.Checked(target.key, finding))

    async def _judge(self, action: ver.Judge) -> None:
        identity, target = self._machine.identity, action.target
        header = ResultHeader(identity.program_id, identity.run_id)
        previous = self._get_payloads(target.previous)
        judged = await in_thread(
            self._get_jobs().judge, target, action.reason, action.data, previous, action.answer, header
        )
        is_guilty, why = judged if judged is not None else (None, "stopped")
        self._feed(ver.Judged(action.evidence, is_guilty, why))

    def _get_payloads(self, hashes: Mapping[int, bytes | None]) -> dict[int, bytes | None]:
        """Payloads of the round before from our store, by epoch client index."""
        store = self._network.store
        return {index: store.get(digest) if digest else None for index, digest in hashes.items()}

    def _get_jobs(self) -> VerificationJobs:
        assert self._jobs.verification is not None, "the machine asks only where the run verifies"
        return self._jobs.verification
