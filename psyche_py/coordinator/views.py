"""Parts of the run's account as small objects, and look-ups on its raw record.

The views are frozen: they show the account at the moment it was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from psyche_py.coordinator.layout import (
    GUILTY_BIT,
    MAX_CLIENTS,
    MAX_U32,
    MAX_U64,
    NUM_STORED_ROUNDS,
    ClientState,
    DisputeState,
    Record,
    get_bit_indices,
    get_bitmap,
)


@dataclass(frozen=True, slots=True)
class Witness:
    """What one elected witness attested; ``participants`` is a bitmap by epoch client index."""

    index: int
    participants: int
    broadcast_bloom: tuple[int, ...]
    broadcast_merkle: bytes
    state_digest: bytes


@dataclass(frozen=True, slots=True)
class EpochClient:
    """A client of the epoch. ``entry`` is its place in the account's entries, ``index`` in the epoch."""

    index: int
    entry: int
    state: ClientState
    exited_height: int
    attested_rounds: int
    contradictions: int
    silent_rounds: int
    refusals: int
    signer: bytes
    p2p_key: bytes
    address_hint: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """A wallet that joined the run at some time. Points are whole numbers; ``active`` 0 means it left.

    ``authorization`` are the first 24 bytes of the address of the authorization it joined with.
    """

    index: int
    signer: bytes
    p2p_key: bytes
    address_hint: bytes
    earned: int
    slashed: int
    active: int
    last_epoch: int
    claimed: int
    authorization: bytes

    @property
    def claimable(self) -> int:
        """Points earned and neither slashed nor paid out."""
        return max(self.earned - self.slashed - self.claimed, 0)

    @property
    def debt(self) -> int:
        """Points slashed beyond what it had: later earnings or a bond pay them."""
        return compute_debt(self.earned, self.slashed, self.claimed)


@dataclass(frozen=True, slots=True)
class Rates:
    """Points per epoch: shared by all who attested rounds, and taken from an ejected client."""

    earning_rate_total_shared: int
    slashing_rate_per_client: int


@dataclass(frozen=True, slots=True)
class Dispute:
    """An accusation that stands in the account; ``accuser``, ``trainer`` and voters are epoch client indices.

    ``height`` is the round whose result is disputed, ``judge_height`` the one whose committee judges it (0:
    none has started since). ``votes`` are (voter, whether it says guilty), in order of arrival.
    """

    slot: int
    evidence_hash: bytes
    height: int
    judge_height: int
    accuser: int
    trainer: int
    accuser_signer: bytes
    trainer_signer: bytes
    state: DisputeState
    reason: int
    tie_breakers: int
    votes: tuple[tuple[int, bool], ...]

    @property
    def is_open(self) -> bool:
        """Whether it is still to be decided."""
        return self.state is DisputeState.Open

    def count_votes(self, is_guilty: bool) -> int:
        """Votes of one side."""
        return sum(vote == is_guilty for _, vote in self.votes)


def read_disputes(record: Record) -> tuple[Dispute, ...]:
    """The account's disputes, open and settled, in order of their slots."""
    clients, entries = record["epoch_state"]["clients"]["entry"], record["entries"]["signer"]
    return tuple(
        Dispute(
            slot=slot,
            evidence_hash=d["evidence_hash"].tobytes(),
            height=int(d["height"]),
            judge_height=int(d["judge_height"]),
            accuser=int(d["accuser"]),
            trainer=int(d["trainer"]),
            accuser_signer=entries[clients[d["accuser"]]].tobytes(),
            trainer_signer=entries[clients[d["trainer"]]].tobytes(),
            state=DisputeState(int(d["state"])),
            reason=int(d["reason"]),
            tie_breakers=int(d["tie_breakers"]),
            votes=tuple(
                (vote & ~GUILTY_BIT, bool(vote & GUILTY_BIT))
                for vote in d["votes"][: d["num_votes"]].tolist()
            ),
        )
        for slot, d in enumerate(record["disputes"])
        if d["state"] != DisputeState.Free
    )


