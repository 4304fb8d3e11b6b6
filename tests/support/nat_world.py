"""Two homes behind routers that masquerade and let nothing new in, and a public machine: network namespaces.

a 192.168.1.2 - na 10.1.0.2 -+
                             r - p 10.3.0.2
b 192.168.2.2 - nb 10.2.0.2 -+
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager

PUBLIC_IP = "10.3.0.2"
PLACES = ("a", "b", "na", "nb", "r", "p")
HOMES = {"a": "192.168.1.2", "b": "192.168.2.2"}
_RULES = """
table ip nat {
  chain out { type nat hook postrouting priority 100; oifname "wan" MASQUERADE; }
}
table ip filter {
  chain through { type filter hook forward priority 0; iifname "wan" ct state new drop; }
  chain into { type filter hook input priority 0; iifname "wan" ct state new drop; }
}
"""


class NatWorld:
    """The namespaces by their letters.

    ``random_ports``: homes whose routers give every target another port, as some do.
    """

    def __init__(self, random_ports: Collection[str] = ()) -> None:
        self._random_ports = random_ports
        self._prefix = f"pm{os.getpid() % 100_000}"

    def get_command(self, place: str, *command: str) -> list[str]:
        """A command line that runs in a namespace."""
        return ["ip", "netns", "exec", self._prefix + place, *command]

    def probe(self) -> None:
        """Raises CalledProcessError where the machine does not allow what is needed."""
        for place in PLACES:
            _run("ip", "netns", "add", self._prefix + place)
        _run(*self.get_command("na", "nft", "add", "table", "ip", "nat"))

    def build(self) -> None:
        """Cables, addresses and rules."""
        for place in PLACES:
            _run("ip", "-n", self._prefix + place, "link", "set", "lo", "up")
        for number, home in enumerate(("a", "b"), 1):
            router = "n" + home
            self._link(home, "eth0", f"192.168.{number}.2/24", router, "lan", f"192.168.{number}.1/24")
            self._link(router, "wan", f"10.{number}.0.2/24", "r", "to" + home, f"10.{number}.0.1/24")
            self._route(home, f"192.168.{number}.1")
            self._route(router, f"10.{number}.0.1")
            masquerade = "masquerade random" if home in self._random_ports else "masquerade"
            rules = _RULES.replace("MASQUERADE", masquerade)
            _run(*self.get_command(router, "nft", "-f", "-"), said=rules)
        self._link("p", "eth0", f"{PUBLIC_IP}/24", "r", "top", "10.3.0.1/24")
        self._route("p", "10.3.0.1")
        for router in ("na", "nb", "r"):
            _run(*self.get_command(router, "sysctl", "-qw", "net.ipv4.ip_forward=1"))

    def remove(self) -> None:
        """Take all of it down, whatever stands."""
        for place in PLACES:
            subprocess.run(
                ["ip", "netns", "del", self._prefix + place], check=False, stderr=subprocess.DEVNULL
            )

    def _link(self, one: str, one_name: str, one_ip: str, two: str, two_name: str, two_ip: str) -> None:
        one, two = self._prefix + one, self._prefix + two
        pair = ("peer", "name", two_name, "netns", two)
        _run("ip", "link", "add", one_name, "netns", one, "type", "veth", *pair)
        for place, name, ip in ((one, one_name, one_ip), (two, two_name, two_ip)):
            _run("ip", "-n", place, "addr", "add", ip, "dev", name)
            _run("ip", "-n", place, "link", "set", name, "up")

    def _route(self, place: str, gateway: str) -> None:
        _run("ip", "-n", self._prefix + place, "route", "add", "default", "via", gateway)


@contextmanager
def open_nat_world(random_ports: Collection[str] = ()) -> Iterator[NatWorld | str]:
    """The world, or the reason why there is none on this machine."""
    missing = [tool for tool in ("ip", "nft", "sysctl") if shutil.which(tool) is None]
    if missing or os.geteuid():
        yield f"needs root and the tools ip, nft and sysctl (missing: {', '.join(missing) or 'root'})"
        return
    world = NatWorld(random_ports)
    try:
        world.probe()
    except subprocess.CalledProcessError as error:
        world.remove()
        yield f"network namespaces are not allowed here: {' '.join(error.cmd)}: {error.stderr.strip()}"
        return
    try:
        world.build()
        yield world
    finally:
        world.remove()


def _run(*command: str, said: str = "") -> None:
    subprocess.run(command, input=said, check=True, capture_output=True, text=True)
