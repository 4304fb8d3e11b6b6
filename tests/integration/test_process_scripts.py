"""Real client processes on loopback, and what can go wrong with them: a table of scripts.

Every script begins with four clients that train together in a fresh epoch, of which the last can be told to
misbehave, and ends with the end of that epoch (the next one's for who had to come back), equal digests of all
honest replicas, and every sample of the run applied exactly once or reported lost. The scripts share their
processes (``process_stage``); each can be run alone with ``-k``.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from client_processes import COMMAND, ProcessClient
from links import LONG_AND_LOSSY, Links, find_obstacle, open_links
from process_stage import NUM_NAMESPACES, Stage, open_stage

from psyche_py.coordinator.layout import NUM_STORED_ROUNDS
from psyche_py.observe.tally import ClientTally

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900)]

STORAGE = 7
FILE_BLOCKS = 200
"""What a client on a "full disk" may write into one file (KiB): its first events, but no weights."""


# ---- killed at a point of a round -------------------------------------------------------------------------


def kill_when_a_round_begins(stage: Stage) -> None:
    victim = stage.clients[1]
    stage.await_new(victim, "state", run_state="RoundTrain")
    stage.kill(victim)
    stage.check()


def kill_a_trainer_with_its_batch_trained(stage: Stage) -> None:
    victim = stage.clients[2]
    stage.await_new(victim, "train")
    stage.kill(victim)
    stage.check()


def kill_a_trainer_that_has_announced(stage: Stage) -> None:
    """Its payload may be in nobody's hands yet."""
    victim = stage.clients[1]
    stage.await_new(victim, "published")
    stage.kill(victim)
    stage.check()


def kill_a_client_that_has_applied(stage: Stage) -> None:
    victim = stage.clients[2]
    stage.await_new(victim, "apply")
    stage.kill(victim)
    stage.check()


def kill_a_witness_that_has_attested(stage: Stage) -> None:
    victim = stage.clients[0]
    stage.await_new(victim, "witness")
    stage.kill(victim)
    stage.check()


def kill_in_a_cooldown(stage: Stage) -> None:
    victim = stage.clients[1]
    stage.await_new(victim, "state", run_state="Cooldown")
    stage.kill(victim)
    stage.check()


def kill_in_a_warmup(stage: Stage) -> None:
    victim = stage.clients[2]
    stage.await_new(victim, "state", run_state="Warmup")
    stage.kill(victim)
    stage.check()


def kill_two_at_once(stage: Stage) -> None:
    """No quorum is left: the epoch ends early, its last two batches are trained in the next one."""
    stage.kill(*stage.clients[:2])
    stage.check()


def kill_the_last_joiner(stage: Stage) -> None:
    """As soon as it is part of an epoch, with the model on its way."""
    guest = stage.add_guest()
    stage.await_new(guest, "state", run_state="Warmup")
    stage.kill(guest)
    stage.check()


# ---- stopped, late, back again ----------------------------------------------------------------------------


def stop_for(client: ProcessClient, seconds: float) -> None:
    """SIGSTOP, and SIGCONT later. The pause is the fault itself, and nobody waits for anything in it."""
    client.process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    client.process.send_signal(signal.SIGCONT)


def stop_a_client_for_two_seconds(stage: Stage) -> None:
    """Shorter than a round may last: it catches up."""
    stop_for(stage.clients[0], 2.0)
    stage.check()


def stop_a_client_for_many_rounds(stage: Stage) -> None:
    """Further than the ring of rounds reaches: it is dropped, and takes the model from its peers."""
    stopped, witness = stage.clients[1], stage.clients[0].tally
    epoch, step = witness.epoch, witness.step
    stopped.process.send_signal(signal.SIGSTOP)
    # the next epoch does not begin without it
    stage.wait_for(lambda: witness.step > step + NUM_STORED_ROUNDS + 1 or witness.epoch > epoch)
    stopped.process.send_signal(signal.SIGCONT)
    stage.check(stopped)


