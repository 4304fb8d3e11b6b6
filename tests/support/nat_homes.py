"""Three nodes in the world of nat_world.py, each a process: two at home behind routers, one public."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nat_world import HOMES, PUBLIC_IP, NatWorld, open_nat_world

CHILD = Path(__file__).with_name("nat_node.py")


class Node:
    """A process in a namespace."""

    def __init__(self, world: NatWorld, place: str, seed: int, ip: str, announce: str) -> None:
        self._world, self._place = world, place
        command = world.get_command(place, sys.executable, str(CHILD), f"{seed:02x}" * 32, ip, announce)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        hello = self._hear()
        self.key: str = hello["key"]
        self.hint: str = hello["hint"]

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the node has died; its error stands above"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def __call__(self, **command: Any) -> dict[str, Any]:
        """Have it do one thing."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._hear()

    def open_neighbour(self, place: str, seed: int, ip: str) -> Node:
        """One more in the same world, with a public address."""
        return Node(self._world, place, seed, ip, ip)

    def count_received_bytes(self) -> int:
        """What has come in at the network card of its machine."""
        counter = "/sys/class/net/eth0/statistics/rx_bytes"
        command = self._world.get_command(self._place, "cat", counter)
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def open_homes(random_ports: Collection[str] = ()) -> Iterator[tuple[Node, Node, Node]]:
    """a and b at home, p public, all connected as far as they can be."""
    with open_nat_world(random_ports) as world:
        if isinstance(world, str):
            pytest.skip(world)
        started: list[Node] = []
        try:
            for number, (place, ip) in enumerate(HOMES.items(), 1):
                started.append(Node(world, place, number, ip, "none"))
            started.append(Node(world, "p", 3, PUBLIC_IP, PUBLIC_IP))
            for node in started:
                node(peers=[[other.key, other.hint] for other in started])
            a, b, p = started
            p(connected=2)
            a(connected=1)
            b(connected=1)
            yield a, b, p
        finally:
            for node in started:
                node.close()
