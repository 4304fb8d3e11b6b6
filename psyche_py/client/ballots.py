"""The disputes that we judge as a tie-breaker: fetch evidence, ask the trainer where need be, check, vote."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.coordinator.accusations import VOTE_STATES
from psyche_py.coordinator.duties import Duty, is_tie_breaker
from psyche_py.coordinator.reasons import REFUSAL_REASONS

if TYPE_CHECKING:
    from psyche_py.client.round_history import RoundHistory
    from psyche_py.client.targets import Target, TargetKey
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute

ANSWER_ROUNDS = 1
"""A trainer that shows a tie-breaker nothing in the judging round refuses."""
EVIDENCE_ROUNDS = 2
"""Evidence that nobody has served by then convicts nobody."""

Actions = list[act.Action]


class Stage(Enum):
    """How far a judgement is."""

    FETCHING = auto()
    READY = auto()
    RUNNING = auto()
    DECIDED = auto()  # the vote is to be sent
    SENT = auto()


@dataclass(slots=True)
class Ballot:
    """One dispute. ``is_asked``: the trainer's answer is still to come."""

    target: Target | None
    reason: int
    stage: Stage = Stage.FETCHING
    data: bytes | None = None
    answer: bytes | None = None
    is_asked: bool = False
    is_guilty: bool = False


class Ballots:
    """See the module. ``index`` is our place in the epoch."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._ballots: dict[bytes, Ballot] = {}

    def follow(self, account: CoordinatorAccount, history: RoundHistory, out: Actions) -> None:
        """Take up what is ours to judge, and send the votes that are decided."""
        if account.run_state not in VOTE_STATES:
            return
        self._forget_settled(account)
        for dispute in account.disputes:
            if not self._is_ours(account, dispute):
                continue
            ballot = self._ballots.get(dispute.evidence_hash)
            if ballot is None:
                self._take_up(account, history, dispute, out)
                continue
            self._limit_waiting(account, dispute, ballot)
            if ballot.stage is Stage.DECIDED:
                ballot.stage = Stage.SENT
                out.append(ver.SendVote(self._index, dispute.evidence_hash, ballot.is_guilty))

    def _forget_settled(self, account: CoordinatorAccount) -> None:
        """But for one that is being weighed: what comes of it is told."""
        open_ = {dispute.evidence_hash for dispute in account.disputes if dispute.is_open}
        self._ballots = {
            evidence: ballot
            for evidence, ballot in self._ballots.items()
            if evidence in open_ or ballot.stage is Stage.RUNNING
        }

    def _is_ours(self, account: CoordinatorAccount, dispute: Dispute) -> bool:
        has_voted = any(voter == self._index for voter, _ in dispute.votes)
        return dispute.is_open and not has_voted and is_tie_breaker(account, dispute, self._index)

    def _take_up(
        self, account: CoordinatorAccount, history: RoundHistory, dispute: Dispute, out: Actions
    ) -> None:
        duty = Duty(dispute.accuser, dispute.trainer)
        target = history.make_target(account, dispute.height, duty)
        ballot = Ballot(target, dispute.reason)
        self._ballots[dispute.evidence_hash] = ballot
        if target is None:  # nothing was due from it in that round, so nothing can be wrong with it
            ballot.stage = Stage.DECIDED
            return
        seconds = max(2.0, float(account.config.max_round_train_time))
        accuser_key = account.epoch_clients[dispute.accuser].p2p_key
        evidence = dispute.evidence_hash
        out.append(ver.FetchEvidence(evidence, dispute.reason, target, accuser_key, seconds))
        if dispute.reason in REFUSAL_REASONS:
            ballot.is_asked = True
            out.append(ver.AskReveal(target, seconds / 2))

    def _limit_waiting(self, account: CoordinatorAccount, dispute: Dispute, ballot: Ballot) -> None:
        """Rounds may be much shorter than their limit, and votes are counted for four of them."""
        age = account.current_round.height - dispute.judge_height
        if ballot.is_asked and age >= ANSWER_ROUNDS and ballot.target is not None:
            self.take_answer(ballot.target.key, None)
        if ballot.stage is Stage.FETCHING and age >= EVIDENCE_ROUNDS:
            self.take_evidence(dispute.evidence_hash, None)

    def take_evidence(self, evidence: bytes, data: bytes | None) -> None:
        """The evidence, or that nobody serves it: then it convicts nobody."""
        ballot = self._ballots.get(evidence)
        if ballot is None or ballot.stage is not Stage.FETCHING:
            return
        ballot.data = data
        if data is None:
            ballot.stage = Stage.DECIDED
        elif not ballot.is_asked:
            ballot.stage = Stage.READY

    def take_answer(self, key: TargetKey, answer: bytes | None) -> None:
        """What the trainer showed us, in a dispute about a refusal."""
        for ballot in self._ballots.values():
            if ballot.is_asked and ballot.target is not None and ballot.target.key == key:
                ballot.answer, ballot.is_asked = answer, False
                if ballot.stage is Stage.FETCHING and ballot.data is not None:
                    ballot.stage = Stage.READY

    def choose_job(self) -> ver.Judge | None:
        """The next check to make."""
        for evidence, ballot in self._ballots.items():
            if ballot.stage is Stage.READY:
                assert ballot.target is not None, "fetched for a target"
                assert ballot.data is not None, "ready with the evidence"
                ballot.stage = Stage.RUNNING
                job = ver.Judge(evidence, ballot.reason, ballot.target, ballot.data, ballot.answer)
                ballot.data = ballot.answer = None  # 4 MB that nobody needs again
                return job
        return None

    def take_judgement(self, evidence: bytes, is_guilty: bool | None, why: str, out: Actions) -> None:
        """Our check is done; without one (we are leaving) there is no vote."""
        ballot = self._ballots.get(evidence)
        if ballot is None or ballot.stage is not Stage.RUNNING:
            return
        if is_guilty is None:
            ballot.stage = Stage.SENT
            return
        ballot.is_guilty, ballot.stage = is_guilty, Stage.DECIDED
        fields: dict[str, object] = {"evidence": evidence.hex(), "is_guilty": is_guilty, "why": why}
        out.append(act.Emit("judged", fields))

    def is_judging(self, account: CoordinatorAccount) -> bool:
        """Whether a check for an open dispute is under way."""
        under_way = (Stage.FETCHING, Stage.READY, Stage.RUNNING)
        return any(
            self._is_ours(account, dispute)
            and dispute.evidence_hash in self._ballots
            and self._ballots[dispute.evidence_hash].stage in under_way
            for dispute in account.disputes
        )

    def resend(self, key: str) -> None:
        """A vote did not land."""
        for evidence, ballot in self._ballots.items():
            if ballot.stage is Stage.SENT and key == self._make_key(evidence, ballot):
                ballot.stage = Stage.DECIDED

    def _make_key(self, evidence: bytes, ballot: Ballot) -> str:
        return ver.get_key(ver.SendVote(self._index, evidence, ballot.is_guilty))
