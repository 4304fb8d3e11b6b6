"""What must hold whatever goes wrong: equal digests, every sample once, every point paid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import ROUND_STATES, SHARED_KINDS, RunState
from psyche_py.coordinator.witness import compute_quorum

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.client import SimClient

Batches = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply did: batches whose results went into the weights, batches that are assigned again."""

    trained: Batches
    untrained: Batches


@dataclass(frozen=True, slots=True)
class Round:
    """How long a round took, from its start to its end (virtual seconds)."""

    height: int
    num_clients: int
    seconds: float
    slowest_training: float


@dataclass(frozen=True, slots=True)
class Samples:
    """What became of the samples of a run; ranges are first and last id, both included.

    ``trained``: so many are in the weights; ``again``: of these, a round left so many untrained and a later
    one trained them. ``twice``: in the weights more than once. ``lost``: reported lost for good. ``missing``:
    nobody knows.
    """

    trained: int
    again: int
    twice: Batches
    lost: Batches
    missing: Batches


@dataclass(frozen=True, slots=True)
class _Tally:
    """By sample id: how often it is in the weights and was reported lost, whether a round left it untrained,
    and whether that is all that is said of it. ``unapplied``: height and epoch start of rounds."""

    trained: np.ndarray
    lost: np.ndarray
    untrained: np.ndarray
    said: np.ndarray
    unapplied: tuple[tuple[int, int], ...]