class Round:
    """One slot of the ring of four rounds. ``index`` always means an epoch client index."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.data_index = int(record["data_index"])
        self.random_seed = int(record["random_seed"])
        self.height = int(record["height"])
        self.step = int(record["step"])
        self.batch_size = int(record["batch_size"])
        self.clients_len = int(record["clients_len"])
        self.num_witnesses = int(record["num_witnesses"])
        self.tie_breaker_tasks = int(record["tie_breaker_tasks"])
        self.apply_only = bool(record["apply_only"])
        self.healthy = get_bitmap(record["healthy"])
        self.elected = get_bitmap(record["elected"])

    @cached_property
    def healthy_indices(self) -> tuple[int, ...]:
        """Clients that were Healthy when the round started, ascending."""
        return get_bit_indices(self.healthy)

    @cached_property
    def elected_indices(self) -> tuple[int, ...]:
        """Clients elected as witnesses, ascending."""
        return get_bit_indices(self.elected)

    @cached_property
    def healthy_set(self) -> frozenset[int]:
        """The same as a set."""
        return frozenset(self.healthy_indices)

    @cached_property
    def witnesses(self) -> tuple[Witness, ...]:
        """The witnesses stored so far, in order of arrival."""
        return tuple(
            Witness(
                index=int(w["index"]),
                participants=get_bitmap(w["participants"]),
                broadcast_bloom=tuple(w["broadcast_bloom"].tolist()),
                broadcast_merkle=w["broadcast_merkle"].tobytes(),
                state_digest=w["state_digest"].tobytes(),
            )
            for w in self._record["witnesses"][: self.num_witnesses]
        )

    @cached_property
    def bloom_bitmaps(self) -> tuple[int, ...]:
        """Each stored witness's filter as one whole number of 1,024 bits."""
        stored = self._record["witnesses"]["broadcast_bloom"][: self.num_witnesses]
        return tuple(int.from_bytes(words.tobytes(), "little") for words in stored)

    def compute_participant_votes(self) -> list[int]:
        """For every epoch client index (256), how many stored witnesses saw it take part."""
        return compute_participant_votes(self._record)


def compute_participant_votes(round_record: Record) -> list[int]:
    """Votes by epoch client index (256 of them) of the witnesses stored in a ROUND record."""
    num = int(round_record["num_witnesses"])
    packed = np.ascontiguousarray(round_record["witnesses"]["participants"][:num]).view(np.uint8)
    bits = np.unpackbits(packed.reshape(num, MAX_CLIENTS // 8), axis=1, bitorder="little")
    votes: list[int] = bits.sum(axis=0, dtype=np.int64).tolist()
    return votes


# ---- shared by views and transitions, on the raw record ---------------------------------------------------


def get_current_round(record: Record) -> Record:
    """The round in the ring's head."""
    epoch = record["epoch_state"]
    return epoch["rounds"][int(epoch["rounds_head"])]


def get_earlier_round(record: Record, back: int) -> Record | None:
    """The round ``back`` (1 to 3) before the current one; None when the epoch is younger than that."""
    epoch = record["epoch_state"]
    if int(get_current_round(record)["height"]) < back:
        return None
    return epoch["rounds"][(int(epoch["rounds_head"]) - back) % NUM_STORED_ROUNDS]


def compute_debt(earned: int, slashed: int, claimed: int) -> int:
    """Points slashed beyond what was earned and not claimed."""
    return min(max(min(slashed + claimed, MAX_U64) - earned, 0), slashed)


def get_num_healthy(record: Record) -> int:
    """Epoch clients in state Healthy."""
    state = record["epoch_state"]
    clients = state["clients"]["state"][: int(state["num_clients"])]
    return int(np.count_nonzero(clients == ClientState.Healthy))


def get_pending(record: Record) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Entry indices whose ``active`` equals ``next_active``, in entry order."""
    active = record["entries"]["active"][: int(record["num_entries"])]
    return np.flatnonzero(active == record["next_active"])


def find_entry(record: Record, signer: bytes) -> int | None:
    """Index of the entry of ``signer`` (32 bytes), or None."""
    signers = record["entries"]["signer"][: int(record["num_entries"])]
    matches = np.flatnonzero((signers == np.frombuffer(signer, dtype=np.uint8)).all(axis=1))
    return int(matches[0]) if matches.size else None


def find_p2p_key(record: Record, p2p_key: bytes) -> int | None:
    """Index of the entry with ``p2p_key`` (32 bytes), or None."""
    keys = record["entries"]["p2p_key"][: int(record["num_entries"])]
    matches = np.flatnonzero((keys == np.frombuffer(p2p_key, dtype=np.uint8)).all(axis=1))
    return int(matches[0]) if matches.size else None


def find_replaceable_entry(record: Record) -> int | None:
    """The first entry that is out of the coming epoch and of the newest one, and has no points to claim.

    One that owes points stays for an epoch, in which anybody may have its bond pay them.
    """
    epoch_number = int(record["progress"]["epoch"])
    epoch, entries = record["epoch_state"], record["entries"][: int(record["num_entries"])]
    in_epoch = set(epoch["clients"]["entry"][: int(epoch["num_clients"])].tolist())
    idle = np.flatnonzero(entries["active"] != record["next_active"]).tolist()
    for number in idle:
        earned, slashed, claimed = (int(entries[number][name]) for name in ("earned", "slashed", "claimed"))
        is_old = min(int(entries[number]["last_epoch"]) + 1, MAX_U32) < epoch_number
        is_missed = earned > slashed + claimed or (not is_old and compute_debt(earned, slashed, claimed) > 0)
        if number not in in_epoch and not is_missed:
            return int(number)
    return None


def find_epoch_client(record: Record, entry: int) -> int | None:
    """Index of the epoch client that is ``entry``, or None."""
    state = record["epoch_state"]
    matches = np.flatnonzero(state["clients"]["entry"][: int(state["num_clients"])] == entry)
    return int(matches[0]) if matches.size else None
