"""Links between simulated clients: what arrives, when, and how many bytes who sent.

Transfers of one client share its uplink first come, first served. A transfer over TCP that loses packets is
bounded by the Mathis formula; an announcement that loses one comes a retransmission later. Clients that a
partition parts do not hear each other; what was said in the last minute is repeated when it heals, as the
mesh does for new neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from psyche_py.p2p.flood import REPLAY_SECONDS
from psyche_py.sim.clock import VirtualClock
from psyche_py.sim.settings import Link

FRAME_BYTES = 96
"""Key and signature around an announcement's body."""
FULL_MESH = 32
"""Up to so many clients everybody is everybody's neighbour; in larger meshes announcements take two hops."""
SEGMENT_BYTES = 1460
MATHIS = 1.22
RETRANSMIT_SECONDS = 0.2
HOP_SECONDS = 0.002
"""To check a frame's signature and pass it on."""


@dataclass(slots=True)
class Port:
    """A client's end of its links."""

    link: Link
    group: int = 0
    is_up: bool = True
    up_free_at: float = 0.0
    down_free_at: float = 0.0
    drops_heard: float = 0.0
    drops_said: float = 0.0
    sent: dict[str, int] = field(
        default_factory=lambda: {"own": 0, "relayed": 0, "announcements": 0, "model": 0}
    )


class Wires:
    """All links. ``deliver(receiver, sender, body)`` is called for an announcement that arrives."""

    def __init__(
        self, clock: VirtualClock, rng: random.Random, deliver: Callable[[int, int, bytes], None]
    ) -> None:
        self.ports: list[Port] = []
        self._clock = clock
        self._rng = rng
        self._deliver = deliver
        self._blocked: list[tuple[float, int, int, bytes]] = []

    def add(self, link: Link) -> None:
        """Plug in one more client."""
        self.ports.append(Port(link))

    def is_connected(self, a: int, b: int) -> bool:
        """Both are up, and no partition lies between them."""
        first, second = self.ports[a], self.ports[b]
        return first.is_up and second.is_up and first.group == second.group

    def partition(self, members: Collection[int]) -> None:
        """Part ``members`` from the others."""
        for number, port in enumerate(self.ports):
            port.group = int(number in members)

    def heal(self) -> None:
        """Undo :meth:`partition`; the last minute is said again."""
        for port in self.ports:
            port.group = 0
        blocked, self._blocked = self._blocked, []
        for time, receiver, sender, body in blocked:
            if time >= self._clock.now - REPLAY_SECONDS:
                self._send(sender, receiver, body)

    def get_latency(self, a: int, b: int) -> float:
        """Seconds one way."""
        return (self.ports[a].link.latency_seconds + self.ports[b].link.latency_seconds) / 2

    # ---- announcements ------------------------------------------------------------------------------

    def announce(self, sender: int, body: bytes) -> None:
        """Flood a body. Every client passes it on to its neighbours but the one it came from."""
        num = len(self.ports)
        copies = min(num - 1, FULL_MESH)
        size = len(body) + FRAME_BYTES
        for number, port in enumerate(self.ports):
            if port.is_up:
                port.sent["announcements"] += size * (copies if number == sender else max(copies - 2, 0))
        for receiver in range(num):
            if receiver != sender:
                self._send(sender, receiver, body)

    def _send(self, sender: int, receiver: int, body: bytes) -> None:
        source, target = self.ports[sender], self.ports[receiver]
        if not (source.is_up and target.is_up):
            return
        if source.group != target.group:
            self._blocked.append((self._clock.now, receiver, sender, body))
            return
        lost = max(source.drops_said, target.drops_heard)
        if lost and self._rng.random() < lost:
            return
        hops = 1 if len(self.ports) <= FULL_MESH else 2
        delay = hops * (self.get_latency(sender, receiver) * (1 + 0.2 * self._rng.random()) + HOP_SECONDS)
        loss = max(source.link.loss, target.link.loss)
        while loss and self._rng.random() < loss:
            delay += RETRANSMIT_SECONDS + 2 * self.get_latency(sender, receiver)
        self._clock.after(delay, self._deliver, receiver, sender, body)

    # ---- payloads -----------------------------------------------------------------------------------

    def get_wait(self, holder: int) -> float:
        """Seconds until a holder's uplink is free."""
        return max(self.ports[holder].up_free_at - self._clock.now, 0.0)

    def transfer(self, holder: int, receiver: int, num_bytes: int, kind: str) -> float:
        """Take the links for so many bytes; returns the seconds until the last has arrived.

        The uplink is a queue. The downlink is not: what waits in others' uplinks does not hold up what comes
        now, so only the bytes that were asked for bound it.
        """
        source, target, now = self.ports[holder], self.ports[receiver], self._clock.now
        latency = self.get_latency(holder, receiver)
        begin = max(now + latency, source.up_free_at)
        source.up_free_at = begin + num_bytes / source.link.up_bytes_per_second
        source.sent[kind] += num_bytes
        target.down_free_at = (
            max(now + latency, target.down_free_at) + num_bytes / target.link.down_bytes_per_second
        )
        by_packets = begin + num_bytes / self._get_tcp_rate(holder, receiver, latency)
        return max(source.up_free_at, target.down_free_at, by_packets) + latency - now

    def _get_tcp_rate(self, a: int, b: int, latency: float) -> float:
        loss = max(self.ports[a].link.loss, self.ports[b].link.loss)
        if loss == 0.0:
            return float("inf")
        round_trip = max(2 * latency, 1e-3)
        return float(SEGMENT_BYTES * MATHIS / (round_trip * loss**0.5))
