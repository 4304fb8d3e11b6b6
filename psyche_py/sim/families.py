"""Scripts: named families of faults, each at the points of a round that matter, drawn from a seed.

In every script enough clients are left alone that the run must come to its end, with all that the ledger
asks for. ``rng`` picks who, when and how bad; a family's name says what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psyche_py.sim.cheats import CHEATS
from psyche_py.sim.faults import KINDS, ROLES, WITHOUT_CLIENTS, Fault
from psyche_py.sim.outcome import Script
from psyche_py.sim.settings import Role, Settings

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
ONCE_AN_EPOCH = (
    "LoadModel",
    "SendWarmupWitness",
    "SaveEpoch",
    "Cooldown",
    "WaitingForMembers",
    "Warmup",
    "RoundTrain",  # where all witnesses attest, rounds follow one another in it
)
MESH_POINTS = ("Train", "Publish", "FetchPayload", "Apply", "SendWitness")
IN_ROUNDS = ("Train", "Publish", "Apply", "SendWitness", "RoundTrain")
SHORT_EPOCH_SECONDS = 35
CHURN_SECONDS = 180.0
"""Between a join or leave and the next, for sixty clients: the rate of Agora in issue 5."""


# ---- the families -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """What a family fills in."""

    rng: random.Random
    seed: int
    num: int
    config: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def pick(self, most: int = 1) -> tuple[int, ...]:
        """A few clients, ``most`` at most."""
        return tuple(sorted(self.rng.sample(range(self.num), self.rng.randint(1, most))))

    @property
    def minority(self) -> int:
        """So many clients may fail and the others are a quorum still."""
        return max((self.num - 1) // 3, 1)

    def add(
        self, kind: str, clients: Sequence[int] = (), points: Sequence[str] = POINTS, **more: Any
    ) -> None:
        """A fault at a random point; of the befallen client itself where the point is an action."""
        rng, point = self.rng, self.rng.choice(list(points))
        by = clients[0] if clients and point not in STATES and rng.random() < 0.8 else None
        step = rng.randint(2, 18)
        if point in ONCE_AN_EPOCH:
            self.config["epoch_time"] = SHORT_EPOCH_SECONDS
            step = rng.randint(0, 6)
            if point == "LoadModel":
                step = 0  # in later epochs members have the model
        elif point == "RoundWitness":
            # a round gets there when somebody has not attested
            self.faults.append(Fault("silent", (rng.randrange(self.num),), "Train", step, None, 15.0))
        self.faults.append(Fault(kind, tuple(clients), point, step, by, **more))

    def get_faults(self) -> tuple[Fault, ...]:
        """All of them. Who is befallen by another one may be away: then it waits for anybody to be there."""
        befallen = [
            {n for other in self.faults if other is not fault for n in other.clients} for fault in self.faults
        ]
        return tuple(
            replace(fault, by=None) if fault.by in away else fault
            for fault, away in zip(self.faults, befallen, strict=True)
        )


def _kill(draft: Draft) -> None:
    victims = draft.pick(draft.minority)
    draft.add("kill", victims)


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


def _forge(draft: Draft) -> None:
    """Trainers that sign a second result, late, which the blooms of many clients hold by chance."""
    draft.num = 64
    draft.config |= {"total_steps": 12, "epoch_time": 500, "max_round_train_time": 60}
    draft.config |= {"global_batch_size_start": 64, "global_batch_size_end": 64}
    for number in draft.pick(4):
        late, step = draft.rng.choice([0.0, 0.2, 0.3, 0.5]), draft.rng.randint(4, 10)
        draft.faults.append(Fault("forge", (number,), "SendWitness", step, seconds=late, value=20_000.0))


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


def _endpoint(draft: Draft) -> None:
    """Endpoints that are away, behind, rate-limited, or hand out blockhashes that expire."""
    rng = draft.rng
    kind = rng.choice(["rpc_gap", "rpc_gap", "rpc_lag", "rate_limit", "expire"])
    value = rng.choice([1.0, 3.0, 8.0])
    draft.add(kind, draft.pick(draft.num), seconds=rng.choice([2.0, 8.0, 25.0, 70.0]), value=value)


def _chain(draft: Draft) -> None:
    """The cluster is slow, dead for up to a minute, or takes a few slots back."""
    rng, kind = draft.rng, draft.rng.choice(["halt_chain", "slow_chain", "fork"])
    if kind == "fork":
        draft.add(kind, points=IN_ROUNDS, value=rng.choice([1.0, 2.0, 4.0]))
    else:
        draft.add(kind, seconds=rng.choice([3.0, 20.0, 60.0]), value=rng.choice([2.0, 5.0, 12.0]))


def _clock(draft: Draft) -> None:
    """Clocks jump, by less and by more than a client compares away."""
    draft.add("skew", draft.pick(draft.num), value=draft.rng.choice([-70.0, -8.0, -1.4, 1.4, 8.0, 70.0]))


def _leave(draft: Draft) -> None:
    leavers = draft.pick(draft.minority)
    draft.add("leave", leavers)


def _churn(draft: Draft) -> None:
    """A join, a leave and a restart, close together."""
    leaver, restarted = draft.rng.sample(range(draft.num), 2)
    draft.add("join", value=1.0)
    draft.add("leave", (leaver,))
    draft.add("restart", (restarted,), seconds=15.0)
    draft.config["total_steps"] = 45


def _pair(draft: Draft) -> None:
    """Two families at once, in a larger run."""
    draft.num = max(draft.num, 7)
    for family in draft.rng.sample(_PAIRED, 2):
        family(draft)


def _third_fails(draft: Draft) -> None:
    """35 % of twenty clients fail, one after the other."""
    draft.num = 20
    draft.config |= {"total_steps": 45, "epoch_time": 60}
    victims = draft.rng.sample(range(draft.num), draft.num * 35 // 100)
    for number in victims:
        kind = draft.rng.choice(["kill", "restart", "freeze", "slow"])
        length, value = draft.rng.choice([10.0, 30.0, 90.0]), draft.rng.choice([3.0, 10.0])
        at = draft.rng.uniform(20.0, 180.0)
        draft.faults.append(Fault(kind, (number,), step=0, seconds=length, value=value, at_seconds=at))


def _agora(draft: Draft) -> None:
    """Sixty clients for a quarter of an hour, somebody joins or leaves every three minutes."""
    draft.num = 60
    draft.config |= {"total_steps": 50, "epoch_time": 600, "max_round_train_time": 60, "warmup_time": 60}
    draft.config |= {"global_batch_size_start": 120, "global_batch_size_end": 120}
    draft.settings = {"train_seconds": 12.0, "spread": 0.1, "payload_bytes": 1_000_000}
    rng = draft.rng
    at = 60.0 + rng.expovariate(1 / CHURN_SECONDS)
    while at < 750.0:
        kind = rng.choice(["join", "leave", "kill", "restart"])
        who = () if kind == "join" else (rng.randrange(draft.num),)
        draft.faults.append(Fault(kind, who, step=0, seconds=120.0, value=1.0, at_seconds=at))
        at += rng.expovariate(1 / CHURN_SECONDS)


def _cheat(draft: Draft) -> None:
    """One kind of cheat after the other, in a run that verifies: it has its fate, and nobody honest any."""
    names = list(CHEATS)
    cheat = names[draft.seed % len(names)]
    draft.num = 9
    draft.config |= {"verification_percent": 34, "epoch_time": 400, "total_steps": 50}
    draft.config |= {"max_round_train_time": 30, "init_min_clients": 9}
    first, second = draft.rng.sample(range(draft.num), 2)
    roles = {first: Role(mode=cheat)}
    if CHEATS[cheat].needs:
        roles[second] = Role(mode=CHEATS[cheat].needs)
    draft.settings = {"roles": roles, "slashing_rate": 500}


def _make_grid() -> list[Fault]:
    """Every kind of fault as each state begins: those of clients in every role that somebody has there.

    In Warmup nobody is elected yet. ``forge`` needs many clients and has a family; ``cut`` needs two.
    """
    grid = []
    for kind in sorted(KINDS.keys() - {"forge", "cut"}):
        for state in STATES:
            for role in ("",) if kind in WITHOUT_CLIENTS else ROLES:
                if (state, role) == ("Warmup", "witness"):
                    continue
                step = 8 if state in ("RoundTrain", "RoundWitness") else 1
                seconds, value = GRID_VALUES.get(kind, (15.0, 0.0))
                grid.append(Fault(kind, (), state, step, seconds=seconds, value=value, role=role))
    return grid


def _grid(draft: Draft) -> None:
    """One fault of the grid, by the script's seed, in a run with elected witnesses and somebody who joins."""
    fault = GRID[draft.seed % len(GRID)]
    draft.num = 6
    draft.config |= {"witness_nodes": 3, "min_clients": 3, "init_min_clients": 3}
    draft.config |= {"epoch_time": 45, "total_steps": 40}
    draft.faults.append(Fault("join", (), "Train", 4, value=1.0))
    if fault.role == "joiner" and fault.point in ("Warmup", "RoundTrain"):
        # who joined before has become a member by now
        draft.faults.append(Fault("join", (), fault.point, fault.step, value=1.0))
    if fault.point == "RoundWitness":
        draft.faults.append(Fault("silent", (), "SendWitness", fault.step, seconds=15.0))
    draft.faults.append(fault)


