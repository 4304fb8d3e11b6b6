"""Client processes in network namespaces, over links like those between homes."""

from __future__ import annotations

import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from client_processes import Home, start_run
from links import LONG_AND_LOSSY, Links, find_obstacle, open_links

from psyche_py.coordinator.layout import RunState
from psyche_py.observe.tally import are_digests_equal, find_unaccounted

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]
NUM_CLIENTS = 3


@pytest.fixture(scope="module", autouse=True)
def _need_namespaces() -> None:
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(f"the client was not tested over emulated links: {obstacle}")


def test_packets_take_their_time() -> None:
    """The emulator itself: a round trip over it takes two delays at least, and what was sent arrives."""
    with open_links(2, **{**LONG_AND_LOSSY, "loss": 0.0}) as links:
        with links.inside(0):
            server = socket.create_server((links.get_address(0), 0))
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        with links.inside(1):
            client = socket.create_connection(server.getsockname(), timeout=30)
        started = time.monotonic()
        client.sendall(b"there and back" * 1000)
        received = b""
        while len(received) < 14_000:
            received += client.recv(65536)
        seconds = time.monotonic() - started
        client.close()
        thread.join()
        server.close()
    assert received == b"there and back" * 1000
    assert seconds >= 2 * LONG_AND_LOSSY["delay_ms"] / 1000


def echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def find_home(links: Links, number: int) -> Home:
    return Home(links.get_command(number + 1, ()), ("--listen-host", links.get_address(number + 1)))


def play(links: Links, directory: Path, shards: Path, nano: Path) -> None:
    """A short run; the validator is in the first namespace, every client in one of its own."""
    config = {"total_steps": 16, "epoch_time": 90, "max_round_train_time": 20}
    with (
        links.inside(0),
        start_run(
            directory, shards, nano, host=links.get_address(0), find_home=partial(find_home, links), **config
        ) as run,
    ):
        clients = [run.add_client() for _ in range(NUM_CLIENTS)]
        run.wait_for_end(clients)
        account = run.get_account()
        assert account.run_state is RunState.Finished
        tallies = [client.tally for client in clients]
        assert are_digests_equal(tallies)
        assert not find_unaccounted(tallies, account.epoch_start_data_index)
        assert all(tally.num_rounds > 0 for tally in tallies)
        assert sum(entry.earned for entry in account.entries) == 1000 * account.epoch


def test_three_clients_over_long_lossy_links(tmp_path: Path, shards: Path, nano: Path) -> None:
    with open_links(NUM_CLIENTS + 1, **LONG_AND_LOSSY) as links:
        play(links, tmp_path, shards, nano)
