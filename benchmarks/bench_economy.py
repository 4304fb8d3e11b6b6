"""Does cheating pay? Payoffs of the whole cheater zoo over the real rule book.

    python benchmarks/bench_economy.py [--clients 64] [--rounds 500] [--shares 0,5,20,40] [--cost 0.7]
                                       [--percent 5] [--slash 65] [--bond 65] [--kinds a,b] [--processes 2]
                                       [--seed 1] [--skip-collusion] [--skip-program]
                                       [--json PATH] [--report PATH] [--plot PATH]

First the real checker judges messages of every kind of cheat on a tiny model (economy_checks.py): what it
finds, and what the cheat saves, is measured and not typed in. Then runs of 64 clients and 500 rounds, in
epochs of 50, are played with 5, 20 and 40 % cheaters of one kind: the rule book draws verifiers, targets,
witnesses and tie-breakers, takes verdicts and votes, drops, ejects, slashes and pays. Cheaters of a run are
friends: they never accuse and always acquit each other, convict for each other, and attest each other. Half
of the clients compute in bfloat16, and all judge by the BF16 limits. An ejected cheater is out until the next
epoch; half of them come back with the same wallet, half with a new one, both with a whole bond.

Payoff: points earned, less slashed (a debt is paid by the bond, or walked away from), less the cost of the
work really done; per round, in units of what a round pays if all are honest. A round's work costs --cost of
that. The last line is one JSON object:

    cheats     [{kind, share, payoff, honest_payoff, ...}]; share in percent, payoff null where nobody cheats
    losing     whether each kind at each share earns less than honesty
    thresholds for costs of .3 to .95: the slashing rate (rounds' pay) that would do for every kind
    checks     what the checker found: convicted share by FP32 and by BF16 limits, and work done
    formula    the slashing rate by the formula of docs/verification.md, for no work, by cost
    collusion  draws beside formulas, and places for disputes filled to keep others out
               (psyche_py/sim/economy/collusion.py)
    program    whether the same was played on the program in LiteSVM, byte for byte
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psyche_py.coordinator.committee import compute_num_verifiers
from psyche_py.sim.economy.conduct import FRAUD, HONEST_CASE, REFUSAL, Case, Cheat, Person
from psyche_py.sim.economy.payoff import (
    Group,
    compute_formula_threshold,
    compute_threshold,
    measure_group,
)
from psyche_py.sim.economy.run import EconomyRun
from psyche_py.sim.economy.settings import EconomySettings
from psyche_py.sim.economy.side import RuleBookSide, Side
from psyche_py.sim.plot import check_plotting

MESSAGES = {
    "no_work": ("no_work", False),
    "stale_model": ("stale_model_1", False),
    "half_batch": ("half_batch", False),
    "quarter_batch": ("quarter_batch", False),
    "other_data": ("other_data", False),
    "negated_gradient": ("negated_gradient", False),
    "scaled_gradient": ("scaled_gradient", False),
    "random": ("random_payload", True),
    "copied_message": ("copied_payload", True),
    "random_signs": ("random_signs", False),
    "forged_momentum": ("forged_before", False),
    "tile_refusal": ("refusal", False),
}
"""Kinds that a look at the message can find: the cheat judged, and whether it is done without work."""
CONDUCTS = (
    "lazy_once_in_10",
    "late_commit",
    "equivocation",
    "false_accusation",
    "lying_tie_breaker",
    "false_refusal",
    "idle_verifier",
)
"""Kinds that differ by what a client does beside its message."""
COSTS = (0.3, 0.5, 0.7, 0.8, 0.95)
GANG, OUTSIDERS = 1, 2


@dataclass(frozen=True)
class Job:
    """One run."""

    cheat: Cheat | None
    background: Cheat | None
    num_cheats: int
    num_clients: int
    settings: EconomySettings
    seed: int


@dataclass(frozen=True)
class Played:
    """What came of it."""

    kind: str | None
    share: int
    rounds: int
    cheats: Group | None
    honest: Group
    staying: Group | None
    moving: Group | None
    outcomes: dict[str, int]
    verdicts: dict[str, int]
    checks: int
    dropped: int


def make_cheats(cases: dict[str, Sequence[Case]], works: dict[str, float]) -> dict[str, Cheat]:
    """The zoo, by what was measured."""
    cheats = {
        name: Cheat(name, works[name], tuple(cases[name]), verifies=works[name] >= 1.0) for name in MESSAGES
    }
    freeloader = cheats["no_work"]
    cheats["lazy_once_in_10"] = Cheat("lazy_once_in_10", freeloader.work, freeloader.cases, period=10)
    for name in ("late_commit", "equivocation"):
        # nobody attests it, so nobody is drawn to look at it either; the work is not worth doing
        cheats[name] = Cheat(name, 0.0, freeloader.cases, is_delivered=False, verifies=False)
    cheats["false_accusation"] = Cheat("false_accusation", accusation=FRAUD)
    cheats["false_refusal"] = Cheat("false_refusal", accusation=REFUSAL)
    cheats["lying_tie_breaker"] = Cheat("lying_tie_breaker", votes_blindly=True)
    cheats["idle_verifier"] = Cheat("idle_verifier", verifies=False)
    return cheats


def make_people(job: Job) -> list[Person]:
    """Cheaters spread over the list, so that their places mean nothing; other cheats only as background."""
    order = list(range(job.num_clients))
    random.Random(job.seed).shuffle(order)
    gang = order[: job.num_cheats]
    others = order[job.num_cheats :][: max(1, job.num_clients // 20)] if job.background else []
    people = [Person(number, -1, precision=number % 2) for number in range(job.num_clients)]
    for place, number in enumerate(gang):
        people[number].cheat, people[number].gang = job.cheat, GANG
        people[number].moves_on = place % 2 == 0
    for number in others:
        people[number].cheat, people[number].gang = job.background, OUTSIDERS
    return people


def play(job: Job, side: Side | None = None) -> Played:
    """Play a run, on the rule book unless another side is given."""
    name = job.cheat.name if job.cheat else "nobody"
    side = side or RuleBookSide(f"{name} {job.num_cheats} {job.seed}")
    run = EconomyRun(side, job.settings, make_people(job), random.Random(job.seed))
    run.play()
    gang = [p for p in run.people if p.gang == GANG]
    honest = measure_group(run, [p for p in run.people if p.gang is None])
    if honest is None:
        raise SystemExit("nobody is honest: choose smaller shares")
    tally = run.tally
    return Played(
        kind=job.cheat.name if job.cheat else None,
        share=round(100 * job.num_cheats / job.num_clients),
        rounds=tally.trained_rounds,
        cheats=measure_group(run, gang),
        honest=honest,
        staying=measure_group(run, [p for p in gang if not p.moves_on]),
        moving=measure_group(run, [p for p in gang if p.moves_on]),
        outcomes={" ".join(key): num for key, num in tally.outcomes.items()},
        verdicts={" ".join(key): num for key, num in tally.verdicts.items()},
        checks=tally.checks,
        dropped=tally.dropped,
    )


def make_jobs(args: argparse.Namespace, cheats: dict[str, Cheat]) -> list[tuple[str | None, int, Job]]:
    """(kind, share in percent, run); with share 0 nobody cheats, whatever the kind."""
    settings = EconomySettings(
        num_epochs=max(1, args.rounds // args.epoch_rounds),
        epoch_rounds=args.epoch_rounds,
        verification_percent=args.percent,
        slash_rounds=args.slash,
        bond_rounds=args.bond,
    )
    kinds = args.kinds.split(",") if args.kinds else list(cheats)
    jobs: list[tuple[str | None, int, Job]] = []
    for share in map(int, args.shares.split(",")):
        num = round(args.clients * share / 100)
        for kind in kinds if num else [None]:
            # a liar needs somebody to lie about
            background = cheats["no_work"] if kind == "lying_tie_breaker" else None
            cheat = cheats[kind] if kind else None
            jobs.append((kind, share, Job(cheat, background, num, args.clients, settings, args.seed)))
    return jobs


def describe(played: Played, kind: str, share: int, args: argparse.Namespace) -> dict[str, Any]:
    """One entry of ``cheats``."""
    entry: dict[str, Any] = {
        "kind": kind,
        "share": share,
        "payoff": None,
        "honest_payoff": round(played.honest.compute_payoff(args.cost), 4),
    }
    if played.cheats is None:
        return entry
    groups = {"staying": played.staying, "moving": played.moving}
    thresholds = {
        str(cost): round_or_none(compute_threshold(played.cheats, played.honest, cost, played.rounds))
        for cost in COSTS
    }
    return entry | {
        "payoff": round(played.cheats.compute_payoff(args.cost), 4),
        "by_comeback": {name: round(g.compute_payoff(args.cost), 4) for name, g in groups.items() if g},
        "payoff_without_bond": round(played.cheats.unbonded - args.cost * played.cheats.work, 4),
        "payoff_by_cost": {str(c): round(played.cheats.compute_payoff(c), 4) for c in COSTS},
        "honest_payoff_by_cost": {str(c): round(played.honest.compute_payoff(c), 4) for c in COSTS},
        "threshold_by_cost": thresholds,
        "earned": round(played.cheats.earned, 4),
        "work": round(played.cheats.work, 4),
        "present": round(played.cheats.presence, 4),
        "convictions": round(played.cheats.convictions, 3),
        "honest_convictions": round(played.honest.convictions, 4),
        "honest_work": round(played.honest.work, 4),
        "outcomes": played.outcomes,
        "verdicts": played.verdicts,
    }


def round_or_none(value: float | None) -> float | None:
    """To tenths."""
    return None if value is None else round(value, 1)


def summarize(entries: list[dict[str, Any]], kinds: Sequence[str]) -> dict[str, Any]:
    """Which kinds lose, and what slashing rate would make all of them lose."""
    played = [entry for entry in entries if entry["payoff"] is not None]
    losing = {
        kind: all(e["payoff"] < e["honest_payoff"] for e in played if e["kind"] == kind)
        for kind in kinds
        if any(e["kind"] == kind for e in played)
    }
    thresholds: dict[str, Any] = {}
    for cost in map(str, COSTS):
        found = [(e["threshold_by_cost"][cost], e["kind"], e["share"]) for e in played]
        known = [x for x in found if x[0] is not None]
        thresholds[cost] = {
            "rounds": max(known)[0] if known else None,
            "kind": max(known)[1] if known else None,
            "share": max(known)[2] if known else None,
            "never": sorted({kind for value, kind, _ in found if value is None}),
        }
    return {"losing": losing, "thresholds": thresholds}


def check_program(args: argparse.Namespace, cheats: dict[str, Cheat]) -> dict[str, Any]:
    """Small runs on the rule book and on the program in LiteSVM, bytes compared after every call."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    from economy_pair import PairSide

    settings = EconomySettings(num_epochs=2, epoch_rounds=8, verification_percent=25, num_tie_breakers=3)
    num_calls = 0
    for kind in ("no_work", "late_commit", "false_accusation", "false_refusal"):
        side = PairSide()
        play(Job(cheats[kind], None, 3, 12, settings, args.seed), side)
        num_calls += side.num_calls
    return {"calls_compared": num_calls, "differences": 0}