def join_late(stage: Stage) -> None:
    guest = stage.add_guest()
    stage.check(guest)
    assert guest.get_first_source() == "P2P"
    stage.dismiss(guest)


def restart_with_the_same_wallet(stage: Stage) -> None:
    """At once, in the middle of the epoch that it is part of; one wallet stays one client."""
    client = stage.clients[2]
    num_entries = len(stage.run.get_account().entries)
    stage.await_new(client, "apply")  # now its checkpoint is not what the next epoch begins with
    stage.kill(client)
    client.update()
    num_events = len(client.events)
    stage.restart(client)
    stage.check(client)
    assert client.get_first_source(num_events) == "P2P"
    assert len(stage.run.get_account().entries) == num_entries


def interrupt_once(stage: Stage) -> None:
    """It finishes the round and leaves with code 0: its last batch is not lost."""
    client = stage.clients[0]
    client.process.send_signal(signal.SIGINT)
    stage.run.wait_for_end([client])
    assert client.tally.outcome == "left"
    stage.check()


def interrupt_twice(stage: Stage) -> None:
    """It leaves at once with code 130, whatever the chain does."""
    client = stage.clients[1]
    localnet = stage.run.localnet.process
    localnet.send_signal(signal.SIGSTOP)
    client.process.send_signal(signal.SIGINT)
    stage.await_new(client, "leaving")
    client.process.send_signal(signal.SIGINT)
    stage.wait_for(lambda: client.process.poll() is not None)
    localnet.send_signal(signal.SIGCONT)
    assert client.process.returncode == 130
    stage.check()


# ---- the chain --------------------------------------------------------------------------------------------


def stop_the_validator(stage: Stage) -> None:
    """Requests hang and nothing answers; the round stretches and nobody leaves."""
    localnet = stage.run.localnet.process
    localnet.send_signal(signal.SIGSTOP)
    time.sleep(8.0)
    localnet.send_signal(signal.SIGCONT)
    stage.check()


def restart_the_validator(stage: Stage) -> None:
    """Killed, and started again on its ledger."""
    stage.run.kill(stage.run.localnet)
    stage.run.start_localnet()
    stage.check()


# ---- misconduct and misfortune ----------------------------------------------------------------------------


def send_garbage(stage: Stage) -> None:
    """Nobody attests a payload that does not decode, and the others train its batch."""
    stage.order("garbage")
    stage.wait_for(lambda: any("malformed" in text for text in stage.clients[0].tally.warnings))
    stage.orders.unlink()
    stage.check()


def change_a_weight(stage: Stage) -> None:
    """Found by the digests within a round; the client takes the model from its peers, in the same process."""
    puppet, num_events = stage.puppet, len(stage.puppet.events)
    process = puppet.process
    stage.order("flip")

    def is_found() -> bool:
        said = [event["message"] for event in puppet.events[num_events:] if event["kind"] == "warning"]
        return any("our weights differ" in message for message in said)

    stage.wait_for(is_found)
    since = [event for event in puppet.events[num_events:] if event["kind"] == "apply"]
    strip_digests(puppet.tally, since, stage.clients[0].tally)
    stage.check(puppet)
    assert puppet.process is process
    assert puppet.process.poll() is None


def strip_digests(tally: ClientTally, events: list[dict[str, object]], honest: ClientTally) -> None:
    """Take back what the replica reported with the changed weight: two rounds at most."""
    steps = [event["step"] for event in events]
    wrong = [place for place in tally.digests if place[1] in steps]
    differing = [place for place in wrong if tally.digests[place] != honest.digests.get(place)]
    assert 1 <= len(differing) <= 2
    for place in differing:
        del tally.digests[place]


def train_slowly(stage: Stage) -> None:
    """A batch that takes longer than max_round_train_time costs the batch, not the round's other results."""
    stage.order("slow")
    stage.wait_for(lambda: bool(stage.clients[0].tally.untrained))
    stage.orders.unlink(missing_ok=True)
    stage.check()


