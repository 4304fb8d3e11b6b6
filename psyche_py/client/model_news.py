"""What the account says about the model that an epoch starts from, as news for people. Pure.

A run forgets what it trained only where nobody has it any more: then a whole warm-up passes without anybody
being ready, and the account names the model attested before, or at last the run's own checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import HALTED, CheckpointKind

if TYPE_CHECKING:
    from psyche_py.coordinator.repeats import SampleRange
    from psyche_py.coordinator.state import CoordinatorAccount

PEER_KINDS = (CheckpointKind.P2P, CheckpointKind.P2PGcs)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What was accepted in an epoch and is not in our weights, whose digest (32 B) is ``digest``."""

    epoch: int
    digest: bytes
    samples: tuple[SampleRange, ...]


def is_wanted(digest: bytes, wanted: bytes | None) -> bool:
    """Whether a model of this ``digest`` (32 B) is the one that the account names, by all of it or its first
    bytes; any is where no quorum attested one."""
    return wanted is None or digest.startswith(wanted)


class ModelNews:
    """Compares versions of the account; one instance lives as long as the client."""

    def __init__(self) -> None:
        self._before: CoordinatorAccount | None = None
        self._unfinished: Unfinished | None = None

    def take_unfinished(self, unfinished: Unfinished, reason: str, out: list[act.Action]) -> None:
        """We cannot complete an epoch that is over; what that costs shows when the next one begins."""
        self._unfinished = unfinished
        samples = [list(part) for part in unfinished.samples]
        out.append(act.Emit("incomplete", {"epoch": unfinished.epoch, "reason": reason, "samples": samples}))

    def tell(self, account: CoordinatorAccount, out: list[act.Action]) -> None:
        """A newer version of the run's account."""
        before, self._before = self._before, account
        if before is None or not _has_stepped_back(before, account):
            return
        is_own = account.model.checkpoint_kind not in PEER_KINDS
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
        unfinished = self._unfinished
        if unfinished is not None and unfinished.epoch + 1 == account.epoch:
            if account.model_digest is not None and is_wanted(unfinished.digest, account.model_digest):
                out.append(act.ReportLost(unfinished.epoch, unfinished.samples))
            self._unfinished = None


def _has_stepped_back(before: CoordinatorAccount, account: CoordinatorAccount) -> bool:
    """Between two versions the run has given up the model that it wanted, and no owner has named another."""
    if before.model.checkpoint_kind not in PEER_KINDS or before.epoch != account.epoch:
        return False
    if before.run_state in HALTED or account.run_state in HALTED:
        return False
    is_own = account.model.checkpoint_kind not in PEER_KINDS
    return is_own or account.model_digest in before.older_digests