class Ledger:
    """Listens to the chain and to every client. ``problems`` are sentences; none is what we want."""

    def __init__(self) -> None:
        self.unequal_digests = 0
        self.models_lost = 0
        self.forgotten: dict[int, tuple[tuple[int, int], ...]] = {}
        self.num_forged = 0
        self.false_applied: set[bytes] = set()
        """Payloads that are not their batch's and are in the weights."""
        self.problems: list[str] = []
        self.rounds: list[Round] = []
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.applied: dict[tuple[int, int], Applied] = {}
        self._digests: dict[object, bytes] = {}
        self.lost: dict[int, Batches] = {}
        """Samples reported lost for good, by epoch."""
        self._settled: list[tuple[int, int, int]] = []  # number, start and last height of every epoch
        self._ranges: dict[tuple[int, int], tuple[int, int]] = {}
        self._round_start = 0.0
        self._training: dict[int, float] = {}
        self._is_paid = False

    # ---- forks --------------------------------------------------------------------------------------

    def save(self) -> tuple[object, ...]:
        """What we know of the chain."""
        lists = (list(self._settled), list(self.rounds), list(self.problems))
        return (*lists, dict(self._ranges), self._round_start, self._is_paid)

    def restore(self, saved: tuple[Any, ...]) -> None:
        """The chain has gone back to where :meth:`save` was called."""
        settled, rounds, problems, ranges, self._round_start, self._is_paid = saved
        self._settled, self.rounds, self.problems = list(settled), list(rounds), list(problems)
        self._ranges = dict(ranges)

    # ---- clients ------------------------------------------------------------------------------------

    def take_refusal(self, key: str, error: str) -> None:
        """The program refused a transaction."""
        self.refusals[key, error] += 1

    def take_training(self, step: int, seconds: float) -> None:
        """A client begins to train."""
        self._training[step] = max(self._training.get(step, 0.0), seconds)

    def take_apply(self, client: SimClient, action: act.Apply) -> None:
        """A client has applied the results due at a round."""
        session = client.machine.session
        if session is None:
            return
        entry = Applied(tuple(sorted(action.trained)), tuple(sorted(action.untrained)))
        place = (session.start, action.height)
        for digest in client.world.forged.intersection(action.digests):
            self.num_forged += 1
            self.problems.append(f"client {client.number} applies {digest.hex()[:8]}, which nobody attested")
        self.false_applied.update(client.world.court.false_payloads.intersection(action.digests))
        if self.applied.setdefault(place, entry) != entry:
            self._differ(client, f"applies other batches at {place}")
        self._compare(client, ("apply", *place))

    def take_saved(self, client: SimClient, action: act.SaveEpoch) -> None:
        """A client has ended an epoch."""
        self._compare(client, ("saved", action.epoch))
        if self.lost.setdefault(action.epoch, action.lost) != action.lost:
            self._differ(client, f"reports other samples lost in epoch {action.epoch}")

    def take_forgotten(self, epoch: int, samples: tuple[tuple[int, int], ...]) -> None:
        """A client begins with a model that lacks what the end of an epoch has trained, and says so."""
        self.forgotten[epoch] = samples

    def take_loaded(self, client: SimClient) -> None:
        """A client has loaded an epoch's model."""
        session = client.machine.session
        if session is not None:
            self._compare(client, ("loaded", session.start))

    def _compare(self, client: SimClient, place: object) -> None:
        if client.is_tainted:
            return
        if self._digests.setdefault(place, client.weights) != client.weights:
            self._differ(client, f"has other weights at {place}")

    def _differ(self, client: SimClient, what: str) -> None:
        self.unequal_digests += 1
        self.problems.append(f"client {client.number} {what}")

    # ---- the chain ----------------------------------------------------------------------------------

    def take_change(self, now: float, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        """An instruction has changed the account."""
        if self._is_new_round(before, after):
            self._end_round(now, before)
            self._round_start = now
            round_ = after.current_round
            place = (after.start_timestamp, round_.height)
            self._ranges[place] = (round_.data_index, round_.data_index + round_.batch_size)
        if before.run_state in ROUND_STATES:
            self._note_attested(after, before.current_round.height)
        if after.epoch != before.epoch:
            self._end_epoch(before, after)
        if before.run_state is RunState.WaitingForMembers and after.run_state is RunState.Warmup:
            self._is_paid = False

    def _is_new_round(self, before: CoordinatorAccount, after: CoordinatorAccount) -> bool:
        if after.run_state is not RunState.RoundTrain:
            return False
        return (
            before.run_state is RunState.Warmup or after.current_round.height != before.current_round.height
        )

    def _end_round(self, now: float, before: CoordinatorAccount) -> None:
        if before.run_state is RunState.Warmup:
            return
        round_ = before.current_round
        slowest = self._training.get(round_.step, 0.0)
        self.rounds.append(Round(round_.height, round_.clients_len, now - self._round_start, slowest))

    def _note_attested(self, account: CoordinatorAccount, height: int) -> None:
        """Whether anybody of this epoch is due a share: a quorum saw somebody deliver."""
        current, previous = account.get_round_at(height), account.get_round_at(height - 1)
        if self._is_paid or current is None or previous is None or previous.apply_only:
            return
        votes = max(current.compute_participant_votes())
        self._is_paid = votes >= compute_quorum(current.elected.bit_count())

    def _end_epoch(self, before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        height = before.current_round.height
        self._settled.append((before.epoch, before.start_timestamp, height))
        paid = sum(e.earned for e in after.entries) - sum(e.earned for e in before.entries)
        rate = before.current_rates.earning_rate_total_shared
        attested = sum(c.attested_rounds for c in before.epoch_clients)
        if paid != (rate if attested else 0):
            self.problems.append(f"epoch {before.epoch} paid {paid} of {rate} points")
        if attested and not self._is_paid:
            self.problems.append(f"epoch {before.epoch} paid, though no quorum attested anything")

    def take_fallback(self, before: CoordinatorAccount, expected: bytes | None, got: bytes | None) -> None:
        """An epoch begins from the run's checkpoint instead of its clients' model."""
        if expected is not None and expected != got:
            self.models_lost += 1
            self.problems.append(f"epoch {before.epoch} begins from an older model than its clients had")

    def get_newest_weights(self) -> bytes | None:
        """What the newest epoch that applied anything ended with; None when there is none."""
        for _, start, height in reversed(self._settled):
            if height >= 2:
                return self._digests.get(("apply", start, height))
        return None

    # ---- the end ------------------------------------------------------------------------------------

    def count_lost_batches(self, account: CoordinatorAccount) -> int:
        """Rounds' batches of which a sample was neither applied exactly once nor reported lost.

        Of an epoch that nobody saw to its end, what its clients named as untrained counts as reported.
        """
        tally = self._tally(account)
        for height, start in tally.unapplied:
            self.problems.append(f"nobody applied round {height} of the epoch of {start}")
        times = tally.trained + tally.lost
        wrong = int(np.where(tally.said, times > 1, times != 1).sum())
        if wrong and not tally.unapplied:
            self.problems.append(f"{wrong} of {len(times)} samples are not accounted for exactly once")
            return 1
        return len(tally.unapplied)

    def count_samples(self, account: CoordinatorAccount) -> Samples:
        """What became of every sample of the epochs that are over."""
        tally = self._tally(account)
        is_trained, is_lost = tally.trained > 0, tally.lost > 0
        return Samples(
            trained=int(is_trained.sum()),
            again=int((is_trained & tally.untrained).sum()),
            twice=find_ranges(tally.trained > 1),
            lost=find_ranges(is_lost | (tally.said & ~is_trained)),
            missing=find_ranges(~(is_trained | is_lost | tally.said)),
        )

    def _tally(self, account: CoordinatorAccount) -> _Tally:
        end = account.epoch_start_data_index
        trained, lost = np.zeros(end, dtype=np.int32), np.zeros(end, dtype=np.int32)
        untrained, said = np.zeros(end, dtype=bool), np.zeros(end, dtype=bool)
        unapplied: list[tuple[int, int]] = []
        for first, final in (part for ranges in self.lost.values() for part in ranges):
            lost[first : final + 1] += 1
        for first, final in (part for ranges in self.forgotten.values() for part in ranges):
            # an epoch's end that is forgotten may have been reported lost by those who saw it
            lost[first : final + 1] = np.maximum(lost[first : final + 1], 1)
        for epoch, start, last in self._settled:
            for height in range(last - 1):
                if self._is_forgotten(epoch, *self._ranges[start, height]):
                    continue  # whoever has applied it is gone with its weights
                entry = self.applied.get((start, height + 2))
                if entry is None:
                    if self._ranges[start, height][0] < self._ranges[start, height][1]:
                        unapplied.append((height, start))
                    continue
                for first, final in entry.trained:
                    trained[first : final + 1] += 1
                for first, final in entry.untrained:
                    untrained[first : final + 1] = True
                    said[first : final + 1] |= epoch not in self.lost
        return _Tally(trained, lost, untrained, said, tuple(unapplied))

    def _is_forgotten(self, epoch: int, first: int, end: int) -> bool:
        return any(low <= first and end - 1 <= high for low, high in self.forgotten.get(epoch, ()))

    @property
    def num_untrained(self) -> int:
        """Ranges of samples that a round did not train, most of which a later one did."""
        return sum(len(entry.untrained) for entry in self.applied.values())


def is_from_checkpoint(account: CoordinatorAccount) -> bool:
    """Clients take the epoch's model from the run's checkpoint, not from each other."""
    return account.model.checkpoint_kind not in SHARED_KINDS


def find_ranges(mask: np.ndarray) -> Batches:
    """First and last index (both included) of every stretch of True in a mask of one dimension."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return tuple((int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))


def count_ids(ranges: Batches) -> int:
    """How many ids are in ranges that do not overlap."""
    return sum(last - first + 1 for first, last in ranges)
