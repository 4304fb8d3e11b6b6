"""Which model an epoch hands over to the next, and when a run gives it up, on the rule book alone."""

from __future__ import annotations

import pytest
from attested_epochs import CLIENTS, ONE, TWO, UNKNOWN, run_epoch
from rulebook_driver import Driver, make_driver, make_run_config, make_witness

from psyche_py.coordinator.layout import CheckpointKind, RunState

START = b"\3" * 32
P2P, CONFIG = CheckpointKind.P2P, CheckpointKind.Config


def make_trained(digests: list[bytes] | None = None) -> Driver:
    """A run after its first epoch, whose witnesses said ``digests`` in every round."""
    driver = make_driver(epoch_time=30)
    run_epoch(driver, digests or [ONE] * 4)
    return driver


def enter_warmup(driver: Driver, clients: list[int]) -> None:
    driver.join(*clients)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Warmup


def play(driver: Driver, digests: dict[int, bytes], last: int) -> None:
    """Rounds up to height ``last`` of an epoch under way; in round h all say ``digests[h]``, else ONE."""
    while driver.account.current_round.height < last:
        height = driver.account.current_round.height
        driver.wait(1)
        for client in CLIENTS:
            arguments = make_witness(driver, client)
            if arguments is not None and driver.account.current_round.height == height:
                driver.ok("witness", **{**arguments, "state_digest": digests.get(height, ONE).hex()})


def test_what_the_last_witnesses_said_is_kept_through_the_warm_up_and_the_epoch() -> None:
    driver = make_trained()
    assert (driver.account.model_digest, driver.account.model_step) == (ONE, driver.account.step - 1)
    enter_warmup(driver, [0, 5])
    assert driver.account.model_digest == ONE
    driver.ok("leave_run", client=0)
    driver.ok("leave_run", client=5)
    assert driver.account.run_state is RunState.WaitingForMembers, "called off"
    driver.warm_up(CLIENTS)
    play(driver, {}, 3)
    assert driver.account.model_digest == ONE, "what the epoch began with, while it runs"


@pytest.mark.parametrize(
    ("digests", "expected"),
    [
        ([ONE, ONE, ONE, TWO], ONE),
        ([TWO, ONE, ONE, ONE], ONE),
        ([ONE, ONE, ONE, UNKNOWN], ONE),
        ([ONE, ONE, TWO, TWO], None),
        ([ONE, ONE, UNKNOWN, UNKNOWN], None),
        ([UNKNOWN] * 4, None),
    ],
)
def test_a_quorum_is_needed_and_zeros_are_no_vote(digests: list[bytes], expected: bytes | None) -> None:
    assert make_trained(digests).account.model_digest == expected


def test_the_newest_model_attested_before_is_kept_too() -> None:
    driver = make_driver(epoch_time=90)
    driver.warm_up(CLIENTS)
    play(driver, {3: TWO}, 5)
    driver.tick_at_deadline()  # round 5 passes without a witness
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Cooldown
    driver.tick_at_deadline()
    account = driver.account
    assert (account.model_digest, account.model_step) == (None, 0)
    assert account.older_digests == (ONE[:16],)
    assert account.model.checkpoint_kind is P2P


def test_an_epoch_that_applied_nothing_leaves_the_model_as_it_was() -> None:
    driver = make_trained()
    before = driver.account.model_digest, driver.account.older_digests
    behind = driver.account.step - driver.account.model_step
    driver.warm_up(CLIENTS)
    play(driver, {0: TWO}, 1)
    while driver.account.run_state is not RunState.WaitingForMembers:
        driver.tick_at_deadline()
    after = driver.account
    assert (after.model_digest, after.older_digests) == before
    assert after.step - after.model_step == behind
    assert after.model.checkpoint_kind is P2P


def leave_all(driver: Driver) -> None:
    """In round 4 everybody says TWO, and leaves right behind its word; then the run waits for members."""
    driver.warm_up(CLIENTS)
    play(driver, {}, 4)
    for client in CLIENTS:
        arguments = make_witness(driver, client)
        assert arguments is not None
        driver.ok("witness", **{**arguments, "state_digest": TWO.hex()})
        driver.ok("leave_run", client=client)
    while driver.account.run_state is not RunState.WaitingForMembers:
        driver.tick_at_deadline()


@pytest.mark.parametrize(("min_clients", "newest", "older"), [(2, TWO, ONE), (1, None, TWO)])
def test_all_leave_at_once_and_the_run_keeps_their_model(
    min_clients: int, newest: bytes | None, older: bytes
) -> None:
    """Where one client is enough the last to leave begins a round alone, and nobody attests that one."""
    driver = make_driver(epoch_time=90, min_clients=min_clients)
    leave_all(driver)
    assert (driver.account.model_digest, driver.account.older_digests) == (newest, (older[:16],))
    enter_warmup(driver, [7, 8])
    account = driver.account
    assert (account.model_digest, account.older_digests) == (newest, (older[:16],))
    assert account.model.checkpoint_kind is P2P


def test_only_a_whole_warm_up_without_anybody_ready_gives_a_model_up() -> None:
    driver = make_driver(epoch_time=90, min_clients=2)
    run_epoch(driver, [START] * 4)
    leave_all(driver)
    assert driver.account.model_digest == TWO
    assert driver.account.older_digests == (ONE[:16], START[:16])
    for wanted, kind in ((ONE[:16], P2P), (START[:16], P2P), (None, CONFIG)):
        enter_warmup(driver, [7, 8])
        driver.wait(driver.account.config.warmup_time - 1)
        driver.ok("tick")
        assert driver.account.run_state is RunState.Warmup
        driver.tick_at_deadline()
        assert driver.account.run_state is RunState.WaitingForMembers
        assert (driver.account.model_digest, driver.account.model.checkpoint_kind) == (wanted, kind)
    enter_warmup(driver, [7, 8])
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundTrain, "everybody can have the run's checkpoint"


def test_one_client_that_is_ready_keeps_the_model() -> None:
    driver = make_trained()
    enter_warmup(driver, [0, 7, 8])
    index = driver.account.find_epoch_client(driver.get_signer(0))
    driver.ok("warmup_witness", client=0, index=index)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.RoundTrain
    assert (driver.account.model_digest, driver.account.model.checkpoint_kind) == (ONE, P2P)


def test_a_pause_keeps_it_and_an_owner_who_names_another_model_does_not() -> None:
    driver = make_trained()
    driver.ok("set_paused", paused=True)
    driver.ok("set_paused", paused=False)
    assert (driver.account.model_digest, driver.account.model.checkpoint_kind) == (ONE, P2P)
    driver.ok("set_paused", paused=True)
    driver.ok("update", metadata=bytes(driver.account.record["metadata"].tobytes()).hex())
    assert driver.account.model_digest == ONE
    driver.ok("update", model=make_run_config(epoch_time=30).model.to_bytes().hex())
    assert (driver.account.model_digest, driver.account.older_digests) == (None, ())
    assert (driver.account.model_step, driver.account.model.checkpoint_kind) == (0, CONFIG)
