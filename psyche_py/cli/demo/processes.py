"""Child processes of the demo: each logs to a file, and all end with the demo, by their id."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from psyche_py.errors import PsycheError

GRACE_SECONDS = 5.0
_FIRST_PORT = 10_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ChildFailed(PsycheError):
    """A process of the demo ended when it should not have."""


class Child:
    """A process and its log."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def get_last_lines(self, num: int = 4) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-num:])

    def check_alive(self) -> None:
        """Raises ChildFailed when it has ended."""
        if self.exit_code is not None:
            raise ChildFailed(
                f"{self.name} ended with code {self.exit_code}:\n{self.get_last_lines()}",
                f"Its whole log: {self.log}",
            )


class Children:
    """Starts processes and ends them all on exit."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def start(self, name: str, command: Sequence[str], log: Path) -> Child:
        """Start a process."""
        child = Child(name, command, log)
        self._children.append(child)
        return child

    def end_all(self) -> None:
        """End them newest first, so that the chain goes last and clients can still withdraw on it.

        SIGTERM asks, a second one insists, SIGKILL does not ask. Further Ctrl-C cannot break this off.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
        try:
            running = [child for child in self._children if child.exit_code is None]
            for group in (running[1:], running[:1]):
                for send in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                    _signal_and_wait([child for child in group if child.exit_code is None], send)
        finally:
            if previous is not None:  # None: it was not Python's to begin with
                signal.signal(signal.SIGINT, previous)


def _signal_and_wait(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        child.process.send_signal(number)
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(deadline - time.monotonic(), 0.1))


@contextlib.contextmanager
def end_on_hangup() -> Iterator[None]:
    """SIGTERM and a closed terminal act like Ctrl-C, so that nothing the program started stays behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # trio takes this one where it is safe

    kept = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def find_free_ports() -> tuple[int, int]:
    """Two neighbouring free ports on loopback: for RPC and websocket, as Solana's tools expect.

    Not from the range that the system takes the ports of outgoing connections from: one of these could get
    them before the server does, or while it is being restarted. Even a client that tries to reach the server
    meanwhile could, and would then be connected to itself.
    """
    rng, last = random.SystemRandom(), max(_get_first_ephemeral_port(), _FIRST_PORT + 1000) - 1
    for _ in range(1000):
        port = rng.randrange(_FIRST_PORT, last)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port, port + 1
    raise PsycheError("There are no two neighbouring free ports.", "End other servers on this machine.")


def _get_first_ephemeral_port() -> int:
    try:
        return int(_EPHEMERAL_PORTS.read_text().split()[0])
    except OSError:
        return 32_768  # where others than Linux begin, or later
