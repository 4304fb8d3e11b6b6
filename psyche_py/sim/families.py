"""Scripts: named families of faults, each at the points of a round that matter, drawn from a seed.

In every script enough clients are left alone that the run must come to its end, with all that the ledger
asks for. ``rng`` picks who, when and how bad; a family's name says what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from psyche_py.client.session import KEPT_ROUNDS
from psyche_py.sim.faults import Fault
from psyche_py.sim.ledger import Ledger
from psyche_py.sim.settings import Settings
from psyche_py.sim.world import World

POINTS = (
    "LoadModel",
    "SendWarmupWitness",
    "Train",
    "Publish",
    "FetchPayload",
    "Apply",
    "SendWitness",
    "SaveEpoch",
    "RoundTrain",
    "RoundWitness",
    "Cooldown",
    "WaitingForMembers",
    "Warmup",
)
"""Where a fault strikes: an action of a client, or a state that begins."""
STATES = ("RoundTrain", "RoundWitness", "Cooldown", "WaitingForMembers", "Warmup")
BETWEEN_EPOCHS = ("LoadModel", "SendWarmupWitness", "SaveEpoch", "Cooldown", "WaitingForMembers", "Warmup")
MESH_POINTS = ("Train", "Publish", "FetchPayload", "Apply", "SendWitness")
SHORT_EPOCH_SECONDS = 35
MAX_VIRTUAL_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Script:
    """A run and what goes wrong in it."""

    family: str
    seed: int
    settings: Settings
    faults: tuple[Fault, ...]
    gone: frozenset[int] = frozenset()  # clients that are not there at the end

    @property
    def name(self) -> str:
        """What --script takes."""
        return f"{self.family}:{self.seed}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a script; ``problems`` are sentences, none when it passed."""

    name: str
    problems: tuple[str, ...]
    lost_batches: int
    unequal_digests: int
    untrained_batches: int
    resyncs: int
    virtual_seconds: float
    num_rounds: int
    fired: int

    @property
    def is_failed(self) -> bool:
        """Something that must hold does not."""
        return bool(self.problems)


def play_script(script: Script) -> Outcome:
    """Play a script to the end of its run."""
    world = World(script.settings, script.faults)
    is_finished = world.run(max_seconds=MAX_VIRTUAL_SECONDS)
    return judge(script, world, is_finished)


def shorten_script(script: Script) -> Script:
    """The script with as few faults as still make it fail."""
    faults = list(script.faults)
    for fault in script.faults:
        fewer = [kept for kept in faults if kept is not fault]
        if play_script(replace(script, faults=tuple(fewer))).is_failed:
            faults = fewer
    return replace(script, faults=tuple(faults))


def judge(script: Script, world: World, is_finished: bool) -> Outcome:
    """Hold a played script against what must be so."""
    ledger: Ledger = world.ledger
    lost = ledger.count_lost_batches(world.account)
    problems = list(ledger.problems)
    if not is_finished:
        stuck = [f"{c.number}: {c.machine.busy or 'idle'}" for c in world.clients if not c.is_dead]
        problems.append(f"the run stays in {world.account.run_state.name} ({', '.join(stuck)})")
    if is_finished:
        left = [c for c in world.clients if c.number not in script.gone and c.stopped != "finished"]
        problems.extend(f"client {c.number} ended as {c.stopped or 'running'}" for c in left)
    kept = max((len(c.store) for c in world.clients if not c.is_dead), default=0)
    if kept > (KEPT_ROUNDS + 2) * len(world.clients):
        problems.append(f"a client keeps {kept} payloads after the run")
    return Outcome(
        script.name,
        tuple(problems),
        lost,
        ledger.unequal_digests,
        ledger.num_untrained,
        sum(len(client.resyncs) for client in world.clients),
        world.virtual_seconds,
        len(ledger.rounds),
        len(world.faults.fired),
    )


