"""Our part in verification within one epoch: show our work, look at another's, judge what others found.

Pure, like the session that owns it. A round's verifier looks at a result of the round before; what it finds
goes on chain, and the tie-breakers of a later round do the check again (docs/verification.md). Who does what
follows from the account alone (coordinator/duties.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.client.ballots import Ballots
from psyche_py.client.round_history import RoundHistory, is_from_zero
from psyche_py.client.verification_actions import get_key
from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE, VERDICT_STATES, is_in_time
from psyche_py.coordinator.duties import Duty, compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import ClientState
from psyche_py.coordinator.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psyche_py.client.rounds import RoundRecord
    from psyche_py.client.targets import Finding, Target, TargetKey
    from psyche_py.coordinator.commitment import Commitment
    from psyche_py.coordinator.state import CoordinatorAccount

Actions = list[act.Action]


class Phase(Enum):
    """How far a check is."""

    WAITING = auto()  # for the payload
    ASKED = auto()
    READY = auto()
    RUNNING = auto()
    SHARING = auto()  # the evidence
    OVER = auto()


@dataclass(slots=True)
class OwnCheck:
    """A check that is our duty. ``height`` is the round in which we verify, one after the target's."""

    height: int
    target: Target
    phase: Phase = Phase.WAITING
    commitment: Commitment | None = None
    frame: bytes = b""
    answer: bytes | None = None
    finding: Finding | None = None


