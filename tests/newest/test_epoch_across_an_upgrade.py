"""A whole epoch on the coordinator as deployed and upgraded by the loader: every byte is the rule book's."""

from __future__ import annotations

import random
from typing import Any

import loader_chain
import pytest
from histories import Character, generate_events
from program_driver import ProgramDriver, get_program_signer
from rulebook_driver import Driver, Event, make_driver, rules
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import SBPF_VERSIONS, read_program
from psyche_py.coordinator.layout import RunState

NUM_CLIENTS = 5
RATE = 1009
ROOM_BYTES = 4096


def make_rules() -> Driver:
    return Driver(rules.process_init("run", "test"), get_signer=get_program_signer)


def record_epoch() -> list[Event]:
    """One epoch: a client that falls silent and is reported, one that leaves, then the end and the points."""
    driver = make_driver(rate=RATE, init_min_clients=NUM_CLIENTS)
    driver.get_signer = get_program_signer
    clients = list(range(NUM_CLIENTS))
    driver.warm_up(clients)
    for height in range(6):
        driver.wait(1)
        silent = driver.account.find_epoch_client(get_program_signer(4)) if height in (2, 3) else None
        driver.attest(clients[:4], missing=0 if silent is None else 1 << silent)
        if driver.account.current_round.height == height:
            driver.tick_at_deadline()
            driver.tick_at_deadline()
        if height == 3:
            driver.ok("health_check", client=0, index=silent)
        if height == 4:
            driver.ok("leave_run", client=3)
    while driver.account.run_state is not RunState.WaitingForMembers:
        driver.tick_at_deadline()
    assert driver.account.epoch == 1
    assert 0 < sum(entry.earned for entry in driver.account.entries) <= RATE
    return driver.log


EPOCH = record_epoch()


def install(version: int) -> Any:
    """Deploys the coordinator in this format, for ProgramDriver."""

    def deploy(svm: Any, program_id: Pubkey) -> None:
        elf = read_program("coordinator", version)
        assert loader_chain.deploy(svm, program_id, elf, room_bytes=ROOM_BYTES) is None

    return deploy


def play(program: ProgramDriver, book: Driver, events: list[Event]) -> None:
    """The same events on both; every byte after each."""
    assert program.read() == book.data
    for name, arguments in events:
        expected = book.apply(name, **arguments)
        assert program.apply(name, **arguments) == expected, (name, arguments)
        assert program.read() == book.data, (name, arguments)


@pytest.mark.parametrize("version", SBPF_VERSIONS)
def test_an_epoch_on_the_deployed_program(version: int) -> None:
    program, book = ProgramDriver(NUM_CLIENTS, install(version)), make_rules()
    play(program, book, EPOCH)
    assert book.account.epoch == 1
    assert loader_chain.read_code(program.svm, program.program_id)[48:52] == bytes([version, 0, 0, 0])


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_on_the_deployed_v3_program(seed: int) -> None:
    rng = random.Random(1000 + seed)
    program, book = ProgramDriver(NUM_CLIENTS + 1, install(3)), make_rules()
    for event in generate_events(book, rng, 250, Character(NUM_CLIENTS)):
        play(program, book, [event])


@pytest.mark.parametrize(("first", "second"), [(0, 3), (3, 0)])
def test_an_upgrade_in_the_middle_of_an_epoch_changes_no_byte(first: int, second: int) -> None:
    program, book = ProgramDriver(NUM_CLIENTS, install(first)), make_rules()
    middle = next(i for i, (name, _) in enumerate(EPOCH) if name == "health_check")
    play(program, book, EPOCH[:middle])
    before = program.read()
    elf = read_program("coordinator", second)
    assert loader_chain.upgrade(program.svm, program.program_id, elf) is None
    assert loader_chain.read_code(program.svm, program.program_id) == elf.rstrip(b"\0")
    assert program.read() == before
    play(program, book, EPOCH[middle:])
    assert book.account.epoch == 1


def test_an_upgrade_takes_effect_and_accounts_survive_it() -> None:
    """With the authorizer's code in its place the coordinator knows nothing; with its own it goes on."""
    program, book = ProgramDriver(NUM_CLIENTS, install(3)), make_rules()
    play(program, book, EPOCH[:20])
    before = program.read()
    assert loader_chain.upgrade(program.svm, program.program_id, read_program("authorizer", 3)) is None
    program.apply("advance", seconds=0, slots=1)
    assert program.apply("leave_run", client=0) == "InvalidInstructionData"
    assert loader_chain.upgrade(program.svm, program.program_id, read_program("coordinator", 3)) is None
    book.apply("advance", seconds=0, slots=1)
    assert program.read() == before
    play(program, book, EPOCH[20:])


def test_both_formats_cost_the_same_compute_units(capsys: pytest.CaptureFixture[str]) -> None:
    units = {}
    for version in SBPF_VERSIONS:
        program, book = ProgramDriver(NUM_CLIENTS, install(version)), make_rules()
        play(program, book, EPOCH)
        units[version] = program.units
    with capsys.disabled():
        print("\ncompute units of the dearest call     SBPF v0   SBPF v3")
        for name in sorted(units[0]):
            print(f"  {name or 'init_coordinator':34} {units[0][name]:8} {units[3][name]:9}")
    assert units[0] == units[3]