GRID_VALUES = {
    "restart": (10.0, 0.0),
    "slow": (40.0, 8.0),
    "skew": (0.0, 30.0),
    "deafen": (15.0, 1.0),
    "mute": (15.0, 1.0),
    "slow_link": (30.0, 20_000.0),
    "lossy_link": (60.0, 0.1),
    "rpc_lag": (30.0, 4.0),
    "rate_limit": (30.0, 4.0),
    "expire": (10.0, 0.0),
    "taint": (0.0, 0.0),
    "join": (0.0, 2.0),
    "halt_chain": (20.0, 0.0),
    "slow_chain": (30.0, 5.0),
    "fork": (0.0, 2.0),
    "change_rates": (0.0, 7.0),
}
"""How long and how bad a kind of fault is in the grid."""
GRID = _make_grid()
_PAIRED: list[Callable[[Draft], None]] = [
    _restart, _delay, _drop_announcements, _corrupt_payload, _late_joiner, _slow_link, _silent_witness,
    _pause_in_the_middle, _owner_update, _endpoint, _chain, _clock, _leave, _partition,
]  # fmt: skip


def _exodus(draft: Draft) -> None:
    """Everybody is asked to leave in the same second, and is started again later."""
    seconds = draft.rng.choice([20.0, 60.0, 200.0])
    draft.add("leave", tuple(range(draft.num)), seconds=seconds)


