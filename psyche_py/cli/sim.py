"""``run-manager sim``: a run in virtual time, by a script or by the library of scripts."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psyche_py.errors import StorageError, UsageError

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.sim.ledger import Samples
    from psyche_py.sim.outcome import Outcome, Script
    from psyche_py.sim.world import World

PROGRESS_SECONDS = 2.0
NUM_WAITS_SHOWN = 5
NUM_RANGES_SHOWN = 20


@click.command()
@click.argument("script", required=False, metavar="[SCRIPT.toml | FAMILY:NUMBER]")
@click.option("--seed", type=click.IntRange(0), help="Another seed than the script's. One seed is one trace.")
@click.option("--programs", is_flag=True, help="The real programs in LiteSVM instead of the rule book.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write a timeline here (PNG).")
@click.option("--shrink", is_flag=True, help="If it fails: print the smallest script that still does.")
@click.option("--list", "is_list", is_flag=True, help="List the families of the library.")
@click.option("--library", metavar="FAMILY", help="Play a family's scripts, or all: 'all'.")
@click.option("--write", type=click.Path(path_type=Path, file_okay=False), help="Write the library here.")
def sim(
    script: str | None,
    seed: int | None,
    programs: bool,
    plot: Path | None,
    shrink: bool,
    is_list: bool,
    library: str | None,
    write: Path | None,
) -> int:
    """Play a run in virtual time: real client machines, real rules, simulated links, faults by script.

    Says what became of every sample: trained, trained again, lost (with ids), and what failed. The last line
    is JSON. The exit code is 1 when something that must hold does not.

    \b
    Examples:
      run-manager sim configs/sim/churn.toml --plot churn.png
      run-manager sim configs/sim/partition.toml --seed 7 --programs
      run-manager sim pair:17 --shrink
      run-manager sim --list
      run-manager sim --library kill
      run-manager sim --write scripts/
    """
    if is_list:
        _list_families()
        return 0
    if write is not None:
        _write_library(write)
        return 0
    if library is not None:
        return _play_library(library, programs)
    if script is None:
        raise UsageError("There is no script to play.", "Name a file, or a script of the library: --list")
    chosen = _change(_load(script), seed, programs)
    if plot is not None:
        from psyche_py.sim.plot import check_plotting

        check_plotting()
    outcome, world, seconds = _play(chosen)
    _show(outcome, world)
    if plot is not None:
        from psyche_py.sim.plot import plot_run

        plot_run(world, outcome, plot)
        click.echo(f"timeline: {plot}")
    if shrink and outcome.is_failed:
        _shrink(chosen)
    click.echo(json.dumps(_summarise(outcome, seconds)))
    return int(outcome.is_failed)


def _change(script: Script, seed: int | None, programs: bool) -> Script:
    settings = script.settings
    if seed is not None:
        settings = replace(settings, seed=seed)
    return replace(script, settings=replace(settings, is_on_programs=settings.is_on_programs or programs))


def _load(name: str) -> Script:
    """A file, or a script of the library. Raises UsageError."""
    from psyche_py.sim.families import FAMILIES, make_script
    from psyche_py.sim.script import read_script

    family, colon, number = name.partition(":")
    if colon and family in FAMILIES and number.isdigit():
        return make_script(family, int(number))
    path = Path(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"Name a TOML file, or FAMILY:NUMBER with a family of {', '.join(FAMILIES)}."
        raise UsageError(f"Cannot read the script {name!r}: {error}", remedy) from None
    return read_script(text, path.stem)


def _play(script: Script) -> tuple[Outcome, World, float]:
    """Play a script and say now and then how far it is."""
    from psyche_py.sim.outcome import make_world, play_world

    begin = shown = time.monotonic()
    world = make_world(script)

    def show_progress(before: CoordinatorAccount, after: CoordinatorAccount) -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_SECONDS:
            shown = time.monotonic()
            minutes = world.virtual_seconds / 60
            state = f"epoch {after.epoch} step {after.step} {after.run_state.name}"
            click.echo(f"{minutes:7.1f} min  {state}, {after.num_healthy} clients", err=True)

    world.chain.on_change.append(show_progress)
    return play_world(script, world), world, time.monotonic() - begin


def _show(outcome: Outcome, world: World) -> None:
    """The result for people."""
    traffic = outcome.traffic
    click.echo(
        f"{outcome.name}: {outcome.num_rounds} rounds in {outcome.virtual_seconds / 60:.1f} virtual minutes, "
        f"{outcome.fired} faults, {outcome.resyncs} resyncs"
    )
    for fault in world.faults.waiting:
        click.echo(f"  never came {fault.describe()}")
    equal = "equal" if not outcome.unequal_digests else f"UNEQUAL {outcome.unequal_digests} times"
    click.echo(f"  digests    {equal}")
    click.echo(f"  batches    {outcome.lost_batches} lost, {outcome.untrained_batches} reported as untrained")
    _show_samples(outcome.samples)
    click.echo(f"  overhead   {outcome.overhead_seconds:.2f} s a round beyond training and transfer")
    click.echo(
        f"  uploads    {traffic.own:.2f} times its own payload, {traffic.relayed:.2f} times others' "
        f"(busiest {traffic.busiest:.2f}), announcements {traffic.announcements:.4f}"
    )
    waits = world.timeline.compute_waits(len(world.clients))
    waited_for = [(sum(row[number] for row in waits), number) for number in range(len(waits))]
    for seconds, number in sorted(waited_for, reverse=True)[:NUM_WAITS_SHOWN]:
        if seconds > 0:
            click.echo(f"  waited     {seconds:.0f} s of clients' time for client {number}")
    for problem in outcome.problems:
        click.echo(f"FAILED  {problem}")


def _show_samples(samples: Samples) -> None:
    """What became of the data: numbers, and the ids of what is not as it should be."""
    from psyche_py.sim.ledger import count_ids

    click.echo(
        f"  samples    {samples.trained} trained, {samples.again} of them in a later round than planned"
    )
    for what, ranges in (
        ("lost", samples.lost),
        ("MISSING", samples.missing),
        ("TRAINED TWICE", samples.twice),
    ):
        if ranges:
            ids = ", ".join(f"{first}-{last}" for first, last in ranges[:NUM_RANGES_SHOWN])
            more = f" and {len(ranges) - NUM_RANGES_SHOWN} ranges more" if ranges[NUM_RANGES_SHOWN:] else ""
            click.echo(f"  {what:10} {count_ids(ranges)} samples: {ids}{more}")


def _summarise(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The last line."""
    traffic = outcome.traffic
    return {
        "script": outcome.name,
        "seed": outcome.seed,
        "failed": len(outcome.problems),
        "rounds": outcome.num_rounds,
        "problems": list(outcome.problems),
        "batches_lost": outcome.lost_batches,
        "batches_reported_untrained": outcome.untrained_batches,
        "samples_trained": outcome.samples.trained,
        "samples_trained_again": outcome.samples.again,
        "samples_lost": [list(ids) for ids in outcome.samples.lost],
        "samples_missing": [list(ids) for ids in outcome.samples.missing],
        "samples_trained_twice": [list(ids) for ids in outcome.samples.twice],
        "digests_equal": not outcome.unequal_digests,
        "own_payload_sent": round(traffic.own, 3),
        "upload_per_payload": round(traffic.own + traffic.relayed, 3),
        "upload_per_payload_max": round(traffic.busiest, 3),
        "announcements_per_payload": round(traffic.announcements, 5),
        "round_overhead_seconds": round(outcome.overhead_seconds, 3),
        "resyncs": outcome.resyncs,
        "faults": outcome.fired,
        "faults_that_never_came": outcome.waiting,
        "virtual_seconds": round(outcome.virtual_seconds, 1),
        "seconds": round(seconds, 2),
        "trace": outcome.trace[:16],
    }


