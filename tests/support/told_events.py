"""What the coordinator program must tell in its log of a step, from the account before and after it."""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Iterator

from psyche_py.coordinator.layout import DisputeState
from psyche_py.coordinator.reasons import REFUSAL_REASONS
from psyche_py.coordinator.state import CoordinatorAccount, Dispute

DATA_LOG = "Program data: "
LAYOUTS = {
    "Transition": struct.Struct("<8s32sQHIIBBq"),
    "DisputeOpened": struct.Struct("<8s32sQHI32s32s32sB"),
    "DisputeSettled": struct.Struct("<8s32sQHI32s32s32sBBBBQ"),
}
UNTOLD = (
    "advance",
    "plant",
    "authorize",
    "bond",
    "init_coordinator",
    "free_coordinator",
    "update",
    "migrate",
)
"""Events that never make a transition, although run state or step may differ after them."""
Told = tuple[int | bytes, ...]


def _get_tag(name: str) -> bytes:
    return hashlib.sha256(f"event:{name}".encode()).digest()[:8]


def _get_place(account: CoordinatorAccount) -> tuple[int, int, int]:
    """What changes with every transition."""
    return int(account.run_state), account.step, account.current_round.height


def make_told(
    address: bytes,
    name: str,
    arguments: dict[str, object],
    before: CoordinatorAccount,
    after: CoordinatorAccount,
) -> Iterator[Told]:
    """The fields of the events of an accepted step, as the program packs them, in its order."""
    if name in UNTOLD or before is after:
        return
    opened = None
    if name == "verdict":
        opened = next(d for d in after.disputes if d.evidence_hash.hex() == arguments["evidence_hash"])
        yield _make_dispute("DisputeOpened", address, before.epoch, after, opened, opened.reason)
    if _get_place(before) != _get_place(after):
        yield _make_transition(address, before, after)
    open_slots = {d.slot for d in before.disputes if d.is_open} | ({opened.slot} if opened else set())
    for d in after.disputes:
        if d.slot in open_slots and not d.is_open:
            numbers = (int(d.state), d.reason, d.count_votes(True), d.count_votes(False))
            slashed = _compute_slashed(before, d)
            yield _make_dispute("DisputeSettled", address, before.epoch, after, d, *numbers, slashed)


def _compute_slashed(before: CoordinatorAccount, d: Dispute) -> int:
    is_lost = d.state is DisputeState.Guilty or (
        d.state is DisputeState.NotGuilty and d.reason not in REFUSAL_REASONS
    )
    return before.current_rates.slashing_rate_per_client if is_lost else 0


def _make_transition(address: bytes, before: CoordinatorAccount, after: CoordinatorAccount) -> Told:
    return (
        _get_tag("Transition"),
        address,
        after.nonce,
        after.epoch,
        after.step,
        after.current_round.height,
        int(before.run_state),
        int(after.run_state),
        after.run_state_start,
    )


def _make_dispute(
    name: str, address: bytes, epoch: int, after: CoordinatorAccount, d: Dispute, *numbers: int
) -> Told:
    parties = (d.accuser_signer, d.trainer_signer)
    return (_get_tag(name), address, after.nonce, epoch, d.height, d.evidence_hash, *parties, *numbers)


def parse_told(line: str) -> Told:
    """The same from a line of a transaction's log."""
    data = base64.b64decode(line.removeprefix(DATA_LOG))
    layouts = [layout for name, layout in LAYOUTS.items() if data[:8] == _get_tag(name)]
    is_known = len(layouts) == 1 and layouts[0].size == len(data)
    return layouts[0].unpack(data) if is_known else (data,)
