"""Links between simulated clients: what arrives, when, and how many bytes who sent.

An announcement goes along the overlay that the nodes of ``p2p`` choose (``flooding``); one that a faulty link
swallows is repaired as the mesh repairs, and none is lost for ever within the minute. Transfers of one client
share its uplink first come, first served. A transfer over TCP that loses packets is bounded by the
Mathis formula; an announcement that loses one comes a retransmission later. Clients that a partition parts
do not hear each other; what was said in the last minute is repeated when it heals, as the mesh does for new
connections.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from psyche_py.client import actions as act
from psyche_py.p2p.flood import REPLAY_SECONDS
from psyche_py.p2p.frames import SHORT_ID_BYTES
from psyche_py.p2p.node import MEAN_REPAIR_WINDOW_SECONDS, REPAIR_SECONDS
from psyche_py.sim.clock import VirtualClock
from psyche_py.sim.flooding import Flooding, Spread
from psyche_py.sim.node import SimNode
from psyche_py.sim.settings import Link, Path

FRAME_BYTES = 96
"""Key and signature around an announcement's body."""
REPAIR_BYTES = int(SHORT_ID_BYTES * MEAN_REPAIR_WINDOW_SECONDS / REPAIR_SECONDS)
"""What a node says in all about a frame that it has, while others ask what is missing."""
SEGMENT_BYTES = 1460
MATHIS = 1.22
RETRANSMIT_SECONDS = 0.2
JITTER = 0.2
"""By so much of the way may an announcement come later."""


@dataclass(slots=True)
class Port:
    """A client's end of its links. Change ``link`` and ``is_up`` through Wires, which keeps the ways."""

    node: SimNode
    link: Link
    group: int = 0
    is_up: bool = True
    frozen_until: float = 0.0
    up_free_at: float = 0.0
    down_free_at: float = 0.0
    drops_heard: float = 0.0
    drops_said: float = 0.0
    sent: dict[str, int] = field(default_factory=lambda: {"own": 0, "relayed": 0, "model": 0, "evidence": 0})


