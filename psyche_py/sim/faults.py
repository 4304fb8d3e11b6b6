"""What can go wrong in a simulated run, and when.

A fault waits for a point of a round: the name of an action (``Train``, ``Publish``, ``SendWitness``, ...; of
one client, or of whoever is first) or of a run state that begins, from a step, an epoch and a round on. Or it
comes at a time. Here are those of processes and of the mesh; ``chain_faults`` has the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psyche_py.client import actions as act
from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.layout import ClientState
from psyche_py.errors import UsageError
from psyche_py.p2p.message import Finished, RoundHeader, TrainingResult, encode_message
from psyche_py.sim.chain import PROGRAM_ID, RUN_ID
from psyche_py.sim.chain_faults import CHAIN_KINDS

if TYPE_CHECKING:
    from psyche_py.sim.world import World

FOREVER = 1e9


class RoleError(UsageError):
    """A fault names a role that nobody has when it strikes."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` is one of KINDS and befalls ``clients``, at ``point`` of client ``by`` (None: of any).

    Where neither ``clients`` nor a ``role`` (one of ROLES) is named, whoever is at the point is meant.
    It waits for ``step``, ``epoch`` and the epoch's ``round``; or comes ``at_seconds`` after the run began
    (None: at the point). ``seconds`` is how long it lasts, 0 for ever; ``value`` is the kind's: a share, a
    rate, a factor.
    """

    kind: str
    clients: tuple[int, ...] = ()
    point: str = "Train"
    step: int = 5
    by: int | None = None
    seconds: float = 0.0
    value: float = 0.0
    epoch: int = 0
    round: int = 0
    at_seconds: float | None = None
    role: str = ""

    def describe(self) -> str:
        """What it is and what it waits for."""
        when = self.point if self.at_seconds is None else f"{self.at_seconds:g} s"
        return f"{self.kind} at {when} (step {self.step}, epoch {self.epoch})"

    def get_end(self, world: World) -> float:
        """When it is over, if it begins now."""
        return world.clock.now + (self.seconds or FOREVER)

    def is_due(self, world: World) -> bool:
        """Whether the run has come as far as it waits for."""
        account = world.account
        if account.step < self.step or account.epoch < self.epoch:
            return False
        return account.epoch > self.epoch or account.current_round.height >= self.round


class Faults:
    """The faults that have not happened yet, by the point they wait for."""

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self._world = world
        self._armed: dict[str, list[Fault]] = {}
        self.fired: list[Fault] = []
        for fault in faults:
            self._armed.setdefault(fault.point if fault.at_seconds is None else "", []).append(fault)
            if fault.at_seconds is not None:
                world.clock.after(fault.at_seconds, self._strike, "", fault)

    @property
    def waiting(self) -> list[Fault]:
        """Those whose point has not come."""
        return [fault for faults in self._armed.values() for fault in faults]

    def notice(self, point: str, client: int | None) -> None:
        """A client does something, or a state begins (``client`` None)."""
        armed = self._armed.get(point)
        if not armed:
            return
        for fault in [f for f in armed if f.by in (None, client) and f.is_due(self._world)]:
            self._strike(point, fault, client)

    def _strike(self, point: str, fault: Fault, client: int | None = None) -> None:
        self._armed[point].remove(fault)
        if fault.role:
            fault = replace(fault, clients=find_by_role(self._world, fault.role))
        elif not fault.clients and client is not None and fault.kind not in WITHOUT_CLIENTS:
            fault = replace(fault, clients=(client,))
        self.fired.append(fault)
        who = " ".join(map(str, fault.clients))
        self._world.timeline.take_mark(f"{fault.kind} {who}".strip())
        KINDS[fault.kind](self._world, fault)


def _forge(world: World, fault: Fault) -> None:
    """They sign another result of the last round that fits the blooms, if one of ``value`` tries does.

    The witnesses' blooms need not be on chain yet: everybody knows what will be in them. It is said
    ``seconds`` later, when the witnesses have attested and before anybody applies.
    """
    for number in fault.clients:
        client = world.clients[number]
        session, account = client.machine.session, client.machine.account
        record = session.records.get(session.newest - 1) if session is not None else None
        if session is None or account is None or record is None or session.index not in record.verified:
            continue
        seed, true = account.current_round.random_seed, record.verified[session.index]
        bloom = Bloom(seed, record.compute_broadcast_bloom(seed))
        tries = (
            Commitment(hashlib.sha256(b"forged" + true + i.to_bytes(4, "little")).digest())
            for i in range(int(fault.value))
        )
        hashes = ((commitment.compute_hash(), commitment) for commitment in tries)
        forged = next(
            (commitment for digest, commitment in hashes if digest < true and digest in bloom), None
        )
        if forged is None:
            continue
        world.forged.add(forged.payload_hash)
        client.keep(forged.payload_hash)
        run_id = RUN_ID.encode().ljust(32, b"\0")
        header = RoundHeader(PROGRAM_ID, run_id, session.epoch, record.height, session.index)
        size = world.settings.payload_bytes
        body = encode_message(
            TrainingResult(header, *record.assignment[session.index], forged.encode(), size)
        )
        client.later(fault.seconds, world.wires.announce, number, act.Heard(client.p2p_key, body))


# ---- roles ------------------------------------------------------------------------------------------------


def find_by_role(world: World, role: str) -> tuple[int, ...]:
    """Who has a role at the moment: one of them. Raises RoleError when nobody has."""
    numbers = ROLES[role](world)
    if not numbers:
        raise RoleError(
            f"Nobody is a {role} in {world.account.run_state.name} at step {world.account.step}.",
            "Name a client, or another point.",
        )
    return (world.rng.choice(numbers),)


def _get_members(world: World, *, elected: bool) -> list[int]:
    """Clients of the epoch that the present round has elected as witnesses, or has not."""
    account = world.account
    chosen = set(account.current_round.elected_indices)
    found = [world.get_client(c.p2p_key) for c in account.epoch_clients if (c.index in chosen) == elected]
    return [client.number for client in found if client is not None]


def _get_joiners(world: World) -> list[int]:
    """Clients that are not part of the epoch (yet)."""
    members = {client.p2p_key for client in world.account.epoch_clients}
    return [client.number for client in world.clients if client.p2p_key not in members]


def _get_poster(world: World) -> list[int]:
    """The healthy client with the lowest index, who tells the run where its checkpoint is."""
    for client in world.account.epoch_clients:
        found = world.get_client(client.p2p_key)
        if client.state is ClientState.Healthy and found is not None:
            return [found.number]
    return []


ROLES: dict[str, Callable[[World], list[int]]] = {
    "witness": lambda world: _get_members(world, elected=True),
    "trainer": lambda world: _get_members(world, elected=False),
    "joiner": _get_joiners,
    "poster": _get_poster,
}
"""Who is meant, by what it does at the moment."""


# ---- processes --------------------------------------------------------------------------------------------


def _kill(world: World, fault: Fault) -> None:
    for number in fault.clients:
        world.clients[number].die()
        world.gone.add(number)


def _restart(world: World, fault: Fault) -> None:
    """The process ends and begins again after ``seconds``, with an empty memory."""
    _kill(world, fault)
    _begin_later(world, fault)


def _begin_later(world: World, fault: Fault) -> None:
    """New processes after ``seconds``."""
    for number in fault.clients:
        world.clients[number].will_return = True
        world.gone.discard(number)

    def begin() -> None:
        for number in fault.clients:
            client = world.clients[number]
            client.is_dead, client.will_return, client.stopped = False, False, ""
            world.wires.set_up(number, True)
            client.begin()
            world.start_client(client)

    world.clock.after(fault.seconds, begin)


def _freeze(world: World, fault: Fault) -> None:
    for number in fault.clients:
        until = fault.get_end(world)
        world.clients[number].frozen_until = until
        world.wires.freeze(number, until)


def _slow(world: World, fault: Fault) -> None:
    """Training takes ``value`` times as long."""
    for number in fault.clients:
        wrong = world.clients[number].wrong
        wrong.slow_until, wrong.slowness = fault.get_end(world), fault.value


def _join(world: World, fault: Fault) -> None:
    """``value`` new wallets."""
    for _ in range(int(fault.value) or 1):
        world.add_client()


def _leave(world: World, fault: Fault) -> None:
    """They finish the round and leave; with ``seconds`` they are started again after so long."""
    for number in fault.clients:
        client = world.clients[number]
        world.gone.add(number)
        client.later(0.0, client.feed, act.LeaveAsked())
    if fault.seconds:
        _begin_later(world, fault)


# ---- the mesh ---------------------------------------------------------------------------------------------


def _for_a_while(world: World, fault: Fault, change: Callable[[int], Callable[[], None]]) -> None:
    """``change(client)`` does it and returns what undoes it."""
    for number in fault.clients:
        undo = change(number)
        if fault.seconds:
            world.clock.after(fault.seconds, undo)


def _deafen(world: World, fault: Fault) -> None:
    """Announcements do not reach them: a share of ``value``."""

    def change(number: int) -> Callable[[], None]:
        port = world.wires.ports[number]
        port.drops_heard = fault.value
        return lambda: setattr(port, "drops_heard", 0.0)

    _for_a_while(world, fault, change)


def _mute(world: World, fault: Fault) -> None:
    """Their announcements reach nobody: a share of ``value``."""

    def change(number: int) -> Callable[[], None]:
        port = world.wires.ports[number]
        port.drops_said = fault.value
        return lambda: setattr(port, "drops_said", 0.0)

    _for_a_while(world, fault, change)


def _slow_link(world: World, fault: Fault) -> None:
    """``value`` bytes a second, both ways."""

    def change(number: int) -> Callable[[], None]:
        wires = world.wires
        before = wires.ports[number].link
        slow = replace(before, up_bytes_per_second=fault.value, down_bytes_per_second=fault.value)
        wires.set_link(number, slow)
        return lambda: wires.set_link(number, before)

    _for_a_while(world, fault, change)


def _lossy_link(world: World, fault: Fault) -> None:
    """A share of ``value`` of the packets is lost, and a packet takes a quarter of a second."""

    def change(number: int) -> Callable[[], None]:
        wires = world.wires
        before = wires.ports[number].link
        wires.set_link(number, replace(before, loss=fault.value, latency_seconds=0.25))
        return lambda: wires.set_link(number, before)

    _for_a_while(world, fault, change)


def _partition(world: World, fault: Fault) -> None:
    """They hear each other, and nobody else; the chain is reached by all."""
    world.wires.partition(fault.clients)
    world.clock.after(fault.seconds, world.wires.heal)


def _cut(world: World, fault: Fault) -> None:
    """Each two of them do not hear each other; everybody else hears all of them."""
    pairs = {(a, b) for a in fault.clients for b in fault.clients if a != b}
    world.wires.cut(pairs)
    if fault.seconds:
        world.clock.after(fault.seconds, world.wires.mend, pairs)


# ---- misconduct -------------------------------------------------------------------------------------------


def _misbehave(name: str, doc: str) -> Callable[[World, Fault], None]:
    def begin(world: World, fault: Fault) -> None:
        for number in fault.clients:
            setattr(world.clients[number].wrong, name, fault.get_end(world))

    begin.__doc__ = doc
    return begin


def _taint(world: World, fault: Fault) -> None:
    """A bit of their weights flips."""
    for number in fault.clients:
        client = world.clients[number]
        client.trainer.weights = bytes([client.weights[0] ^ 1]) + client.weights[1:]
        client.is_tainted = True


def _babble(world: World, fault: Fault) -> None:
    """Announcements that mean nothing: garbage, another run's, another epoch's, rounds far away."""
    for number in fault.clients:
        client = world.clients[number]
        session = client.machine.session
        if session is None:
            continue
        run_id, digest = RUN_ID.encode().ljust(32, b"\0"), bytes([number]) * 32
        made_up = Commitment(digest).encode()
        here = RoundHeader(PROGRAM_ID, run_id, session.epoch, max(session.newest, 0), session.index)
        bodies = [
            b"garbage",
            encode_message(Finished(replace(here, program_id=bytes(32)), digest, 0.0)),
            encode_message(Finished(replace(here, epoch=session.epoch + 1), digest, 0.0)),
            encode_message(TrainingResult(replace(here, height=here.height + 50), 0, 1, made_up, 9)),
            encode_message(TrainingResult(replace(here, sender_index=250), 0, 1, made_up, 9)),
            encode_message(TrainingResult(here, 10**9, 10**9, made_up, 9)),
        ]
        for body in bodies:
            world.wires.announce(number, act.Heard(client.p2p_key, body))


KINDS: dict[str, Callable[[World, Fault], None]] = {
    "kill": _kill,
    "restart": _restart,
    "freeze": _freeze,
    "slow": _slow,
    "join": _join,
    "leave": _leave,
    "deafen": _deafen,
    "mute": _mute,
    "slow_link": _slow_link,
    "lossy_link": _lossy_link,
    "partition": _partition,
    "cut": _cut,
    "silent": _misbehave("silent_until", "They do not attest."),
    "liar": _misbehave("lies_until", "As witnesses they deny every second client that they saw."),
    "tamper": _misbehave("tampers_until", "They hand out other bytes than they were asked for."),
    "malformed": _misbehave("malformed_until", "They commit to payloads that do not decode."),
    "taint": _taint,
    "equivocate": _misbehave("equivocates_until", "They sign two results for one batch."),
    "babble": _babble,
    "forge": _forge,
    **CHAIN_KINDS,
}
WITHOUT_CLIENTS = ("join", "halt_chain", "slow_chain", "fork", "pause", "change_rates", "describe")
"""Kinds that befall nobody in particular."""
