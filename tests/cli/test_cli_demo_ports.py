"""The ports that the demo and the tests give their local validators."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from psyche_py.cli.demo.processes import find_free_ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_they_are_neighbours_and_free() -> None:
    first, second = find_free_ports()
    assert second == first + 1
    for port in (first, second):
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


@pytest.mark.skipif(
    not RANGE.exists(), reason="this system does not tell which ports outgoing connections get"
)
def test_no_outgoing_connection_gets_them() -> None:
    """A client that tries a server in that range while it is down can end up connected to itself."""
    begin, end = (int(text) for text in RANGE.read_text().split())
    if begin < 12_000:
        pytest.skip("this system gives nearly all ports to outgoing connections")
    for _ in range(100):
        first, second = find_free_ports()
        assert not begin <= first <= end
        assert not begin <= second <= end
