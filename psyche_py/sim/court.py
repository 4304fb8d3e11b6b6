"""Verification in virtual time: who cheats is known, checks and judgements find it out.

The machines decide who looks at whom and what follows, as they always do. What a check would find by
recomputing a batch is looked up here: a result is false when the trainer that made it says so
(``Result.broken_rule``), and each check convicts it with the share ``Settings.conviction``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from psyche_py.client import verification_actions as ver
from psyche_py.client.evidence_desk import RETRY_SECONDS
from psyche_py.client.targets import Finding, Target
from psyche_py.coordinator.reasons import Reason

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient
    from psyche_py.sim.world import World

PREPARE_SECONDS = 0.05
TILE_BYTES = 32_768
"""A tile of 64 x 64 momentum values before and after (fp32)."""
EVIDENCE_SHARE = 2.0
"""Evidence is the payload and an answer: in payloads."""


class Court:
    """See the module. Times are the world's.

    ``false_payloads``: digests (32 B) of payloads that are not their batch's, but for those copied of others.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.false_payloads: set[bytes] = set()
        self._false: dict[tuple[bytes, int, int], Reason] = {}  # mesh key, epoch, height: what finds it out
        self.num_checked = 0
        self.num_judged = 0

    def note_false(self, place: tuple[bytes, int, int], digest: bytes, rule: Reason) -> None:
        """The result of a trainer (mesh key, epoch, height) is not its batch's; ``rule`` finds that out."""
        self._false[place] = rule
        if not self._world.num_holders[digest]:
            self.false_payloads.add(digest)

    # ---- what machines ask for ----------------------------------------------------------------------

    def perform(self, client: SimClient, action: ver.VerificationAction) -> None:
        """Do what a machine wants done; verdicts and votes go to the chain elsewhere."""
        match action:
            case ver.PrepareReveal(target):
                client.answers.add((target.epoch, *target.key))
                client.feed_later(PREPARE_SECONDS, ver.RevealPrepared(target.key))
            case ver.AskReveal(target, seconds):
                self._ask(client, target, self._world.clock.now + seconds)
            case ver.Check():
                client.later(client.compute_train_seconds(), self._check, client, action)
            case ver.ShareEvidence():
                self._share(client, action)
            case ver.FetchEvidence():
                self._fetch(client, action, self._world.clock.now + action.deadline_seconds)
            case ver.Judge():
                client.later(client.compute_train_seconds(), self._judge, client, action)

    def _ask(self, client: SimClient, target: Target, deadline: float) -> None:
        """Ask the trainer once a second, until it answers or the time is over."""
        world, trainer = self._world, self._world.get_client(target.trainer_key)
        if trainer is not None and client.can_reach(trainer) and not trainer.stopped:
            where = target.epoch, target.height, target.verifier
            key = trainer.machine.may_reveal(client.p2p_key, *where)
            is_ready = key is not None and (target.epoch, *key) in trainer.answers
            if is_ready and trainer.trainer.reveals(target):
                size = target.num_sampled * TILE_BYTES
                seconds = world.wires.transfer(trainer.number, client.number, size, "evidence")
                client.feed_later(seconds, ver.RevealHeard(target.key, b"tiles"))
                return
        if world.clock.now >= deadline:
            client.feed(ver.RevealHeard(target.key, None))
        else:
            client.later(RETRY_SECONDS, self._ask, client, target, deadline)

    def _check(self, client: SimClient, action: ver.Check) -> None:
        self.num_checked += 1
        target = action.target
        found = self._find(target)
        if found or action.answer is None:
            reason = found or Reason.NO_ANSWER
            finding = Finding(int(reason), reason.name, {}, 0.0, make_evidence(target))
        else:
            finding = Finding(0, "NONE", {}, 0.0)
        client.feed(ver.Checked(target.key, client.trainer.report(target, finding)))

    def _judge(self, client: SimClient, action: ver.Judge) -> None:
        self.num_judged += 1
        target = action.target
        is_refusal = action.reason == Reason.NO_ANSWER
        is_guilty = action.answer is None if is_refusal else bool(self._find(target))
        client.feed(ver.Judged(action.evidence, client.trainer.vote(is_guilty), "simulated"))

    def _find(self, target: Target) -> Reason:
        """What a check of the result finds this time; Reason.NONE: nothing."""
        found = self._false.get((target.trainer_key, target.epoch, target.height), Reason.NONE)
        share = self._world.settings.conviction
        return found if found and (share >= 1.0 or self._world.rng.random() < share) else Reason.NONE

    # ---- evidence -----------------------------------------------------------------------------------

    def _share(self, client: SimClient, action: ver.ShareEvidence) -> None:
        """The first peer that is reached holds it too; never the accused."""
        world, account = self._world, client.machine.account
        client.evidence.add(action.evidence)
        clients = account.epoch_clients if account is not None else ()
        barred = (client.p2p_key, action.target.trainer_key)
        peers = [world.get_client(c.p2p_key) for c in clients if c.p2p_key not in barred]
        for peer in peers:
            if peer is not None and client.can_reach(peer):
                peer.evidence.add(action.evidence)
                seconds = world.wires.transfer(client.number, peer.number, self._size, "evidence")
                client.feed_later(seconds, ver.EvidenceShared(action.evidence, True))
                return
        is_held = not peers  # nobody is left who could
        client.feed_later(action.deadline_seconds, ver.EvidenceShared(action.evidence, is_held))

    def _fetch(self, client: SimClient, action: ver.FetchEvidence, deadline: float) -> None:
        """From its accuser or anybody who holds it."""
        world = self._world
        held = [c for c in world.clients if action.evidence in c.evidence and c is not client]
        held.sort(key=lambda holder: holder.p2p_key != action.accuser_key)
        holder = next((c for c in held if client.can_reach(c)), None)
        if holder is not None:
            client.evidence.add(action.evidence)
            seconds = world.wires.transfer(holder.number, client.number, self._size, "evidence")
            client.feed_later(seconds, ver.EvidenceHeard(action.evidence, b"evidence"))
        elif world.clock.now >= deadline:
            client.feed(ver.EvidenceHeard(action.evidence, None))
        else:
            client.later(RETRY_SECONDS, self._fetch, client, action, deadline)

    @property
    def _size(self) -> int:
        return int(EVIDENCE_SHARE * self._world.settings.payload_bytes)


def make_evidence(target: Target) -> bytes:
    """Hash (32 B) of the evidence about a target."""
    return hashlib.sha256(repr((target.epoch, target.key)).encode()).digest()
