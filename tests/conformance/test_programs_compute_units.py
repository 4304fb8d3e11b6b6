"""No instruction of a full run costs more than a default transaction may (200,000 compute units).

256 clients, 32 witnesses, every witness different; run with -s to see the figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from programs_harness import ProgramChain, RunHarness
from solders.account import Account

from psyche_py.coordinator.layout import MAX_CLIENTS, RunState

LIMIT = 200_000
OVERHEAD = 150
"""Units of the compute budget instruction that the harness adds."""


class Meter:
    """A run with all the clients it can have, and the dearest call of each kind."""

    def __init__(self) -> None:
        self.run = RunHarness(ProgramChain())
        self.run.open(MAX_CLIENTS, rate=(1 << 63) + 12_345)
        self.worst: dict[str, int] = {}

    def note(self, name: str) -> None:
        """The newest transaction was one of this kind."""
        self.worst[name] = max(self.worst.get(name, 0), self.run.chain.units - OVERHEAD)

    def edit(self, change: Any) -> None:
        """Put the account into a worse state than play would."""
        run = self.run
        record = run.account.copy().record
        change(record)
        old = run.chain.svm.get_account(run.address)
        run.chain.svm.set_account(run.address, Account(old.lamports, record.tobytes(), old.owner))


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    print("\ncompute units, 256 clients:", meter.worst)


def play_noted_round(meter: Meter) -> None:
    """Every elected witness attests; the last one ends the round."""
    run = meter.run
    run.chain.advance(1)
    for client in run.get_elected():
        run.witness(client)
        meter.note("witness" if run.account.current_round.num_witnesses else "witness that ends the round")


def test_a_full_run_fits(meter: Meter) -> None:
    run = meter.run
    last = run.wallets[-1]
    run.join(last, address_hint=bytes([1]).ljust(64, b"\0"))
    meter.note("join_run")
    run.tick(4)
    meter.note("tick: WaitingForMembers to Warmup")
    run.act("warmup_witness", last, index=MAX_CLIENTS - 1)
    meter.note("warmup_witness")
    run.tick(30)
    meter.note("tick: Warmup to RoundTrain")
    assert run.state is RunState.RoundTrain
    for _ in range(3):
        play_noted_round(meter)
    assert run.account.current_round.height == 3
    run.chain.advance(1)
    elected = run.get_elected()
    for client in elected[:-1]:
        run.witness(client, seen=range(MAX_CLIENTS - 1))
    run.tick(20)
    meter.note("tick: RoundTrain to RoundWitness")
    run.tick(5)
    meter.note("tick: RoundWitness to RoundTrain")
    run.act("health_check", last, index=MAX_CLIENTS - 1)
    meter.note("health_check")
    run.act("leave_run", last)
    meter.note("leave_run")


def test_a_cooldown_with_the_worst_points_fits(meter: Meter) -> None:
    run = meter.run

    def end_epoch(record: Any) -> None:
        record["run_state"] = RunState.Cooldown
        record["run_state_start_unix_timestamp"] = run.chain.now
        for i, client in enumerate(record["epoch_state"]["clients"]):
            client["attested_rounds"] = int.from_bytes(hashlib.sha256(bytes([i])).digest()[:3], "little")

    meter.edit(end_epoch)
    before = sum(entry.earned for entry in run.account.entries)
    run.tick(10)
    meter.note("tick: end of Cooldown")
    earned = sum(entry.earned for entry in run.account.entries) - before
    assert earned == run.account.current_rates.earning_rate_total_shared


def test_everything_is_below_the_limit(meter: Meter) -> None:
    assert meter.worst
    assert {name: units for name, units in meter.worst.items() if units >= LIMIT} == {}
