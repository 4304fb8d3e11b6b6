"""Slow, long and lossy links between network namespaces of our own, emulated in user space.

Every namespace has one TUN device, whose packets pass through a process of ours: uplink rate, one-way delay,
downlink rate, loss. Kernels without netem can do that too. Nothing leaves the namespaces.

    python links.py RATE_MBIT DELAY_MS LOSS NAME...     (the emulator: one TUN device per namespace NAME)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

TUN = Path("/dev/net/tun")
NETWORK = "10.98.0."
MTU = 1500
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
LONG_AND_LOSSY = {"rate_mbit": 200.0, "delay_ms": 80.0, "loss": 0.005}
"""For `open_links`: what clients are tested over; the delay is one way."""
QUEUE_SECONDS = 0.1
"""What waits for longer at an uplink or downlink is dropped, as routers do."""


@dataclass(frozen=True)
class Links:
    """Namespaces by their names; the i-th has address 10.98.0.(i + 1)."""

    names: Sequence[str]

    def get_address(self, number: int) -> str:
        """Address of a namespace."""
        return f"{NETWORK}{number + 1}"

    def get_command(self, number: int, command: Sequence[str]) -> list[str]:
        """The command, run in a namespace."""
        return ["ip", "netns", "exec", self.names[number], *command]

    @contextlib.contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """This thread's sockets and children are in a namespace for the length of a block."""
        with (
            open("/proc/thread-self/ns/net", "rb") as home,
            open(f"/var/run/netns/{self.names[number]}", "rb") as there,
        ):
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


def find_obstacle() -> str:
    """Why this machine does not allow it; empty when it does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if not TUN.exists():
        return f"there is no {TUN}"
    name = f"psyche-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"network namespaces are not allowed: {done.stderr.strip()}"
    _run("ip", "netns", "del", name)
    return ""


@contextlib.contextmanager
def open_links(num: int, *, rate_mbit: float, delay_ms: float, loss: float) -> Iterator[Links]:
    """``num`` namespaces for a block; ``delay_ms`` is one way, ``loss`` a packet's probability of it."""
    names = [f"psyche-{os.getpid()}-{number}" for number in range(num)]
    made: list[str] = []
    emulator: subprocess.Popen[str] | None = None
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            made.append(name)
        command = [sys.executable, __file__, str(rate_mbit), str(delay_ms), str(loss), *names]
        emulator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert emulator.stdout is not None
        assert emulator.stdout.readline() == "ready\n", "the link emulator did not start"
        for number, name in enumerate(names):
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", _get_device(number), "mtu", str(MTU), "up")
            _run("ip", "-n", name, "addr", "add", f"{NETWORK}{number + 1}/24", "dev", _get_device(number))
        yield Links(names)
    finally:
        if emulator is not None:
            emulator.send_signal(signal.SIGTERM)
            emulator.wait()
            assert emulator.stdout is not None
            emulator.stdout.close()
        for name in made:
            _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _get_device(number: int) -> str:
    return f"link{number}"


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


# ---- the emulator -----------------------------------------------------------------------------------------


class Emulator:
    """Passes packets on. Every node has an uplink and a downlink of one rate; between them lies the delay."""

    def __init__(self, devices: Sequence[int], rate_mbit: float, delay_ms: float, loss: float) -> None:
        self._devices = devices
        self._seconds_per_byte = 8 / (rate_mbit * 1e6)
        self._delay, self._loss = delay_ms / 1000, loss
        self._rng = random.Random(1)
        self._up_free = [0.0] * len(devices)
        self._down_free = [0.0] * len(devices)
        self._order = count()
        self._waiting: list[tuple[float, int, bool, int, bytes]] = []

    def run(self) -> None:
        """Until the process is ended."""
        poll = select.poll()
        nodes = {device: number for number, device in enumerate(self._devices)}
        for device in self._devices:
            poll.register(device, select.POLLIN)
        while True:
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                self._arrive(*heapq.heappop(self._waiting))
            wait = 1.0 if not self._waiting else max(self._waiting[0][0] - time.monotonic(), 0.0)
            for device, _ in poll.poll(wait * 1000):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        self._send(nodes[device], os.read(device, 65536))

    def _send(self, source: int, packet: bytes) -> None:
        is_ours = len(packet) >= 20 and packet[0] >> 4 == 4 and packet[16:19] == bytes((10, 98, 0))
        target = packet[19] - 1 if is_ours else -1
        if not 0 <= target < len(self._devices) or self._rng.random() < self._loss:
            return
        now = time.monotonic()
        begin = max(self._up_free[source], now)
        if begin - now > QUEUE_SECONDS:
            return
        self._up_free[source] = begin + len(packet) * self._seconds_per_byte
        self._push(self._up_free[source] + self._delay, False, target, packet)

    def _arrive(self, when: float, _: int, has_passed: bool, target: int, packet: bytes) -> None:
        if has_passed:
            with contextlib.suppress(BlockingIOError):
                os.write(self._devices[target], packet)
            return
        begin = max(self._down_free[target], when)
        if begin - when > QUEUE_SECONDS:
            return
        self._down_free[target] = begin + len(packet) * self._seconds_per_byte
        self._push(self._down_free[target], True, target, packet)

    def _push(self, when: float, has_passed: bool, target: int, packet: bytes) -> None:
        heapq.heappush(self._waiting, (when, next(self._order), has_passed, target, packet))


def _make_device(number: int, namespace: str) -> int:
    """A TUN device in a namespace; its other end stays with us."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    name = f"psy{os.getpid()}x{number}"[:15]
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", namespace, "name", _get_device(number))
    return device


def main() -> None:
    """The process of the emulator."""
    rate_mbit, delay_ms, loss = (float(argument) for argument in sys.argv[1:4])
    devices = [_make_device(number, name) for number, name in enumerate(sys.argv[4:])]
    print("ready", flush=True)
    Emulator(devices, rate_mbit, delay_ms, loss).run()


if __name__ == "__main__":
    main()