def measure_cases(args: argparse.Namespace) -> tuple[dict[str, Cheat], dict[str, Any]]:
    """The zoo and what the checker found."""
    from economy_checks import Workshop, get_share

    found = Workshop(args.seed).measure(MESSAGES, args.check_rounds)
    checks = {
        name: {
            "messages": len(x.mixed),
            "convicted_fp32": round(get_share(x.fp32), 4),
            "convicted_bf16": round(get_share(x.mixed), 4),
            "work": round(x.work, 4),
        }
        for name, x in found.items()
    }
    if any(case != HONEST_CASE for case in found["honest"].mixed):
        print("honest messages were not all found honest", file=sys.stderr)
    cases = {name: x.mixed for name, x in found.items()}
    return make_cheats(cases, {name: x.work for name, x in found.items()}), checks


def render_table(entries: list[dict[str, Any]], shares: Sequence[int]) -> str:
    """Payoff of a cheater and of an honest client, by kind and share."""
    lines = ["| kind | " + " | ".join(f"{s} %: cheat, honest" for s in shares) + " | convictions |"]
    lines.append("|---|" + "---|" * (len(shares) + 1))
    for kind in dict.fromkeys(e["kind"] for e in entries):
        own = {e["share"]: e for e in entries if e["kind"] == kind}
        cells = [f"{own[s]['payoff']:+.2f}, {own[s]['honest_payoff']:+.2f}" for s in shares]
        convictions = ", ".join(f"{own[s]['convictions']:.1f}" for s in shares)
        lines.append(f"| {kind.replace('_', ' ')} | " + " | ".join(cells) + f" | {convictions} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    defaults = {
        "clients": 64,
        "rounds": 500,
        "epoch-rounds": 50,
        "percent": 5,
        "slash": 65,
        "bond": 65,
        "processes": 2,
        "seed": 1,
        "check-rounds": 24,
    }
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shares", default="0,5,20,40")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--cost", type=float, default=0.7)
    parser.add_argument("--skip-collusion", action="store_true")
    parser.add_argument("--skip-program", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help="do not play, show what --json kept")
    parser.add_argument("--plot", type=Path, help="write a picture (PNG); needs matplotlib")
    return parser.parse_args()