# ---- the families -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """What a family fills in."""

    rng: random.Random
    num: int
    config: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def pick(self, most: int = 1) -> tuple[int, ...]:
        """A few clients, ``most`` at most."""
        return tuple(sorted(self.rng.sample(range(self.num), self.rng.randint(1, most))))

    @property
    def minority(self) -> int:
        """So many clients may fail and the others are a quorum still."""
        return max((self.num - 1) // 3, 1)

    def add(
        self, kind: str, clients: Sequence[int] = (), points: Sequence[str] = POINTS, **more: float
    ) -> None:
        """A fault at a random point; of the befallen client itself where the point is an action."""
        rng, point = self.rng, self.rng.choice(list(points))
        by = clients[0] if clients and point not in STATES and rng.random() < 0.8 else None
        step = rng.randint(2, 18)
        if point in BETWEEN_EPOCHS:
            self.config["epoch_time"] = SHORT_EPOCH_SECONDS
            step = rng.randint(0, 6)
        elif point == "RoundWitness":
            # a round gets there when somebody has not attested
            self.faults.append(Fault("silent", (rng.randrange(self.num),), "Train", step, None, 15.0))
        self.faults.append(Fault(kind, tuple(clients), point, step, by, **more))


def _kill(draft: Draft) -> None:
    victims = draft.pick(draft.minority)
    draft.add("kill", victims)
    draft.gone.update(victims)


def _restart(draft: Draft) -> None:
    for _ in range(draft.rng.randint(1, 2)):
        draft.add("restart", draft.pick(draft.minority), seconds=draft.rng.choice([1.0, 5.0, 20.0, 70.0]))


def _delay(draft: Draft) -> None:
    """A laptop that sleeps, or one whose machine has other work."""
    if draft.rng.random() < 0.5:
        draft.add("freeze", draft.pick(draft.minority), seconds=draft.rng.choice([3.0, 10.0, 30.0, 90.0]))
    else:
        draft.add("slow", draft.pick(draft.minority), seconds=40.0, value=draft.rng.choice([3.0, 8.0, 30.0]))


def _drop_announcements(draft: Draft) -> None:
    kind = draft.rng.choice(["mute", "deafen"])
    who = draft.pick(draft.minority) if draft.rng.random() < 0.6 else tuple(range(draft.num))
    share = draft.rng.choice([0.2, 0.5, 1.0]) if len(who) < draft.num else 0.3
    draft.add(kind, who, MESH_POINTS, seconds=draft.rng.choice([5.0, 30.0]), value=share)


def _corrupt_payload(draft: Draft) -> None:
    kind = draft.rng.choice(["tamper", "malformed", "babble"])
    draft.add(kind, draft.pick(draft.minority), MESH_POINTS, seconds=draft.rng.choice([2.0, 20.0]))


def _equivocate(draft: Draft) -> None:
    """Trainers that sign two results of one batch."""
    draft.add("equivocate", draft.pick(draft.minority), MESH_POINTS, seconds=draft.rng.choice([10.0, 60.0]))


def _corrupt_weights(draft: Draft) -> None:
    draft.add("taint", draft.pick(1), ("Train", "SendWitness", "Publish"))


def _partition(draft: Draft) -> None:
    """From a lonely client to two halves."""
    draft.add(
        "partition", draft.pick(max(draft.num // 2, 1)), seconds=draft.rng.choice([2.0, 8.0, 25.0, 80.0])
    )


def _late_joiner(draft: Draft) -> None:
    draft.add("join", value=draft.rng.choice([1.0, 1.0, 2.0, 4.0]))
    draft.config["total_steps"] = 45


def _slow_link(draft: Draft) -> None:
    if draft.rng.random() < 0.5:
        rate = draft.rng.choice([5_000.0, 60_000.0, 400_000.0])
        draft.add("slow_link", draft.pick(draft.minority), seconds=draft.rng.choice([10.0, 60.0]), value=rate)
    else:
        draft.add("lossy_link", draft.pick(draft.num), seconds=60.0, value=draft.rng.choice([0.02, 0.1, 0.3]))


def _silent_witness(draft: Draft) -> None:
    draft.add("silent", draft.pick(draft.minority), seconds=draft.rng.choice([0.0, 20.0]))


def _liar_witness(draft: Draft) -> None:
    draft.add("liar", draft.pick(draft.minority), seconds=draft.rng.choice([0.0, 20.0]))
    draft.config["max_witness_contradictions"] = draft.rng.choice([2, 16])


def _pause_in_the_middle(draft: Draft) -> None:
    draft.add("pause", seconds=draft.rng.choice([1.0, 10.0, 60.0]))


def _owner_update(draft: Draft) -> None:
    draft.add("change_rates", value=draft.rng.choice([0.0, 7.0, 5000.0]))
    draft.add("describe")


def _chain_gap(draft: Draft) -> None:
    """Endpoints away, the whole cluster away, or clocks off."""
    kind = draft.rng.choice(["rpc_gap", "rpc_gap", "halt_chain", "skew"])
    if kind == "halt_chain":
        draft.add(kind, seconds=draft.rng.choice([3.0, 60.0]))
    elif kind == "skew":
        draft.add(kind, draft.pick(draft.num), value=draft.rng.choice([-1.4, 1.4, 4.0]))
    else:
        draft.add(kind, draft.pick(draft.num), seconds=draft.rng.choice([2.0, 8.0, 25.0, 70.0]))


def _leave(draft: Draft) -> None:
    leavers = draft.pick(draft.minority)
    draft.add("leave", leavers)
    draft.gone.update(leavers)


def _churn(draft: Draft) -> None:
    """A join, a leave and a restart, close together."""
    leaver, restarted = draft.rng.sample(range(draft.num), 2)
    draft.add("join", value=1.0)
    draft.add("leave", (leaver,))
    draft.add("restart", (restarted,), seconds=15.0)
    draft.gone.add(leaver)
    draft.config["total_steps"] = 45


def _pair(draft: Draft) -> None:
    """Two families at once, in a larger run."""
    draft.num = max(draft.num, 7)
    for family in draft.rng.sample(_PAIRED, 2):
        family(draft)


_PAIRED: list[Callable[[Draft], None]] = [
    _restart, _delay, _drop_announcements, _corrupt_payload, _late_joiner, _slow_link, _silent_witness,
    _pause_in_the_middle, _owner_update, _chain_gap, _leave, _partition,
]  # fmt: skip
FAMILIES: dict[str, Callable[[Draft], None]] = {
    "calm": lambda draft: None,
    "kill": _kill,
    "restart": _restart,
    "delay": _delay,
    "drop-announcements": _drop_announcements,
    "corrupt-payload": _corrupt_payload,
    "equivocate": _equivocate,
    "corrupt-weights": _corrupt_weights,
    "partition": _partition,
    "late-joiner": _late_joiner,
    "slow-link": _slow_link,
    "silent-witness": _silent_witness,
    "liar-witness": _liar_witness,
    "pause": _pause_in_the_middle,
    "owner-update": _owner_update,
    "chain-gap": _chain_gap,
    "leave": _leave,
    "churn": _churn,
    "pair": _pair,
}


def make_script(family: str, seed: int) -> Script:
    """The script of a family with a seed. Raises KeyError for a family that there is not."""
    rng = random.Random(f"{family} {seed}")
    draft = Draft(rng, rng.choice([4, 5, 6, 8]))
    FAMILIES[family](draft)
    config = {"epoch_time": rng.choice([35, 60, 200]), **draft.config}
    config["init_min_clients"] = config["min_clients"] = 2
    settings = Settings(num_clients=draft.num, seed=rng.randrange(2**32), config=config)
    return Script(family, seed, settings, tuple(draft.faults), frozenset(draft.gone))
