"""What the account says about the model that an epoch starts from, as news for people. Pure.

A run forgets what it trained only where nobody has it any more: then a whole warm-up passes without anybody
being ready, and the account names the model attested before, or at last the run's own checkpoint.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import HALTED, NUM_STORED_ROUNDS, SHARED_KINDS
from psyche_py.coordinator.tick import compute_batch_size

if TYPE_CHECKING:
    from psyche_py.coordinator.repeats import SampleRange
    from psyche_py.coordinator.state import CoordinatorAccount


def is_wanted(digest: bytes, wanted: bytes | None) -> bool:
    """Whether a model of this ``digest`` (32 B) is the one that the account names, by all of it or its first
    bytes; any is where no quorum attested one."""
    return wanted is None or digest.startswith(wanted)


class ModelNews:
    """Compares versions of the account; one instance lives as long as the client."""

    def __init__(self) -> None:
        self._before: CoordinatorAccount | None = None

    def tell(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        """A newer version of the run's account."""
        before, self._before = self._before, account
        if before is None or not _has_stepped_back(before, account):
            return
        is_own = account.model.checkpoint_kind not in SHARED_KINDS
        fields: dict[str, object] = {
            "is_checkpoint": is_own,
            "epoch": account.epoch,
            "step": before.model_step,
            "digest": (before.model_digest or b"").hex(),
        }
        if not is_own:
            assert account.model_digest is not None, "else the run's checkpoint would be wanted"
            fields["next"] = account.model_digest.hex()
        else:
            fields["next"] = account.model.checkpoint_origin.name
        out.append(act.Emit("model_lost", fields))


def compute_forgotten(account: CoordinatorAccount, digest: bytes) -> tuple[SampleRange, ...]:
    """Samples that were trained in the last epoch and are not in ``digest`` (32 B), the model of this one.

    The next epoch begins with the samples whose results nobody was to apply any more. Those before were to be
    applied by the epoch's end; where the model is of an earlier round some are in no model that is left.
    """
    if account.model.checkpoint_kind not in SHARED_KINDS:
        return ()
    step = account.model_step
    if account.model_digest is None and account.older_digests and digest.startswith(account.older_digests[0]):
        step = account.older_step
    num_rounds = account.start_step - 1 - step  # rounds may be under way when a slow client has its model
    if step == 0 or not 0 < num_rounds < NUM_STORED_ROUNDS:
        return ()
    end = account.epoch_start_data_index
    most = max(account.config.global_batch_size_start, account.config.global_batch_size_end)
    first = end
    for _ in range(num_rounds):
        possible = range(max(first - most, 0), first)
        place = bisect_left(
            possible, first, key=lambda index: index + compute_batch_size(account.record, index)
        )
        first = possible[place] if place < len(possible) else first
    return ((first, end - 1),) if first < end else ()


def _has_stepped_back(before: CoordinatorAccount, account: CoordinatorAccount) -> bool:
    """Between two versions the run has given up the model that it wanted, and no owner has named another."""
    if before.model.checkpoint_kind not in SHARED_KINDS or before.epoch != account.epoch:
        return False
    if before.run_state in HALTED or account.run_state in HALTED:
        return False
    is_own = account.model.checkpoint_kind not in SHARED_KINDS
    return is_own or account.model_digest in before.older_digests