def main() -> None:
    """Measure, play, print one JSON line."""
    args = parse_arguments()
    if args.plot:
        check_plotting()
    if args.report:
        report(json.loads(args.report.read_text()), args)
        return
    started = time.monotonic()
    cheats, checks = measure_cases(args)
    print(f"{time.monotonic() - started:.0f} s: checks {json.dumps(checks)}", flush=True)
    jobs = make_jobs(args, cheats)
    results = []
    with ProcessPoolExecutor(args.processes) as pool:
        for number, result in enumerate(pool.map(play, [job for _, _, job in jobs])):
            results.append(result)
            print(f"{time.monotonic() - started:.0f} s: {number + 1} of {len(jobs)} runs", flush=True)
    kinds = args.kinds.split(",") if args.kinds else list(cheats)
    entries = []
    for (kind, share, _), played in zip(jobs, results, strict=True):
        entries += [describe(played, name, share, args) for name in ([kind] if kind else kinds)]
    output: dict[str, Any] = {
        "clients": args.clients,
        "rounds": results[0].rounds,
        "percent": args.percent,
        "slash_rounds": args.slash,
        "bond_rounds": args.bond,
        "cost": args.cost,
        "checks": checks,
        "cheats": entries,
        **summarize(entries, kinds),
        "formula": compute_formula(args),
    }
    if not args.skip_collusion:
        from psyche_py.sim.economy.collusion import measure_collusion

        output["collusion"] = measure_collusion(args.seed)
    if not args.skip_program:
        output["program"] = check_program(args, cheats)
    output["seconds"] = round(time.monotonic() - started)
    if args.json:
        args.json.write_text(json.dumps(output) + "\n")
    report(output, args)


