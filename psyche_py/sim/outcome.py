"""Playing a script, and holding what came of it against what must be so."""

from __future__ import annotations

import re
import statistics
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from psyche_py.client.session import KEPT_ROUNDS
from psyche_py.sim.cheats import find_injustice
from psyche_py.sim.faults import Fault
from psyche_py.sim.ledger import Samples, count_ids
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

MAX_VIRTUAL_SECONDS = 7200.0
_PARTICULARS = re.compile(r" \([^)]*\)|\b[0-9a-f]*\d[0-9a-f]*\b")
"""Of a problem: what stands in brackets, numbers, the beginnings of hashes."""


@dataclass(frozen=True, slots=True)
class Script:
    """A run and what goes wrong in it."""

    name: str
    settings: Settings
    faults: tuple[Fault, ...] = ()
    max_seconds: float = MAX_VIRTUAL_SECONDS


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that clients sent, over what their own payloads amount to.

    ``own``, ``relayed`` payloads and ``announcements`` on average; ``busiest``: most payloads of one client.
    """

    own: float
    relayed: float
    busiest: float
    announcements: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a script; ``problems`` are sentences, none when it passed and all its faults came.

    ``overhead_seconds``: how much longer than the slowest training or the transfer of all payloads, whichever
    takes more, a round takes in the median. ``fired``, ``waiting``: faults that happened, and those whose
    point or time never came.
    """

    name: str
    seed: int
    problems: tuple[str, ...]
    lost_batches: int
    unequal_digests: int
    untrained_batches: int
    samples: Samples
    resyncs: int
    virtual_seconds: float
    num_rounds: int
    fired: int
    waiting: int
    overhead_seconds: float
    traffic: Traffic
    trace: str

    @property
    def lost_samples(self) -> int:
        """Samples reported lost for good."""
        return count_ids(self.samples.lost)

    @property
    def is_failed(self) -> bool:
        """Something that must hold does not."""
        return bool(self.problems)


def make_world(script: Script) -> World:
    """The script's run, about to begin."""
    return World(script.settings, script.faults)


def play_script(script: Script) -> Outcome:
    """Play a script to the end of its run. An error of the client's is a script that fails."""
    return play_world(script, make_world(script))


def play_world(script: Script, world: World) -> Outcome:
    """The same, of a world that :func:`make_world` has made."""
    try:
        is_finished = world.run(max_seconds=script.max_seconds)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outcome = judge(script, world, is_finished=True)
        raised = (
            f"{type(error).__name__} in {frame.name} ({Path(frame.filename).name}:{frame.lineno}): {error}"
        )
        return replace(outcome, problems=(raised, *outcome.problems))
    return judge(script, world, is_finished)


def shorten_script(script: Script, tell: Callable[[Script], None] = lambda script: None) -> Script:
    """The smallest script that still fails in one of the same ways: fewest faults, of fewest clients.

    ``tell`` hears of every smaller one that is found. A script that does not fail is handed back as it is.
    """
    failures = _get_kinds(play_script(script))
    is_smaller = bool(failures)
    while is_smaller:
        is_smaller = False
        for smaller in _make_smaller(script):
            if failures & _get_kinds(play_script(smaller)):
                script, is_smaller = smaller, True
                tell(script)
                break
    return script


def _get_kinds(outcome: Outcome) -> frozenset[str]:
    """What is wrong, whoever it befalls and whenever."""
    return frozenset(_PARTICULARS.sub("#", problem) for problem in outcome.problems)


def _make_smaller(script: Script) -> list[Script]:
    """The script with a fault less, one of a fault's clients less, or a client less that no fault befalls."""
    faults, settings = script.faults, script.settings
    found = [replace(script, faults=(*faults[:i], *faults[i + 1 :])) for i in range(len(faults))]
    for i, fault in enumerate(faults):
        for number in fault.clients if len(fault.clients) > 1 else ():
            fewer = replace(fault, clients=tuple(n for n in fault.clients if n != number))
            found.append(replace(script, faults=(*faults[:i], fewer, *faults[i + 1 :])))
    last = settings.num_clients - 1
    least = max(3, int(settings.config.get("init_min_clients", 0)))  # with fewer no epoch begins
    is_named = any(last in (*fault.clients, fault.by) for fault in faults)
    if settings.num_clients > least and not is_named and last not in settings.roles:
        found.append(replace(script, settings=replace(settings, num_clients=last)))
    return found


def judge(script: Script, world: World, is_finished: bool) -> Outcome:
    """Hold a played script against what must be so."""
    ledger = world.ledger
    lost = ledger.count_lost_batches(world.account)
    problems = list(ledger.problems)
    if not is_finished:
        stuck = [f"{c.number}: {c.machine.busy or 'idle'}" for c in world.clients if not c.is_dead]
        problems.append(f"the run stays in {world.account.run_state.name} ({', '.join(stuck)})")
    if is_finished:
        ends = ("finished", "ejected")
        left = [c for c in world.clients if c.number not in world.gone and c.stopped not in ends]
        problems.extend(find_injustice(world))
        problems.extend(f"client {c.number} ended as {c.stopped or 'running'}" for c in left)
    kept = max((len(c.store) for c in world.clients if not c.is_dead), default=0)
    if kept > (KEPT_ROUNDS + 2) * len(world.clients):
        problems.append(f"a client keeps {kept} payloads after the run")
    if not problems:  # of a run that was cut short it says nothing
        problems.extend(f"a fault never came: {fault.describe()}" for fault in world.faults.waiting)
    return Outcome(
        script.name,
        script.settings.seed,
        tuple(problems),
        lost,
        ledger.unequal_digests,
        ledger.num_untrained,
        ledger.count_samples(world.account),
        sum(len(client.resyncs) for client in world.clients),
        world.virtual_seconds,
        len(ledger.rounds),
        len(world.faults.fired),
        len(world.faults.waiting),
        compute_overhead(world),
        compute_traffic(world),
        world.trace.hexdigest(),
    )


def compute_overhead(world: World) -> float:
    """See Outcome. 0 when no round trained anything."""
    settings = world.settings
    rate = settings.link.up_bytes_per_second
    rounds = [r for r in world.ledger.rounds if r.slowest_training]
    over = [
        r.seconds - max(r.slowest_training, (r.num_clients - 1) * settings.payload_bytes / rate)
        for r in rounds
    ]
    return statistics.median(over) if over else 0.0


def compute_traffic(world: World) -> Traffic:
    """See Traffic; over all clients that committed to a result."""
    sent = [(world.wires.get_sent(client.number), client.produced_bytes) for client in world.clients]
    sent = [(by_kind, produced) for by_kind, produced in sent if produced]
    if not sent:
        return Traffic(0.0, 0.0, 0.0, 0.0)

    def mean(kind: str) -> float:
        return statistics.mean(by_kind[kind] / produced for by_kind, produced in sent)

    busiest = max((by_kind["own"] + by_kind["relayed"]) / produced for by_kind, produced in sent)
    return Traffic(mean("own"), mean("relayed"), busiest, mean("announcements"))
