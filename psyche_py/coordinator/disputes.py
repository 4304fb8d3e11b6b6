"""What becomes of accusations, on the raw record: seats for tie-breakers, votes, outcomes, the end of time.

The program has the same in ``rules/dispute.rs``. docs/protocol.md says why each rule is as it is.
"""

from __future__ import annotations

from psyche_py.coordinator.layout import (
    GUILTY_BIT,
    MAX_U8,
    MAX_U32,
    MAX_U64,
    NUM_STORED_ROUNDS,
    ClientState,
    DisputeState,
    Record,
    get_bitmap,
)
from psyche_py.coordinator.reasons import REFUSAL_REASONS
from psyche_py.coordinator.views import get_current_round

NUM_PARTIES = 2
"""A seat more for each party: neither judges, and both may have been drawn."""
JUDGES_PAY = 2
"""Rounds that a voice with the majority is credited: with a third of the judges too late, a look pays on
average."""
LOSS = 3
"""Rounds that a voice against the majority loses."""


def is_open(dispute: Record) -> bool:
    """Whether it is still to be decided."""
    return int(dispute["state"]) == DisputeState.Open


def has_unjudged(record: Record) -> bool:
    """Whether an open dispute waits for the round that is to judge it."""
    return any(is_open(d) and d["judge_height"] == 0 for d in record["disputes"])


def has_judged(record: Record) -> bool:
    """Whether an open dispute is being judged."""
    return any(is_open(d) and d["judge_height"] != 0 for d in record["disputes"])


def is_party(record: Record, entry: int) -> bool:
    """Whether the client with this entry is a party of an open dispute."""
    clients = record["epoch_state"]["clients"]
    return any(
        is_open(d) and entry in (int(clients["entry"][d["accuser"]]), int(clients["entry"][d["trainer"]]))
        for d in record["disputes"]
    )


def find_slot(record: Record) -> int | None:
    """Where the next dispute goes: over the oldest that is not open, so that what was judged a moment ago
    cannot be brought up again. None when all are open."""
    settled = [slot for slot, d in enumerate(record["disputes"]) if not is_open(d)]
    return min(settled, key=lambda slot: int(record["disputes"]["height"][slot]), default=None)


def seat_judges(record: Record) -> int:
    """What a starting round, whose clients are set, does to disputes; returns its tie-breakers' seats.

    Those without judges get them here, unless everybody is a party; those whose round leaves the ring are
    over.
    """
    current = get_current_round(record)
    height, healthy, num = int(current["height"]), get_bitmap(current["healthy"]), int(current["clients_len"])
    wanted, seats = int(record["config"]["num_tie_breakers"]), 0
    for d in record["disputes"]:
        if not is_open(d):
            continue
        if d["judge_height"] == 0:
            here = sum(healthy >> int(d[party]) & 1 for party in ("accuser", "trainer"))
            d["judge_height"] = height
            d["tie_breakers"] = min(wanted, num - here)
            if d["tie_breakers"] == 0:
                d["state"] = DisputeState.Undecided
            else:
                seats = min(wanted + NUM_PARTIES, num)
        elif int(d["judge_height"]) + NUM_STORED_ROUNDS <= height:
            _leave_undecided(record, d)
    return seats


def expire_all(record: Record) -> None:
    """The end of an epoch: what is open stays undecided."""
    for d in record["disputes"]:
        if is_open(d):
            _leave_undecided(record, d)


def _leave_undecided(record: Record, d: Record) -> None:
    """Nobody is convicted; but what more than half of the judges say is worth their look all the same."""
    d["state"] = DisputeState.Undecided
    num_guilty = len(_get_voters(d, True))
    num_not_guilty = int(d["num_votes"]) - num_guilty
    if 2 * max(num_guilty, num_not_guilty) > int(d["tie_breakers"]):
        _pay_voices(record, d, num_guilty > num_not_guilty)


def compute_needed(num_tie_breakers: int, *, is_guilty: bool, reason: int) -> int:
    """Votes that decide: two thirds, rounded up. Three quarters where no evidence can show that the trainer
    is guilty, since it is said not to have answered."""
    if is_guilty and reason in REFUSAL_REASONS:
        return -(-3 * num_tie_breakers // 4)
    return -(-2 * num_tie_breakers // 3)


def _get_voters(d: Record, is_guilty: bool) -> list[int]:
    votes = d["votes"][: int(d["num_votes"])].tolist()
    return [vote & ~GUILTY_BIT for vote in votes if bool(vote & GUILTY_BIT) == is_guilty]


def add_vote(record: Record, slot: int, index: int, is_guilty: bool) -> None:
    """Store a tie-breaker's vote. The side that has as many as it needs wins at once."""
    d = record["disputes"][slot]
    num = int(d["num_votes"])
    d["votes"][num] = index | (GUILTY_BIT if is_guilty else 0)
    d["num_votes"] = num + 1
    needed = compute_needed(int(d["tie_breakers"]), is_guilty=is_guilty, reason=int(d["reason"]))
    if len(_get_voters(d, is_guilty)) >= needed:
        d["state"] = DisputeState.Guilty if is_guilty else DisputeState.NotGuilty
        _decide(record, d, is_guilty)
        _pay_voices(record, d, is_guilty)


def _decide(record: Record, d: Record, is_guilty: bool) -> None:
    """The loser is Ejected and slashed. A refusal that was answered after all slashes nobody, since a line
    can fail; it counts against both."""
    if is_guilty:
        _convict(record, int(d["trainer"]))
    elif int(d["reason"]) in REFUSAL_REASONS:
        for party in ("accuser", "trainer"):
            _count_refusal(record, int(d[party]))
    else:
        _convict(record, int(d["accuser"]))


def _pay_voices(record: Record, d: Record, is_guilty: bool) -> None:
    """Credit the tie-breakers who said what most say, and take from those who said the contrary, the accuser
    among them: else it would pay to say something without a look."""
    attested = record["epoch_state"]["clients"]["attested_rounds"]
    for index in _get_voters(d, is_guilty):
        attested[index] = min(int(attested[index]) + JUDGES_PAY, MAX_U32)
    losers = _get_voters(d, not is_guilty) + ([] if is_guilty else [int(d["accuser"])])
    for index in losers:
        attested[index] = max(int(attested[index]) - LOSS, 0)


def _convict(record: Record, index: int) -> None:
    """Out of the epoch, whose rounds pay it nothing, and slashed; what exceeds its points is a debt.

    Whoever has joined the next epoch already has to join again, with what its bond is worth then.
    """
    _exit(record, index, ClientState.Ejected)
    client = record["epoch_state"]["clients"][index]
    client["state"] = ClientState.Ejected
    entry = record["entries"][int(client["entry"])]
    rate = int(record["current_rates"]["slashing_rate_per_client"])
    entry["slashed"] = min(int(entry["slashed"]) + rate, MAX_U64)
    entry["active"] = 0


def _count_refusal(record: Record, index: int) -> None:
    client = record["epoch_state"]["clients"][index]
    client["refusals"] = min(int(client["refusals"]) + 1, MAX_U8)
    if client["refusals"] > record["config"]["max_refusals"]:
        _exit(record, index, ClientState.Dropped)


def _exit(record: Record, index: int, state: ClientState) -> None:
    """A client that is Healthy leaves at the current height."""
    client = record["epoch_state"]["clients"][index]
    if client["state"] == ClientState.Healthy:
        client["state"] = state
        client["exited_height"] = get_current_round(record)["height"]
