"""The rule book and the program are two writings of one law: every byte after every event is compared."""

from __future__ import annotations

import random
from typing import Any

import pytest
from program_driver import PROGRAM, ProgramDriver, get_keypair
from rulebook_driver import Driver, generate_events, make_join, make_run_config, make_witness, rules

from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT, RunState

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")


def get_signer(client: int) -> bytes:
    return bytes(get_keypair(client).pubkey())


def find_differences(expected: bytes, found: bytes) -> list[str]:
    """Names of the account's top-level fields that differ, for the assertion message."""
    fields = COORDINATOR_ACCOUNT.fields
    assert fields is not None
    names = []
    for name, (dtype, offset, *_) in fields.items():
        span = slice(offset, offset + dtype.itemsize)
        if expected[span] != found[span]:
            names.append(name)
    return names


class Pair:
    """The rule book and the program side by side."""

    def __init__(self, num_wallets: int) -> None:
        self.program = ProgramDriver(num_wallets)
        self.rules = Driver(
            rules.process_init("run", "test"),
            get_signer=get_signer,
            authorization=bytes(self.program.authorization),
        )
        self.check("init_coordinator", {})

    def check(self, name: str, arguments: dict[str, Any]) -> None:
        expected, found = self.rules.account.to_bytes(), self.program.read()
        if expected != found:
            pytest.fail(f"{find_differences(expected, found)} differ after {name} {arguments}")

    def apply(self, name: str, **arguments: Any) -> str | None:
        expected = self.rules.apply(name, **arguments)
        found = self.program.apply(name, **arguments)
        assert found == expected, f"{name} {arguments}: program {found}, rule book {expected}"
        self.check(name, arguments)
        return expected

    def ok(self, name: str, **arguments: Any) -> None:
        assert self.apply(name, **arguments) is None


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_agree_to_the_byte(seed: int) -> None:
    rng = random.Random(seed)
    num_clients = rng.choice([2, 3, 4, 6, 9])
    pair = Pair(num_clients + 1)
    for name, arguments in generate_events(pair.rules, rng, 250, num_clients):
        pair.apply(name, **arguments)


def test_a_full_run_agrees_to_the_byte() -> None:
    """256 clients, 32 witnesses: the largest account there can be, and what it costs."""
    pair = Pair(257)
    config = make_run_config(init_min_clients=256, min_clients=200, warmup_time=50)
    pair.ok("update", config=config.config.to_bytes().hex(), model=config.model.to_bytes().hex())
    pair.ok("set_future_epoch_rates", earning_rate_total_shared=10**9 + 7, slashing_rate_per_client=1)
    pair.ok("set_paused", paused=False)
    for client in range(256):
        pair.ok("join_run", **make_join(client))
    assert pair.apply("join_run", **make_join(256)) == "ClientsFull"
    pair.ok("advance", seconds=2, slots=4)
    pair.ok("tick")
    for client in range(256):
        pair.ok("warmup_witness", client=client, index=client)
    assert pair.rules.account.run_state is RunState.RoundTrain
    for height in range(4):
        assert pair.rules.account.current_round.height == height
        pair.ok("advance", seconds=1, slots=2)
        for client in range(256):
            witness = make_witness(pair.rules, client, missing=1 << 255 if height else 0)
            if witness is not None:
                pair.ok("witness", **witness)
        if height in (1, 2):  # nobody saw client 255
            assert pair.rules.account.run_state is RunState.RoundWitness
            pair.ok("advance", seconds=3, slots=6)
            pair.ok("tick")
        if height == 2:  # once it is dropped, the witnesses' rounds are complete without it
            pair.ok("health_check", client=0, index=255)
    pair.ok("set_paused", paused=True)
    while pair.rules.account.run_state is not RunState.Paused:
        pair.ok("advance", seconds=10, slots=20)
        pair.ok("tick")
    assert pair.rules.account.run_state is RunState.Paused
    assert sum(entry.earned for entry in pair.rules.account.entries) == 10**9 + 7
    assert max(pair.program.units.values()) < 200_000, pair.program.units