FAMILIES: dict[str, Callable[[Draft], None]] = {
    "calm": lambda draft: None,
    "kill": _kill,
    "restart": _restart,
    "delay": _delay,
    "drop-announcements": _drop_announcements,
    "corrupt-payload": _corrupt_payload,
    "equivocate": _equivocate,
    "forge": _forge,
    "corrupt-weights": _corrupt_weights,
    "partition": _partition,
    "late-joiner": _late_joiner,
    "slow-link": _slow_link,
    "silent-witness": _silent_witness,
    "liar-witness": _liar_witness,
    "pause": _pause_in_the_middle,
    "owner-update": _owner_update,
    "endpoint": _endpoint,
    "chain": _chain,
    "clock": _clock,
    "leave": _leave,
    "exodus": _exodus,
    "churn": _churn,
    "pair": _pair,
    "third-fails": _third_fails,
    "agora": _agora,
    "grid": _grid,
    "cheat": _cheat,
}
NUM_SCRIPTS = {"agora": 2, "forge": 4, "third-fails": 6, "grid": len(GRID), "cheat": 2 * len(CHEATS)}
"""Scripts of a family in the library; DEFAULT_SEEDS where none is given."""
DEFAULT_SEEDS = 12


def make_script(family: str, seed: int) -> Script:
    """The script of a family with a seed. Raises KeyError for a family that there is not."""
    rng = random.Random(f"{family} {seed}")
    draft = Draft(rng, seed, rng.choice([4, 5, 6, 8]))
    FAMILIES[family](draft)
    least = {"init_min_clients": 2, "min_clients": 2}
    config = {"epoch_time": rng.choice([35, 60, 200]), **least, **draft.config}
    settings = Settings(num_clients=draft.num, seed=rng.randrange(2**32), config=config, **draft.settings)
    return Script(f"{family}:{seed}", settings, draft.get_faults())


def make_library(num_seeds: int = DEFAULT_SEEDS) -> list[Script]:
    """Every family's scripts."""
    names = [(f, seed) for f in FAMILIES for seed in range(NUM_SCRIPTS.get(f, num_seeds))]
    return [make_script(family, seed) for family, seed in names]
