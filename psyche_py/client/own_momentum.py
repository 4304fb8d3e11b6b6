"""What a trainer keeps of its own momentum, so that it can show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psyche_py.client.targets import TargetKey
from psyche_py.coordinator.accusations import ROUNDS_TO_JUDGE
from psyche_py.verify import MomentumSnapshot, encode_reveal

if TYPE_CHECKING:
    from psyche_py.distro import DistroOptimizer

KEPT_ANSWER_ROUNDS = ROUNDS_TO_JUDGE + 1


class OwnMomentum:
    """Snapshots of the last two results, and answers to the questions that were drawn.

    An answer is made as soon as the draw is known, before the next training: so two snapshots are enough.
    """

    def __init__(self, optimizer: DistroOptimizer, num_threads: int) -> None:
        self._optimizer, self._num_threads = optimizer, num_threads
        self._snapshots: list[tuple[int, MomentumSnapshot]] = []
        self._answers: dict[TargetKey, bytes] = {}

    def start_epoch(self) -> None:
        """Heights begin anew; a cold start may have changed the momentum."""
        self._snapshots.clear()
        self._answers.clear()

    def prepare_training(self) -> None:
        """Before the first result: the momentum that it starts from."""
        if not self._snapshots:
            self._snapshots.append((-1, self._take(None)))

    def take_result(self, height: int) -> bytes:
        """The result of round ``height`` is in momentum: its root, 32 bytes."""
        spare = self._snapshots.pop(0)[1] if len(self._snapshots) > 1 else None
        self._snapshots.append((height, self._take(spare)))
        return self._snapshots[-1][1].root

    def _take(self, spare: MomentumSnapshot | None) -> MomentumSnapshot:
        optimizer = self._optimizer
        return MomentumSnapshot(optimizer.payload_layout, optimizer.momentum, self._num_threads, spare)

    def prepare_answer(self, key: TargetKey, tiles: Sequence[int]) -> bool:
        """Make the answer about the newest result; False when it is of another round."""
        height = key[0]
        self._answers = {k: a for k, a in self._answers.items() if k[0] > height - KEPT_ANSWER_ROUNDS}
        if len(self._snapshots) < 2 or self._snapshots[-1][0] != height:
            return False
        self._answers[key] = encode_reveal(self._snapshots[-2][1], self._snapshots[-1][1], tiles)
        return True

    def get_answer(self, key: TargetKey) -> bytes | None:
        """A prepared answer. Safe from any thread."""
        return self._answers.get(key)
