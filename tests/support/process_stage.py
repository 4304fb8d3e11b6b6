"""A localnet and client processes that many fault scripts are played on, one after the other.

The run never ends and its epochs are short. Each script begins with all of the stage's clients in a fresh
epoch and ends with :meth:`Stage.check`: that epoch comes to its end with equal digests and every sample
accounted for. A script that fails takes its stage with it.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from client_processes import Home, ProcessClient, ProcessRun, start_run
from links import Links

from psyche_py.observe.events import Event
from psyche_py.observe.tally import are_digests_equal, find_unaccounted

NUM_CLIENTS = 4
SCRIPT_SECONDS = 240.0
FRESH_HEIGHT = 6
PUPPET = Path(__file__).with_name("puppet_client.py")
CONFIG = {
    "total_steps": 10**6,
    "epoch_time": 7,
    "warmup_time": 5,
    "max_round_train_time": 5,
    "round_witness_time": 2,
    "cooldown_time": 2,
    "init_min_clients": NUM_CLIENTS,
    "global_batch_size_start": 8,
    "global_batch_size_end": 8,
}
SLOW_CONFIG = {"epoch_time": 20, "warmup_time": 12, "max_round_train_time": 10, "round_witness_time": 4}
"""Over links, where a round takes a second."""
NUM_NAMESPACES = 2 + NUM_CLIENTS


class Stage:
    """See the module. The last of its clients is a puppet (``puppet_client``)."""

    def __init__(self, run: ProcessRun) -> None:
        self.run = run
        self.clients = [run.add_client() for _ in range(NUM_CLIENTS - 1)]
        self.orders = run.directory / "orders.json"
        self.puppet = run.add_client(command=[sys.executable, str(PUPPET), str(self.orders)])
        self.clients.append(self.puppet)

    # ---- before a script ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """All of the stage's clients run, and train together in an epoch that has just begun."""
        self.orders.unlink(missing_ok=True)
        self._restart_the_dead()
        self.wait_for(self._is_fresh)

    def _restart_the_dead(self) -> None:
        for client in self.clients:
            if client.process.poll() is not None:
                self.restart(client)

    def _is_fresh(self) -> bool:
        """The epoch has rounds to come, of which there are two or three a second."""
        tallies = [client.tally for client in self.clients]
        together = all(tally.num_healthy == NUM_CLIENTS for tally in tallies)
        is_training = all(tally.run_state in ("RoundTrain", "RoundWitness") for tally in tallies)
        heights = [tally.height for tally in tallies]
        return together and is_training and min(heights) >= 1 and max(heights) <= FRESH_HEIGHT

    # ---- what happens -------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until something is so, judged by the clients' events."""
        self.run.wait_for(condition, SCRIPT_SECONDS)

    def await_new(self, client: ProcessClient, kind: str, **fields: object) -> Event:
        """The next event of a kind that a client reports from now on."""
        client.update()
        seen = len(client.events)

        def find() -> Event | None:
            for event in client.events[seen:]:
                if event["kind"] == kind and all(event[key] == value for key, value in fields.items()):
                    return event
            return None

        self.wait_for(lambda: find() is not None)
        found = find()
        assert found is not None
        return found

    def kill(self, *clients: ProcessClient) -> None:
        """SIGKILL, to all before any of them is waited for."""
        for client in clients:
            client.process.send_signal(signal.SIGKILL)
        for client in clients:
            client.process.wait()

    def restart(self, client: ProcessClient) -> None:
        """The same wallet, a new process."""
        self.run.start_client(client)

    def order(self, name: str) -> None:
        """Have the puppet misbehave."""
        draft = self.orders.with_suffix(".draft")
        draft.write_text(json.dumps({"order": name}))
        draft.rename(self.orders)

    def add_guest(self, *options: str) -> ProcessClient:
        """One more client, which is gone when the next script begins."""
        return self.run.add_client(*options)

    def dismiss(self, guest: ProcessClient) -> None:
        """Ask a guest to leave, and wait until it has."""
        guest.process.send_signal(signal.SIGINT)
        self.run.wait_for_end([guest], SCRIPT_SECONDS)

    # ---- after a script -----------------------------------------------------------------------------

    def check(self, *rejoined: ProcessClient) -> None:
        """The epoch in work comes to its end, and for those who ``rejoined`` the one after it, with equal
        digests, and no sample of the run unaccounted for. Clients that are gone begin again meanwhile."""
        first = self.run.get_account().epoch
        steady = [client for client in self.clients if client.process.poll() is None]
        self._restart_the_dead()
        self.wait_for(lambda: all(get_newest(client) >= first for client in steady if client not in rejoined))
        self.wait_for(lambda: all(get_newest(client) > first for client in rejoined))
        members = {*steady, *rejoined}
        ended = min(get_newest(client) for client in members)
        assert len({client.tally.epoch_digests.get(ended) for client in members} - {None}) == 1
        tallies = [client.tally for client in self.run.clients]
        self.wait_for(lambda: max(tally.epoch for tally in tallies) > ended)  # settled
        # it may be the run's first epoch, in which nothing was trained
        self.wait_for(lambda: self.run.get_account().epoch_start_data_index > 0)
        end = self.run.get_account().epoch_start_data_index
        self.wait_for(lambda: not find_unaccounted(tallies, end))
        assert are_digests_equal(tallies)


def get_newest(client: ProcessClient) -> int:
    """The newest epoch that a client has ended; -1 when there is none."""
    return max(client.tally.epoch_digests, default=-1)


@contextmanager
def open_stage(directory: Path, shards: Path, model: Path, links: Links | None = None) -> Iterator[Stage]:
    """A stage whose processes end with the block, and whose files go with it unless the block failed.

    With ``links`` (``NUM_NAMESPACES`` of them) the validator is in the first namespace and every client in
    one of its own, guests in the last; the calling thread has to be in the first whenever it uses the stage.
    """
    directory.mkdir()
    where: dict[str, Any] = {}
    if links is not None:
        where = {"host": links.get_address(0), "find_home": partial(_find_home, links), **SLOW_CONFIG}
    with start_run(directory, shards, model, **{**CONFIG, **where}) as run:
        yield Stage(run)
    shutil.rmtree(directory)


def _find_home(links: Links, number: int) -> Home:
    """The namespace of a client of the stage; guests, of which there is one at a time, share theirs."""
    place = 1 + min(number, NUM_CLIENTS)
    return Home(links.get_command(place, ()), ("--listen-host", links.get_address(place)))
