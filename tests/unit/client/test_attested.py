"""Which digest counts as attested, on accounts that the rule book made."""

from __future__ import annotations

from attested_epochs import CLIENTS, ONE, TWO, UNKNOWN, run_epoch
from rulebook_driver import make_driver

from psyche_py.client.attested import AttestedModels, compute_attested_model
from psyche_py.coordinator.layout import RunState


def test_the_last_witnesses_name_the_model_of_the_next_epoch() -> None:
    driver = make_driver(epoch_time=30)
    seen = run_epoch(driver, [ONE] * 4)
    for account in seen:
        attested = compute_attested_model(account)
        if account.run_state in (RunState.Cooldown, RunState.WaitingForMembers):
            assert attested == (1, ONE)
        else:
            assert attested is None, "while the epoch runs nothing is final"
    assert {account.run_state for account in seen} >= {RunState.Cooldown, RunState.WaitingForMembers}


def test_it_is_remembered_through_the_warm_up_that_hides_it() -> None:
    driver = make_driver(epoch_time=30)
    models = AttestedModels()
    for account in run_epoch(driver, [ONE] * 4):
        models.see(account)
    driver.join(*CLIENTS)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Warmup
    assert compute_attested_model(driver.account) is None
    models.see(driver.account)
    assert models.get(driver.account.epoch) == ONE
    assert models.get(0) is None
    assert AttestedModels().get(driver.account.epoch) is None


def test_a_quorum_is_needed_and_zeros_are_no_vote() -> None:
    for digests, expected in (
        ([ONE, ONE, ONE, TWO], ONE),
        ([TWO, ONE, ONE, ONE], ONE),
        ([ONE, ONE, ONE, UNKNOWN], ONE),
        ([ONE, ONE, TWO, TWO], None),
        ([ONE, ONE, UNKNOWN, UNKNOWN], None),
        ([UNKNOWN] * 4, None),
    ):
        account = run_epoch(make_driver(epoch_time=30), digests)[-1]
        attested = compute_attested_model(account)
        assert attested == ((1, expected) if expected is not None else None), digests


def test_a_new_run_has_attested_nothing() -> None:
    driver = make_driver()
    assert compute_attested_model(driver.account) is None
