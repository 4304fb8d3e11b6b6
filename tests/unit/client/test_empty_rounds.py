"""A round that nobody attests: what it costs by the rules, and that clients give late witnesses a chance."""

from __future__ import annotations

from attested_epochs import CLIENTS
from rulebook_driver import Driver, get_hint, get_p2p_key, make_driver

from psyche_py.client import actions as act
from psyche_py.client.attesting import EMPTY_ROUND_PATIENCE_SECONDS
from psyche_py.client.machine import ClientMachine
from psyche_py.client.session import Identity
from psyche_py.coordinator.layout import CheckpointKind, ClientState, RunState
from psyche_py.coordinator.transition import compute_next_deadline


def enter_empty_round(driver: Driver) -> None:
    """Round 4 of the run's second epoch times out without a witness."""
    driver.warm_up(CLIENTS)
    while driver.account.current_round.height < 4:
        driver.wait(1)
        driver.attest(CLIENTS)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundWitness
    assert not driver.account.current_round.witnesses


def make_machine(driver: Driver) -> ClientMachine:
    identity = Identity(driver.get_signer(0), get_p2p_key(0), bytes(32), bytes(32), get_hint(9000))
    machine = ClientMachine(identity)
    machine.handle(act.AccountChanged(driver.account))
    return machine


def has_ticked(machine: ClientMachine, now: int) -> bool:
    return any(isinstance(action, act.SendTick) for action in machine.handle(act.TimePassed(now)))


def test_the_tick_that_would_lose_the_epoch_waits_for_a_late_witness() -> None:
    driver = make_driver(epoch_time=90)
    enter_empty_round(driver)
    machine, due = make_machine(driver), compute_next_deadline(driver.account)
    assert due is not None
    assert not has_ticked(machine, due)
    assert not has_ticked(machine, due + EMPTY_ROUND_PATIENCE_SECONDS - 1)
    driver.wait(due + EMPTY_ROUND_PATIENCE_SECONDS - 1 - driver.now)
    driver.attest(CLIENTS)  # the chain is back
    assert driver.account.run_state is not RunState.RoundWitness
    assert {client.state for client in driver.account.epoch_clients} == {ClientState.Healthy}


def test_it_does_not_wait_for_ever() -> None:
    driver = make_driver(epoch_time=90)
    enter_empty_round(driver)
    machine, due = make_machine(driver), compute_next_deadline(driver.account)
    assert due is not None
    assert not has_ticked(machine, due)
    assert has_ticked(machine, due + EMPTY_ROUND_PATIENCE_SECONDS)


def test_an_unattested_end_leaves_the_model_with_its_clients() -> None:
    """But no quorum has said which it is: that is why clients give late witnesses a chance."""
    driver = make_driver(epoch_time=90)
    enter_empty_round(driver)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Cooldown
    assert {client.state for client in driver.account.epoch_clients} == {ClientState.Withdrawn}
    driver.tick_at_deadline()
    assert driver.account.model.checkpoint_kind is CheckpointKind.P2P
    driver.join(*CLIENTS)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Warmup
    assert driver.account.model.checkpoint_kind is CheckpointKind.P2P
    assert driver.account.model_digest is None
    assert driver.account.older_digests