class Wires:
    """All links. ``deliver(receiver, heard)`` is called for an announcement that arrives."""

    def __init__(
        self, clock: VirtualClock, rng: random.Random, deliver: Callable[[int, act.Heard], None]
    ) -> None:
        self.ports: list[Port] = []
        self._numbers: dict[bytes, int] = {}
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._blocked: list[tuple[float, int, int, act.Heard]] = []
        self._cuts: set[tuple[int, int]] = set()
        self._paths: dict[tuple[int, int], float] = {}
        self._flooding = Flooding(
            self._get_own_targets, self._get_second_targets, self._get_neighbours, self.get_latency
        )
        self._copies: dict[int, np.ndarray] = {}
        self._announced = np.zeros(0, dtype=np.int64)

    def add(self, node: SimNode, link: Link) -> None:
        """Plug in one more client."""
        self._numbers[node.key] = len(self.ports)
        self.ports.append(Port(node, link))
        self._announced = np.append(self._announced, 0)
        self.note_change()

    def note_change(self) -> None:
        """Somebody came, went, fell silent, or knows other peers: announcements take other ways."""
        self._flooding.forget()
        self._copies.clear()

    def set_link(self, number: int, link: Link) -> None:
        """Replace a client's link."""
        self.ports[number].link = link
        self._flooding.forget_latencies()
        self.note_change()

    def set_up(self, number: int, is_up: bool) -> None:
        """Its process is there, or is not."""
        self.ports[number].is_up = is_up
        self.note_change()

    def freeze(self, number: int, until: float) -> None:
        """It passes nothing on until then."""
        self.ports[number].frozen_until = until
        self.note_change()
        self._clock.at(until, self.note_change)

    def is_connected(self, a: int, b: int) -> bool:
        """Both are up, and no partition lies between them."""
        first, second = self.ports[a], self.ports[b]
        if not (first.is_up and second.is_up and first.group == second.group):
            return False
        return not self._cuts or (a, b) not in self._cuts

    def is_whole(self, number: int, key: bytes) -> bool:
        """Whether the wires from a client to a peer's key are whole."""
        other = self._numbers.get(key)
        return other is not None and self.is_connected(number, other)

    def partition(self, members: Collection[int]) -> None:
        """Part ``members`` from the others."""
        for number, port in enumerate(self.ports):
            port.group = int(number in members)
        self.note_change()

    def cut(self, pairs: Collection[tuple[int, int]]) -> None:
        """Part each of these pairs (both orders are named): they hear each other by others only."""
        self._cuts.update(pairs)
        self.note_change()

    def mend(self, pairs: Collection[tuple[int, int]]) -> None:
        """Undo :meth:`cut`."""
        self._cuts.difference_update(pairs)
        self.note_change()

    def set_path(self, path: Path) -> None:
        """From now on this is the way between two groups."""
        for a in path.ones:
            for b in path.others:
                self._paths[a, b] = self._paths[b, a] = path.seconds
        self._flooding.forget_latencies()
        self.note_change()

    def heal(self) -> None:
        """Undo :meth:`partition`; the last minute is said again."""
        for port in self.ports:
            port.group = 0
        self.note_change()
        blocked, self._blocked = self._blocked, []
        for time, receiver, sender, heard in blocked:
            if time >= self._clock.now - REPLAY_SECONDS and self.ports[sender].is_up:
                self._send(receiver, sender, heard, self.get_latency(receiver, sender), time)

    def get_latency(self, a: int, b: int) -> float:
        """Seconds one way."""
        if self._paths and (a, b) in self._paths:
            return self._paths[a, b]
        return (self.ports[a].link.latency_seconds + self.ports[b].link.latency_seconds) / 2

    def get_sent(self, number: int) -> dict[str, int]:
        """Bytes a client has sent: its own payloads, others', announcements, the model, evidence."""
        return {**self.ports[number].sent, "announcements": int(self._announced[number])}

    # ---- announcements ------------------------------------------------------------------------------

    def announce(self, sender: int, heard: act.Heard) -> None:
        """Flood an announcement along the overlay."""
        if not self.ports[sender].is_up:
            return
        now, rng = self._clock.now, self._rng
        spread = self._flooding.spread(sender, now, lambda number: self.ports[number].frozen_until <= now)
        self._repair(sender, spread)
        self._count(sender, spread, len(heard.body) + FRAME_BYTES)
        for receiver, time in spread.times.items():
            if receiver != sender:
                self._send(receiver, sender, heard, (time - now) * (1 + JITTER * rng.random()), now)
        if len(spread.times) < len(self.ports):
            self._keep_for_the_parted(sender, heard)

    def whisper(self, sender: int, receiver: int, heard: act.Heard) -> None:
        """Say something to one client alone, before anybody else can tell it."""
        self._clock.after(0.0, self._arrive, receiver, sender, heard, self._clock.now)

    def _repair(self, sender: int, spread: Spread) -> None:
        """Whoever is connected and was not reached is told when a peer compares what they have."""
        key, last = self.ports[sender].node.key, max(spread.times.values())
        for number, port in enumerate(self.ports):
            if number in spread.times or not self.is_connected(sender, number) or not port.node.knows(key):
                continue
            spread.times[number], spread.hops[number] = last + 1.5 * REPAIR_SECONDS, 1

    def _count(self, sender: int, spread: Spread, num_bytes: int) -> None:
        """Bytes that everybody sends of it; who sends it to whom changes with the links only."""
        copies = self._copies.get(sender)
        if copies is None:
            copies = self._flooding.count_copies(sender, spread, len(self.ports))
            self._copies[sender] = copies
        self._announced += num_bytes * copies
        self._announced += REPAIR_BYTES

    def _keep_for_the_parted(self, sender: int, heard: act.Heard) -> None:
        group, now = self.ports[sender].group, self._clock.now
        for number, port in enumerate(self.ports):
            if port.group != group and port.is_up:
                self._blocked.append((now, number, sender, heard))

    def _send(self, receiver: int, sender: int, heard: act.Heard, delay: float, said_at: float) -> None:
        source, target = self.ports[sender], self.ports[receiver]
        lost = max(source.drops_said, target.drops_heard)
        if lost and self._rng.random() < lost:
            self._repair_later(receiver, sender, heard, delay, said_at)
            return
        loss = max(source.link.loss, target.link.loss)
        while loss and self._rng.random() < loss:
            delay += RETRANSMIT_SECONDS + 2 * self.get_latency(sender, receiver)
        self._clock.after(delay, self._arrive, receiver, sender, heard, said_at)

    def _repair_later(
        self, receiver: int, sender: int, heard: act.Heard, delay: float, said_at: float
    ) -> None:
        """About every second the receiver asks a peer what it is missing; that may be lost, too.

        A link that is silent for long is dialed anew, and asks for all of the last minute first.
        """
        again = delay + REPAIR_SECONDS * (0.75 + 0.5 * self._rng.random())
        if self._clock.now + again - said_at <= REPLAY_SECONDS:
            self._clock.after(again, self._send_again, receiver, sender, heard, said_at)

    def _send_again(self, receiver: int, sender: int, heard: act.Heard, said_at: float) -> None:
        if self.is_connected(sender, receiver):
            self._send(receiver, sender, heard, self.get_latency(receiver, sender), said_at)
        else:
            self._arrive(receiver, sender, heard, said_at)

    def _arrive(self, receiver: int, sender: int, heard: act.Heard, said_at: float) -> None:
        """It is there, unless a partition has parted the two meanwhile: then when that heals.

        What a client said before it died is still passed on.
        """
        source, target = self.ports[sender], self.ports[receiver]
        if source.is_up and source.group != target.group:
            self._blocked.append((said_at, receiver, sender, heard))
        else:
            self._deliver(receiver, heard)

    def _get_own_targets(self, number: int) -> list[int]:
        return self._find_known(number, self.ports[number].node.get_own_targets())

    def _get_second_targets(self, number: int, signer: int) -> list[int]:
        return self._find_known(
            number, self.ports[number].node.get_second_targets(self.ports[signer].node.key)
        )

    def _get_neighbours(self, number: int) -> list[int]:
        return self._find_known(number, self.ports[number].node.get_neighbours())

    def _find_known(self, number: int, keys: list[bytes]) -> list[int]:
        """Those of the peers that let a client in."""
        key = self.ports[number].node.key
        found = (self._numbers[other] for other in keys)
        return [other for other in found if self.ports[other].node.knows(key)]

    # ---- payloads -----------------------------------------------------------------------------------

    def transfer(
        self, holder: int, receiver: int, num_bytes: int, kind: str, not_before: float = 0.0
    ) -> float:
        """Take the links for so many bytes; returns the seconds until the last has arrived.

        The uplink is a queue. The downlink is not: what waits in others' uplinks does not hold up what comes
        now, so only the bytes that were asked for bound it. ``not_before``: when the question is there.
        """
        source, target, now = self.ports[holder], self.ports[receiver], self._clock.now
        latency = self.get_latency(holder, receiver)
        asked = max(not_before, now)
        begin = max(asked, source.up_free_at)
        source.up_free_at = begin + num_bytes / source.link.up_bytes_per_second
        source.sent[kind] += num_bytes
        target.down_free_at = max(asked, target.down_free_at) + num_bytes / target.link.down_bytes_per_second
        by_packets = begin + num_bytes / self._get_tcp_rate(holder, receiver, latency)
        return max(source.up_free_at, target.down_free_at, by_packets) + latency - now

    def _get_tcp_rate(self, a: int, b: int, latency: float) -> float:
        loss = max(self.ports[a].link.loss, self.ports[b].link.loss)
        if loss == 0.0:
            return float("inf")
        round_trip = max(2 * latency, 1e-3)
        return float(SEGMENT_BYTES * MATHIS / (round_trip * loss**0.5))