def _shrink(script: Script) -> None:
    from psyche_py.sim.outcome import shorten_script
    from psyche_py.sim.script import write_script

    def tell(smaller: Script) -> None:
        clients = smaller.settings.num_clients
        click.echo(f"still fails: {len(smaller.faults)} faults, {clients} clients", err=True)

    click.echo("# the smallest script that still fails")
    click.echo(write_script(shorten_script(script, tell)))


def _list_families() -> None:
    from psyche_py.sim.families import DEFAULT_SEEDS, FAMILIES, NUM_SCRIPTS

    for family, make in FAMILIES.items():
        about = (make.__doc__ or family.replace("-", " ")).split("\n")[0]
        click.echo(f"{family:20} {NUM_SCRIPTS.get(family, DEFAULT_SEEDS):4} scripts  {about}")


def _write_library(directory: Path) -> None:
    """One file per script. Raises StorageError."""
    from psyche_py.sim.families import make_library
    from psyche_py.sim.script import write_script

    scripts = make_library()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for script in scripts:
            (directory / f"{script.name.replace(':', '-')}.toml").write_text(write_script(script))
    except OSError as error:
        raise StorageError(f"Cannot write scripts to {directory}: {error}", "Name another place.") from None
    click.echo(f"{len(scripts)} scripts written to {directory}")


def _play_library(name: str, programs: bool) -> int:
    """Play a family, or all of them."""
    from psyche_py.sim.families import FAMILIES, make_library
    from psyche_py.sim.outcome import play_script

    if name != "all" and name not in FAMILIES:
        raise UsageError(f"There is no family {name!r}.", f"One of all, {', '.join(FAMILIES)}.")
    scripts = [s for s in make_library() if name in ("all", s.name.partition(":")[0])]
    failed, rounds, begin = 0, 0, time.monotonic()
    for script in scripts:
        outcome = play_script(_change(script, None, programs))
        failed, rounds = failed + outcome.is_failed, rounds + outcome.num_rounds
        verdict = "; ".join(outcome.problems) or "ok"
        click.echo(f"{outcome.name:24} {outcome.num_rounds:4} rounds  {verdict}")
    seconds = round(time.monotonic() - begin, 1)
    click.echo(json.dumps({"scripts": len(scripts), "failed": failed, "rounds": rounds, "seconds": seconds}))
    return int(failed > 0)