def compute_formula(args: argparse.Namespace) -> dict[str, float]:
    """The slashing rate of docs/verification.md for who does no work and is always convicted, by cost."""
    verified = compute_num_verifiers(args.clients, args.percent) / args.clients
    return {str(cost): round(compute_formula_threshold(1.0, verified, 1.0, cost), 1) for cost in COSTS}


def report(output: dict[str, Any], args: argparse.Namespace) -> None:
    """The table, the picture where it is asked for, and the JSON line."""
    played = [entry for entry in output["cheats"] if entry["payoff"] is not None]
    shares = sorted({entry["share"] for entry in played})
    print(render_table(played, shares), flush=True)
    if args.plot:
        plot(played, shares, output["cost"], args.plot)
    print(json.dumps(output))


def plot(played: list[dict[str, Any]], shares: Sequence[int], cost: float, path: Path) -> None:
    """A bar for a cheater and a mark for an honest client of the same run, by kind and share (PNG)."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(10, 8), layout="constrained")
    axes: Any = figure.subplots()
    kinds = list(dict.fromkeys(entry["kind"] for entry in played))
    height = 0.8 / len(shares)
    for number, share in enumerate(shares):
        own = {entry["kind"]: entry for entry in played if entry["share"] == share}
        places = [i + (number - (len(shares) - 1) / 2) * height for i in range(len(kinds))]
        label = f"cheater, {share} % cheat"
        axes.barh(places, [own[kind]["payoff"] for kind in kinds], height, label=label)
        marks = [own[kind]["honest_payoff"] for kind in kinds]
        axes.plot(marks, places, "k|", markersize=7, label="honest, same run" if number == 0 else None)
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    axes.invert_yaxis()
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlabel(f"payoff per round, in rounds' pay; a round's work costs {cost}")
    axes.legend()
    figure.savefig(path, dpi=100, format="png")


if __name__ == "__main__":
    main()