def block_a_port(stage: Stage) -> None:
    """Nobody can dial the guest, who dials the others."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        guest = stage.add_guest("--announce", f"127.0.0.1:{port}")
        stage.check(guest)
        assert guest.tally.num_rounds > 0
        stage.dismiss(guest)


def fill_a_disk(stage: Stage) -> None:
    """The guest's checkpoint does not fit: it ends with code 7, and the epoch is the others' as before."""
    limit = ["bash", "-c", f'ulimit -f {FILE_BLOCKS} && exec "$@"', "bash"]
    guest = stage.run.add_client(command=[*limit, *COMMAND])
    stage.wait_for(lambda: guest.process.poll() is not None)
    assert guest.process.returncode == STORAGE
    assert list(guest.checkpoints.iterdir()) == []
    stage.check()


SCRIPTS: tuple[Callable[[Stage], None], ...] = (
    kill_when_a_round_begins,
    kill_a_trainer_with_its_batch_trained,
    kill_a_trainer_that_has_announced,
    kill_a_client_that_has_applied,
    kill_a_witness_that_has_attested,
    kill_in_a_cooldown,
    kill_in_a_warmup,
    kill_two_at_once,
    kill_the_last_joiner,
    stop_a_client_for_two_seconds,
    stop_a_client_for_many_rounds,
    join_late,
    restart_with_the_same_wallet,
    interrupt_once,
    interrupt_twice,
    stop_the_validator,
    restart_the_validator,
    send_garbage,
    change_a_weight,
    train_slowly,
    block_a_port,
    fill_a_disk,
)
ON_LINKS = (kill_a_trainer_that_has_announced, join_late, restart_with_the_same_wallet, restart_the_validator)
"""Those that are played over emulated links in every test run."""


class Theatre:
    """Opens a stage when there is none, and a new one after a failure; on ``links`` where they are given."""

    def __init__(self, directory: Path, shards: Path, nano: Path, links: Links | None = None) -> None:
        self._directory, self._shards, self._nano, self._links = directory, shards, nano, links
        self._open: tuple[AbstractContextManager[Stage], Stage] | None = None
        self._count = 0

    def play(self, script: Callable[[Stage], None]) -> None:
        # other tests of this thread are not in the namespace
        with self._links.inside(0) if self._links is not None else nullcontext():
            stage = self._get_stage()
            try:
                stage.prepare()
                script(stage)
            except BaseException as error:
                self.close(error)
                raise

    def _get_stage(self) -> Stage:
        if self._open is None:
            self._count += 1
            place = self._directory / str(self._count)
            context = open_stage(place, self._shards, self._nano, self._links)
            self._open = context, context.__enter__()
        return self._open[1]

    def close(self, error: BaseException | None = None) -> None:
        """With the ``error`` that a script ended with, the files of its stage stay."""
        if self._open is not None:
            context, _ = self._open
            self._open = None
            context.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, shards: Path, nano: Path) -> Iterator[Theatre]:
    theatre = Theatre(tmp_path_factory.mktemp("stages"), shards, nano)
    yield theatre
    theatre.close()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_script(theatre: Theatre, script: Callable[[Stage], None]) -> None:
    theatre.play(script)


@pytest.fixture(scope="module")
def theatre_on_links(tmp_path_factory: pytest.TempPathFactory, shards: Path, nano: Path) -> Iterator[Theatre]:
    obstacle = find_obstacle()
    if obstacle:
        pytest.skip(f"the scripts were not played over emulated links: {obstacle}")
    with open_links(NUM_NAMESPACES, **LONG_AND_LOSSY) as links:
        theatre = Theatre(tmp_path_factory.mktemp("stages"), shards, nano, links)
        yield theatre
        theatre.close()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_script_on_links(theatre_on_links: Theatre, script: Callable[[Stage], None]) -> None:
    """All of them where PSYCHE_ALL_ON_LINKS is set, else a few: they take twice as long as on loopback."""
    if script not in ON_LINKS and "PSYCHE_ALL_ON_LINKS" not in os.environ:
        pytest.skip("not played over emulated links: PSYCHE_ALL_ON_LINKS=1 plays all")
    theatre_on_links.play(script)