class Verification:
    """See the module. Made once an epoch; does nothing where the run verifies nothing."""

    def __init__(self, account: CoordinatorAccount, run_id: bytes, index: int) -> None:
        self.is_on = account.config.verification_percent > 0
        self._index = index
        self.history = RoundHistory(run_id, account.epoch, starts_from_zero=is_from_zero(account))
        self._ballots = Ballots(index)
        self._drawn: dict[tuple[int, int], Duty] = {}  # (height, verifier) -> that we were drawn
        self._to_prepare: list[tuple[int, Duty]] = []
        self._checks: dict[TargetKey, OwnCheck] = {}
        self._verdicts: dict[str, ver.SendVerdict] = {}
        self._unsent: set[str] = set()
        self.num_honest = 0

    # ---- rounds -------------------------------------------------------------------------------------

    def see_round(self, account: CoordinatorAccount, record: RoundRecord, random_seed: int) -> None:
        """A round has started: who was drawn to look at the one before?"""
        if not self.is_on:
            return
        self.history.add(record, random_seed)
        self._forget(record.height - ROUNDS_TO_JUDGE)
        for duty in compute_duties(account, record.height):
            if duty.trainer == self._index:
                self._drawn[record.height - 1, duty.verifier] = duty
                self._to_prepare.append((record.height - 1, duty))
            if duty.verifier == self._index:
                target = self.history.make_target(account, record.height - 1, duty)
                if target is not None:
                    self._checks[target.key] = OwnCheck(record.height, target)

    def see_accepted(self, height: int, payloads: Mapping[int, bytes]) -> None:
        """Hashes of the payloads of round ``height`` that the witnesses accepted, by epoch client index."""
        if self.is_on:
            self.history.add_accepted(height, payloads)

    def _forget(self, oldest: int) -> None:
        """Results of rounds before ``oldest`` are beyond dispute: an epoch may be longer than memory."""
        self._drawn = {key: duty for key, duty in self._drawn.items() if key[0] >= oldest}
        self._verdicts = {key: sent for key, sent in self._verdicts.items() if sent.height >= oldest}
        self._unsent &= self._verdicts.keys()

    def unwind(self, first: int) -> None:
        """A fork of the chain has replaced the rounds from ``first`` on, and who was drawn in them."""
        self._checks = {key: check for key, check in self._checks.items() if check.height < first}
        self._drawn = {key: duty for key, duty in self._drawn.items() if key[0] + 1 < first}
        self._to_prepare = [(height, duty) for height, duty in self._to_prepare if height + 1 < first]
        self._verdicts = {key: sent for key, sent in self._verdicts.items() if sent.height + 1 < first}
        self._unsent &= self._verdicts.keys()

    def is_checking(self, account: CoordinatorAccount, height: int) -> bool:
        """Whether our check of this round is under way: we have not finished the round until it is done.

        Who has left may still answer, but nobody waits for it: most that have left are gone.
        """
        return any(
            check.phase in (Phase.READY, Phase.RUNNING)
            or (check.phase is Phase.ASKED and _get_state(account, check) is ClientState.Healthy)
            for check in self._checks.values()
            if check.height == height
        )

    def follow(self, account: CoordinatorAccount, out: Actions) -> None:
        """Do what follows from how things stand, but for the trainer's work."""
        if not self.is_on:
            return
        for check in self._checks.values():
            if check.phase in (Phase.WAITING, Phase.ASKED) and _is_ejected(account, check):
                check.phase = Phase.OVER  # the program takes no verdict about it any more
            elif check.phase is Phase.WAITING:
                self._begin(account, check, out)
            elif check.phase is Phase.ASKED and account.current_round.height > check.height:
                check.phase = Phase.READY  # no answer within the round
        self._checks = {k: c for k, c in self._checks.items() if c.phase is not Phase.OVER}
        self._send_verdicts(account, out)
        self._ballots.follow(account, self.history, out)

    def _begin(self, account: CoordinatorAccount, check: OwnCheck, out: Actions) -> None:
        """Ask the trainer, once its message is here."""
        target = check.target
        record = self.history.get_record(target.height)
        digest = record.verified.get(target.trainer) if record is not None else None
        if record is None or digest is None:
            if account.current_round.height > check.height or account.run_state not in VERDICT_STATES:
                check.phase = Phase.OVER  # it delivered nothing: there is nothing to look at
            return
        # what was accepted is in by now: the round's own results are applied before its checks are made
        fresh = self.history.make_target(account, target.height, Duty(target.verifier, target.trainer))
        check.target = fresh if fresh is not None else target
        check.commitment, check.frame = record.commitments[digest], record.frames.get(digest, b"")
        check.phase = Phase.ASKED
        out.append(ver.AskReveal(check.target, max(1.0, account.config.max_round_train_time / 2)))

    # ---- the trainer's work -------------------------------------------------------------------------

    def choose_job(self, account: CoordinatorAccount) -> ver.VerificationJob | None:
        """What an idle trainer does before it trains: show what was asked for, look at what was shown."""
        while self._to_prepare:
            height, duty = self._to_prepare.pop(0)
            record = self.history.get_record(height)
            if record is not None and self._index in record.candidates:  # else we delivered nothing there
                target = self.history.make_target(account, height, duty)
                if target is not None:
                    return ver.PrepareReveal(target)
        return self._choose_check()

    def _choose_check(self) -> ver.Check | None:
        for check in self._checks.values():
            if check.phase is Phase.READY:
                assert check.commitment is not None, "asked for with the payload"
                check.phase = Phase.RUNNING
                return ver.Check(check.target, check.commitment, check.frame, check.answer)
        return None

    def choose_judgement(self) -> ver.Judge | None:
        """What an idle trainer does when it has nothing else to do."""
        return self._ballots.choose_job()

    def is_judging(self, account: CoordinatorAccount) -> bool:
        """Whether a vote of ours is still to come: the epoch is saved after it."""
        return self._ballots.is_judging(account)

    # ---- what came of it ----------------------------------------------------------------------------

    def take(self, account: CoordinatorAccount, event: ver.VerificationInput, out: Actions) -> None:
        """An input of verification."""
        match event:
            case ver.RevealHeard(key, answer):
                check = self._checks.get(key)
                if check is not None and check.phase is Phase.ASKED:
                    check.answer, check.phase = answer, Phase.READY
                elif check is None:
                    self._ballots.take_answer(key, answer)
            case ver.Checked(key, finding):
                check = self._checks.get(key)
                if check is not None:
                    self._take_finding(account, check, finding, out)
            case ver.EvidenceShared(evidence, is_held):
                self._take_shared(evidence, is_held, out)
            case ver.EvidenceHeard(evidence, data):
                self._ballots.take_evidence(evidence, data)
            case ver.Judged(evidence, is_guilty, why):
                self._ballots.take_judgement(evidence, is_guilty, why, out)

    def _take_finding(
        self, account: CoordinatorAccount, check: OwnCheck, finding: Finding | None, out: Actions
    ) -> None:
        check.finding, check.phase = finding, Phase.OVER
        if finding is None:
            return
        target = check.target
        is_gone = _get_state(account, check) is not ClientState.Healthy
        is_unheard = is_gone and finding.reason == Reason.NO_ANSWER
        is_accused = bool(finding.evidence) and not is_unheard and not _is_ejected(account, check)
        self.num_honest += finding.reason_name == "NONE"
        fields: dict[str, object] = {
            "height": target.height,
            "trainer": target.trainer,
            "reason": finding.reason_name,
            "is_accused": is_accused,
            "seconds": finding.seconds,
            **finding.statistics,
        }
        out.append(act.Emit("verified", fields))
        if is_accused:
            check.phase = Phase.SHARING
            seconds = float(account.config.max_round_train_time)
            out.append(ver.ShareEvidence(finding.evidence, finding.reason, target, seconds))

    def _take_shared(self, evidence: bytes, is_held: bool, out: Actions) -> None:
        for check in self._checks.values():
            finding, target = check.finding, check.target
            if check.phase is not Phase.SHARING or finding is None or finding.evidence != evidence:
                continue
            check.phase = Phase.OVER
            if not is_held:
                text = f"nobody holds our evidence against client {target.trainer}: no verdict is sent"
                out.append(act.Emit("warning", {"message": text}))
                continue
            verdict = ver.SendVerdict(self._index, target.trainer, target.height, finding.reason, evidence)
            key = get_key(verdict)
            self._verdicts[key] = verdict
            self._unsent.add(key)

    def _send_verdicts(self, account: CoordinatorAccount, out: Actions) -> None:
        if account.run_state not in VERDICT_STATES:
            return
        for key in sorted(self._unsent):
            verdict = self._verdicts[key]
            if is_in_time(account, verdict.height):
                out.append(verdict)
        self._unsent.clear()

    def resend(self, key: str) -> None:
        """A transaction did not land; it is sent again while it may."""
        if key in self._verdicts:
            self._unsent.add(key)
        self._ballots.resend(key)

    # ---- who may ask us -----------------------------------------------------------------------------

    def may_ask(
        self, account: CoordinatorAccount, sender_key: bytes, height: int, verifier: int
    ) -> TargetKey | None:
        """The answer that ``sender_key`` may have: it is the drawn ``verifier``, or judges its accusation."""
        if (height, verifier) not in self._drawn:
            return None
        key = (height, self._index, verifier)
        clients = account.epoch_clients
        if clients[verifier].p2p_key == sender_key:
            return key
        for dispute in account.disputes:
            is_it = (dispute.accuser, dispute.trainer, dispute.height) == (verifier, self._index, height)
            if dispute.is_open and is_it:
                is_judge = any(
                    c.p2p_key == sender_key and is_tie_breaker(account, dispute, c.index) for c in clients
                )
                return key if is_judge else None
        return None

    def find_target(
        self, account: CoordinatorAccount, sender_key: bytes, height: int, trainer: int
    ) -> Target | None:
        """What ``sender_key`` was drawn to look at, if it was: then we hold its evidence."""
        for duty in compute_duties(account, height + 1):
            if duty.trainer == trainer and account.epoch_clients[duty.verifier].p2p_key == sender_key:
                return self.history.make_target(account, height, duty)
        return None


def _get_state(account: CoordinatorAccount, check: OwnCheck) -> ClientState:
    """Of the trainer that we look at."""
    return account.epoch_clients[check.target.trainer].state


def _is_ejected(account: CoordinatorAccount, check: OwnCheck) -> bool:
    return _get_state(account, check) is ClientState.Ejected
