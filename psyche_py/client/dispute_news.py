"""What people are told about disputes: one event when one opens, one when it is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.coordinator.convictions import find_conviction
from psyche_py.coordinator.reasons import describe_reason

if TYPE_CHECKING:
    from psyche_py.coordinator.layout import DisputeState
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute


class DisputeNews:
    """Remembers what has been told of the disputes that the account shows."""

    def __init__(self) -> None:
        self._told: dict[bytes, DisputeState] = {}

    def tell(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        """Events for what changed since the last account. What was settled before we came is no news."""
        shown = {dispute.evidence_hash for dispute in account.disputes}
        self._told = {evidence: state for evidence, state in self._told.items() if evidence in shown}
        for dispute in account.disputes:
            before = self._told.get(dispute.evidence_hash)
            if dispute.state is before or (before is None and not dispute.is_open):
                continue
            self._told[dispute.evidence_hash] = dispute.state
            kind = "dispute_opened" if dispute.is_open else "dispute_settled"
            out.append(act.Emit(kind, _describe(account, dispute)))


def _describe(account: CoordinatorAccount, dispute: Dispute) -> dict[str, object]:
    fields: dict[str, object] = {
        "epoch": account.epoch,
        "height": dispute.height,
        "accuser": dispute.accuser,
        "trainer": dispute.trainer,
        "reason": describe_reason(dispute.reason),
        "evidence": dispute.evidence_hash.hex(),
    }
    if dispute.is_open:
        return fields
    votes = {"num_guilty": dispute.count_votes(True), "num_not_guilty": dispute.count_votes(False)}
    return fields | {"outcome": dispute.state.name} | votes


def explain_ejection(account: CoordinatorAccount, index: int) -> str:
    """Why client ``index`` was ejected, in plain words."""
    dispute = find_conviction(account, index)
    if dispute is None:
        return "the run's records no longer say why"
    evidence, why = dispute.evidence_hash.hex()[:16], describe_reason(dispute.reason)
    if dispute.trainer == index:
        return f"our result of round {dispute.height} was found to be no honest work: {why} ({evidence})"
    return f"our accusation of client {dispute.trainer} was found to be false ({evidence})"
