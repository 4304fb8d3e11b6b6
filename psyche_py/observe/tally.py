"""What a client's events add up to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from psyche_py.observe.events import Event


@dataclass
class ClientTally:
    """Running totals of one client, fed event by event. Losses are nats per token, by step.

    Samples by first and last number: ``applied`` are in the weights (by step), ``untrained`` were not
    delivered and are assigned again, ``lost`` are those that no round of their epoch could train (by epoch).
    ``disputes``: evidence hash (hex) -> "open" or the outcome.

    ``max_kept``: of everything that grows with the run only so many are kept, the newest; None: all of them,
    for whoever has to account for a whole run.
    """

    name: str = ""
    max_kept: int | None = None
    run_state: str = "-"
    epoch: int = 0
    step: int = 0
    height: int = -1
    num_healthy: int = 0
    peers: int = 0
    punched: int = 0
    relayed: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    epoch_digests: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    train_seconds: float = 0.0
    num_rounds: int = 0
    num_verified: int = 0
    num_accused: int = 0
    disputes: dict[str, str] = field(default_factory=dict)
    payload_bytes: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    applied: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    untrained: list[tuple[int, int]] = field(default_factory=list)
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    model_source: str = ""
    checkpoint: str = ""
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    outcome: str = ""

    def add(self, event: Event) -> None:
        """Count one event; kinds that do not matter here are passed over."""
        handler = getattr(self, f"_on_{event['kind']}", None)
        if handler is not None:
            handler(event)
            if self.max_kept is not None:
                self._forget(self.max_kept)

    def _forget(self, max_kept: int) -> None:
        by_time: tuple[dict[Any, Any], ...] = (
            self.losses,
            self.digests,
            self.epoch_digests,
            self.disputes,
            self.applied,
            self.lost,
        )
        for kept in by_time:
            while len(kept) > max_kept:
                del kept[next(iter(kept))]
        for listed in (self.untrained, self.warnings):
            del listed[: max(0, len(listed) - max_kept)]

    def _on_state(self, e: dict[str, Any]) -> None:
        self.run_state, self.epoch, self.step = e["run_state"], e["epoch"], e["step"]
        self.height, self.num_healthy = e["height"], e["num_healthy"]

    def _on_peers(self, e: dict[str, Any]) -> None:
        self.peers = e["connected"]
        ways = e.get("ways", {})
        self.punched, self.relayed = ways.get("punched", 0), ways.get("through_relay", 0)

    def _on_train(self, e: dict[str, Any]) -> None:
        if e["loss"] is not None:
            self.losses[e["step"]] = e["loss"]
        self.tokens += e["tokens"]
        self.train_seconds += e["seconds"]

    def _on_published(self, e: dict[str, Any]) -> None:
        self.num_rounds += 1
        self.payload_bytes += e["bytes"]

    def _on_verified(self, e: dict[str, Any]) -> None:
        self.num_verified += 1
        self.num_accused += e["is_accused"]

    def _on_dispute_opened(self, e: dict[str, Any]) -> None:
        self.disputes[e["evidence"]] = "open"

    def _on_dispute_settled(self, e: dict[str, Any]) -> None:
        self.disputes[e["evidence"]] = e["outcome"]

    def _on_ejected(self, e: dict[str, Any]) -> None:
        self.outcome = "ejected"

    def _on_apply(self, e: dict[str, Any]) -> None:
        self.digests[self.epoch, e["step"]] = e["digest"]
        self.applied[e["step"]] = [(a, b) for a, b in e["trained"]]
        self.untrained += [(a, b) for a, b in e["untrained"]]

    def _on_lost(self, e: dict[str, Any]) -> None:
        self.lost[e["epoch"]] = [(a, b) for a, b in e["samples"]]

    def _on_digest(self, e: dict[str, Any]) -> None:
        self.epoch_digests[e["epoch"]] = e["digest"]

    def _on_bytes(self, e: dict[str, Any]) -> None:
        self.bytes_sent, self.bytes_received = e["sent"], e["received"]

    def _on_model_loaded(self, e: dict[str, Any]) -> None:
        self.model_source = e["source"]

    def _on_checkpoint(self, e: dict[str, Any]) -> None:
        self.checkpoint = e["path"]

    def _on_warning(self, e: dict[str, Any]) -> None:
        self.warnings.append(e["message"])

    def _on_error(self, e: dict[str, Any]) -> None:
        self.error = e["message"]

    def _on_left(self, e: dict[str, Any]) -> None:
        self.outcome = "left"

    def _on_finished(self, e: dict[str, Any]) -> None:
        self.outcome = "finished"


def compute_mean_losses(tallies: list[ClientTally]) -> dict[int, float]:
    """Mean training loss of each step over the clients that trained in it."""
    steps = sorted({step for tally in tallies for step in tally.losses})
    means = {}
    for step in steps:
        values = [tally.losses[step] for tally in tallies if step in tally.losses]
        means[step] = sum(values) / len(values)
    return means


def find_unaccounted(tallies: list[ClientTally], num_samples: int) -> list[int]:
    """Which of a run's first ``num_samples`` samples were neither applied exactly once nor reported lost.

    A sample that is both counts as unaccounted too. The clients' digests say whether they agree.
    """
    applied = {step: ranges for tally in tallies for step, ranges in tally.applied.items()}
    lost = {epoch: ranges for tally in tallies for epoch, ranges in tally.lost.items()}
    times = Counter(
        sample
        for ranges in (*applied.values(), *lost.values())
        for first, last in ranges
        for sample in range(first, last + 1)
    )
    return [sample for sample in range(num_samples) if times[sample] != 1]


def are_digests_equal(tallies: list[ClientTally]) -> bool:
    """Whether all clients report one digest wherever two of them report any. False when none does."""
    seen: dict[tuple[str, object], set[str]] = {}
    for tally in tallies:
        for place, digest in tally.digests.items():
            seen.setdefault(("round", place), set()).add(digest)
        for epoch, digest in tally.epoch_digests.items():
            seen.setdefault(("epoch", epoch), set()).add(digest)
    return bool(seen) and all(len(digests) == 1 for digests in seen.values())
