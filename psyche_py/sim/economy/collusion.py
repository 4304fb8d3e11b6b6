"""What t of n clients that act as one can do, by the real draws, beside the formulas.

outside look   a delivered result of a colluder is drawn by a verifier that is none: v (1 - s), that is
                   verifiers / n * (1 - (t - 1) / (n - 1))
convict        colluders alone convict an innocent (or, of a true accusation, the accuser): enough of the
               tie-breakers drawn from the n - 2 that are no parties are among the t - 1 that are left;
               more are needed where the innocent is said not to have answered
block          they keep the others from two thirds
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import comb
from typing import Any

from psyche_py.coordinator.committee import (
    COMMITTEE_SALT,
    compute_num_verifiers,
    compute_ranks_at,
    compute_role_seed,
)
from psyche_py.coordinator.disputes import NUM_PARTIES, compute_needed
from psyche_py.coordinator.duties import draw_duties
from psyche_py.errors import UsageError
from psyche_py.sim.economy.conduct import FRAUD, REFUSAL, Cheat, Person
from psyche_py.sim.economy.payoff import measure_group
from psyche_py.sim.economy.run import EconomyRun
from psyche_py.sim.economy.settings import EconomySettings
from psyche_py.sim.economy.side import RuleBookSide

SIZES = (8, 16, 64, 256)
SHARES = (0.1, 0.2, 0.33, 0.4, 0.5)
NUM_DRAWS = 3000
WANTED = 9


@dataclass(slots=True)
class Counts:
    """Colluders' results, those that outsiders looked at, innocents convicted, convictions blocked."""

    results: int = 0
    looked_at: int = 0
    convicted: int = 0
    blocked: int = 0


def compute_tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """Hypergeometric: the chance that at least so many of ``drawn`` are marked."""
    ways = range(max(at_least, 0), min(marked, drawn) + 1)
    hits = sum(comb(marked, i) * comb(population - marked, drawn - i) for i in ways)
    return hits / comb(population, drawn)


def draw_counts(num_clients: int, num_colluders: int, percent: int, seed: int) -> Counts:
    """Colluders are the first; who is drawn follows from the rule book's shuffles of random seeds."""
    source, counts = random.Random(f"{num_clients} {num_colluders} {seed}"), Counts()
    num_verifiers = compute_num_verifiers(num_clients, percent)
    everybody = range(num_clients)
    was_verifier: set[int] = set()
    for _ in range(NUM_DRAWS):
        random_seed = source.getrandbits(64)
        committee = compute_role_seed(random_seed, COMMITTEE_SALT)
        num_positions = max(num_verifiers, min(WANTED + NUM_PARTIES, num_clients))
        drawn = compute_ranks_at(num_positions, num_clients, committee)
        verifiers = drawn[:num_verifiers]
        counts.results += num_colluders - sum(i < num_colluders for i in was_verifier)
        for duty in draw_duties(random_seed, verifiers, everybody):
            is_outside = duty.verifier >= num_colluders > duty.trainer
            counts.looked_at += is_outside and duty.trainer not in was_verifier
        was_verifier = set(verifiers)
        _count_judges(counts, drawn, num_clients, num_colluders)
    return counts


def _get_needed(num_judges: int, reason: int) -> int:
    """Votes that convict a trainer."""
    return compute_needed(num_judges, is_guilty=True, reason=reason)


def _count_judges(counts: Counts, drawn: tuple[int, ...], num_clients: int, num_colluders: int) -> None:
    """One dispute: a colluder is one party, somebody honest the other."""
    parties = (0, num_colluders)
    judges = [i for i in drawn if i not in parties][: min(WANTED, num_clients - NUM_PARTIES)]
    own, needed = sum(i < num_colluders for i in judges), _get_needed(len(judges), FRAUD)
    counts.convicted += own >= needed
    counts.blocked += len(judges) - own < needed


