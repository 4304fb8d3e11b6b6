"""What ``status`` says of verification: who accused whom of what, who was found against, what that cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute


def describe_verification(account: CoordinatorAccount) -> dict[str, Any]:
    """Facts for JSON: disputes, refusals and ejections of the epoch; ``slashed`` are points of the run."""
    from solders.pubkey import Pubkey

    from psyche_py.coordinator.layout import ClientState

    clients = account.epoch_clients
    return {
        "percent": account.config.verification_percent,
        "max_refusals": account.config.max_refusals,
        "slashing_rate_per_client": account.future_rates.slashing_rate_per_client,
        "slashed": sum(entry.slashed for entry in account.entries),
        "disputes": [_describe_dispute(dispute) for dispute in account.disputes],
        "refusals": [
            {"signer": str(Pubkey(client.signer)), "num": client.refusals}
            for client in clients
            if client.refusals
        ],
        "ejected": [
            {
                "signer": str(Pubkey(client.signer)),
                "round": client.exited_height,
                "slashed": account.entries[client.entry].slashed,
                **_explain(account, client.index),
            }
            for client in clients
            if client.state is ClientState.Ejected
        ],
    }


def _describe_dispute(dispute: Dispute) -> dict[str, Any]:
    from solders.pubkey import Pubkey

    from psyche_py.coordinator.reasons import describe_reason

    return {
        "state": dispute.state.name,
        "height": dispute.height,
        "accuser": str(Pubkey(dispute.accuser_signer)),
        "trainer": str(Pubkey(dispute.trainer_signer)),
        "reason": describe_reason(dispute.reason),
        "evidence": dispute.evidence_hash.hex(),
        "tie_breakers": dispute.tie_breakers,
        "num_guilty": dispute.count_votes(True),
        "num_not_guilty": dispute.count_votes(False),
    }


def _explain(account: CoordinatorAccount, index: int) -> dict[str, str]:
    """Why, in words. The account has seven places for disputes: a later one may have taken this one's."""
    from psyche_py.coordinator.convictions import find_conviction
    from psyche_py.coordinator.reasons import describe_reason

    dispute = find_conviction(account, index)
    if dispute is None:
        return {"reason": "the account no longer says why", "evidence": ""}
    why = describe_reason(dispute.reason) if dispute.trainer == index else "its accusation was false"
    return {"reason": why, "evidence": dispute.evidence_hash.hex()}


def show_verification(console: Console, facts: dict[str, Any]) -> None:
    """The same for people: nothing in a run that verifies nothing and in which nobody was slashed."""
    if not facts["percent"] and not facts["slashed"]:
        return
    rate = facts["slashing_rate_per_client"]
    console.print(
        f"{facts['percent']} % of the clients verify; {facts['slashed']} points were slashed (rate {rate})"
    )
    for dispute in facts["disputes"]:
        votes = f"{dispute['num_guilty']} guilty, {dispute['num_not_guilty']} not guilty"
        console.print(
            f"  {dispute['state']}: {dispute['accuser']} accuses {dispute['trainer']} for round "
            f"{dispute['height']}: {dispute['reason']} ({votes}, of {dispute['tie_breakers']}; "
            f"evidence {dispute['evidence'][:16]})"
        )
    for client in facts["refusals"]:
        console.print(f"  {client['signer']} has {client['num']} of {facts['max_refusals']} refusals")
    for client in facts["ejected"]:
        console.print(
            f"  ejected: {client['signer']} in round {client['round']}, slashed {client['slashed']}: "
            f"{client['reason']}"
        )
