"""What the rounds of an epoch leave behind for those who look back at them.

Records are kept here longer than their payloads are: a commitment is looked at a round later, and judged
up to six rounds after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psyche_py.client.targets import ZERO_MOMENTUM, Target
from psyche_py.coordinator.repeats import get_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psyche_py.client.rounds import RoundRecord
    from psyche_py.coordinator.duties import Duty
    from psyche_py.coordinator.state import CoordinatorAccount

KEPT_RECORDS = 64
"""Rounds. Far more than the seven that a judge looks back; a record is a few hundred bytes a client."""


class RoundHistory:
    """``starts_from_zero``: everybody's momentum was zero when the epoch began."""

    def __init__(self, run_id: bytes, epoch: int, *, starts_from_zero: bool) -> None:
        self._run_id, self._epoch = run_id, epoch
        self._starts_from_zero = starts_from_zero
        self._records: dict[int, RoundRecord] = {}
        self._seeds: dict[int, int] = {}
        self._accepted: dict[int, Mapping[int, bytes]] = {}

    def add(self, record: RoundRecord, random_seed: int) -> None:
        """A round has started."""
        self._records[record.height] = record
        self._seeds[record.height] = random_seed
        for kept in (self._records, self._seeds, self._accepted):
            kept.pop(record.height - KEPT_RECORDS, None)

    def add_accepted(self, height: int, payloads: Mapping[int, bytes]) -> None:
        """Hashes of the payloads of round ``height`` that the witnesses accepted, by epoch client index."""
        self._accepted[height] = payloads

    def get_record(self, height: int) -> RoundRecord | None:
        """A round's record, while it is kept."""
        return self._records.get(height)

    def make_target(self, account: CoordinatorAccount, height: int, duty: Duty) -> Target | None:
        """The result of ``duty.trainer`` in round ``height``; None when nothing was due, or not seen."""
        record, seed = self._records.get(height), self._seeds.get(height + 1)
        if record is None or seed is None or duty.trainer not in record.assignment:
            return None
        return Target(
            run=self._run_id,
            epoch=self._epoch,
            height=height,
            step=record.step,
            random_seed=seed,
            verifier=duty.verifier,
            trainer=duty.trainer,
            trainer_key=account.epoch_clients[duty.trainer].p2p_key,
            num_sampled=account.config.verified_tiles,
            ranges=tuple(get_ranges(record.assignment, record.repeats, duty.trainer)),
            before_root=self._get_before_root(height, duty.trainer),
            previous=self._get_previous(height),
        )

    def _get_before_root(self, height: int, trainer: int) -> bytes | None:
        """The root that the trainer committed to last before round ``height``."""
        for earlier in range(height - 1, -1, -1):
            record = self._records.get(earlier)
            if record is None:
                return None
            known = record.candidates.get(trainer, ())
            roots = {record.commitments[digest].momentum_root for digest in known}
            if len(roots) == 1:
                return roots.pop()
            if roots or trainer in record.assignment:
                return None  # it signed two, or may have trained what we did not hear of
        return ZERO_MOMENTUM if self._starts_from_zero else None

    def _get_previous(self, height: int) -> dict[int, bytes | None]:
        """Payloads that a lookahead of round ``height`` can have taken in.

        What the witnesses accepted; else the only one that was announced. Of two we cannot know which it was.
        """
        record = self._records.get(height - 1)
        if record is None:
            return {}
        accepted = self._accepted.get(height - 1, {})
        payloads: dict[int, bytes | None] = {}
        for index in record.assignment:
            known = record.candidates.get(index, ())
            only = record.get_payload_hash(known[0]) if len(known) == 1 else None
            payloads[index] = accepted.get(index, only)
        return payloads


def is_from_zero(account: CoordinatorAccount) -> bool:
    """Whether every trainer's momentum is zero at the start of the epoch: the first one, or a cold start."""
    is_reset = account.is_cold_start_epoch and account.model.cold_start_warmup_steps > 0
    return account.epoch == 0 or is_reset