def measure_odds(num_clients: int, share: float, percent: int, seed: int) -> dict[str, Any]:
    """Draws and formulas for one size of the run and one share of colluders."""
    num_colluders = max(1, round(num_clients * share))
    counts = draw_counts(num_clients, num_colluders, percent, seed)
    judges = min(WANTED, num_clients - NUM_PARTIES)
    needed, rest = _get_needed(judges, FRAUD), num_clients - NUM_PARTIES
    verified = compute_num_verifiers(num_clients, percent) / num_clients
    look = counts.looked_at / counts.results
    blocked = compute_tail(rest, num_colluders - 1, judges, judges - needed + 1)
    refused = compute_tail(rest, num_colluders - 1, judges, _get_needed(judges, REFUSAL))
    rate = look * (1 - counts.blocked / NUM_DRAWS)
    return {
        "clients": num_clients,
        "colluders": num_colluders,
        "verified": round(verified, 4),
        "looked_at": round(look, 5),
        "looked_at_formula": round(verified * (1 - (num_colluders - 1) / (num_clients - 1)), 5),
        "tie_breakers": judges,
        "needed": needed,
        "convict_innocent": counts.convicted / NUM_DRAWS,
        "convict_innocent_formula": float(f"{compute_tail(rest, num_colluders - 1, judges, needed):.3g}"),
        "convict_innocent_of_refusal_formula": float(f"{refused:.3g}"),
        "block": counts.blocked / NUM_DRAWS,
        "block_formula": float(f"{blocked:.3g}"),
        "rounds_until_convicted": round(1 / rate) if rate else None,
    }


# ---- places for disputes that are filled to keep others out ----


def measure_filling(num_clients: int, percent_share: int, reason: int, seed: int) -> dict[str, Any]:
    """A gang accuses whoever it is drawn to look at, while a twentieth of the others does no work."""
    num = num_clients * percent_share // 100
    filler = Cheat("filler", accusation=reason)
    freeloader = Cheat("no_work", work=0.0, cases=((FRAUD, FRAUD),), verifies=False)
    order = list(range(num_clients))
    random.Random(seed).shuffle(order)
    people = [Person(number, -1) for number in range(num_clients)]
    for number in order[:num]:
        people[number].cheat, people[number].gang = filler, 1
    for number in order[num:][: num_clients // 20]:
        people[number].cheat, people[number].gang = freeloader, 2
    settings = EconomySettings(num_epochs=2, epoch_rounds=50)
    run = EconomyRun(RuleBookSide(f"filling {num_clients} {num}"), settings, people, random.Random(seed))
    run.play()
    tally = run.tally
    gang = measure_group(run, [p for p in people if p.gang == 1])
    honest = measure_group(run, [p for p in people if p.gang is None])
    if gang is None or honest is None:
        raise UsageError("Such a run has no gang, or nobody else.", "Choose more clients.")
    full, accepted = (tally.verdicts["looked", key] for key in ("DisputesFull", "accepted"))
    return {
        "clients": num_clients,
        "share": percent_share,
        "reason": "refusal" if reason == REFUSAL else "fraud",
        "mean_open": round(sum(tally.open_disputes) / len(tally.open_disputes), 2),
        "rounds_all_open": sum(num == 7 for num in tally.open_disputes),
        "rounds": tally.trained_rounds,
        "true_verdicts": full + accepted,
        "kept_out": full,
        "slashed_rounds_per_filler_and_epoch": gang.convictions * settings.slash_rounds / settings.num_epochs,
        "dropped_per_epoch": tally.dropped / settings.num_epochs,
        "honest_convictions": round(honest.convictions, 4),
        "work_of_honest": round(honest.work, 3),
    }


def measure_collusion(seed: int, percent: int = 5) -> dict[str, Any]:
    """All sizes and shares."""
    odds = [measure_odds(n, s, percent, seed) for n in SIZES for s in SHARES]
    filling = [
        measure_filling(n, s, reason, seed)
        for n in (64, 256)
        for s in (20, 40)
        for reason in (FRAUD, REFUSAL)
    ]
    return {"odds": odds, "filling": filling}
