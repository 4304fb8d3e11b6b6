"""Who is refused before anything is opened, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rulebook_driver import make_driver, rules

from psyche_py.client.admission import check_run
from psyche_py.client.options import ClientOptions
from psyche_py.coordinator.layout import MAX_CLIENTS, RunState
from psyche_py.errors import RunStateError, VersionMismatch

OPTIONS = ClientOptions("run")
STRANGER = bytes(32)


def test_a_run_that_takes_members_takes_us() -> None:
    account = make_driver().account
    assert account.run_state is RunState.WaitingForMembers
    check_run(account, OPTIONS, STRANGER)


def test_a_run_that_was_never_started_is_refused() -> None:
    with pytest.raises(RunStateError, match="not been started"):
        check_run(rules.process_init("run", "test"), OPTIONS, STRANGER)


def test_a_paused_run_is_waited_for_only_when_asked_to() -> None:
    driver = make_driver()
    driver.ok("set_paused", paused=True)
    with pytest.raises(RunStateError, match="paused"):
        check_run(driver.account, OPTIONS, STRANGER)
    check_run(driver.account, replace(OPTIONS, wait=True), STRANGER)


def test_a_full_run_is_refused_but_to_its_own_clients() -> None:
    driver = make_driver()
    driver.join(*range(MAX_CLIENTS))
    with pytest.raises(RunStateError, match="full"):
        check_run(driver.account, OPTIONS, STRANGER)
    check_run(driver.account, OPTIONS, driver.get_signer(0))


@pytest.mark.parametrize(("wanted", "is_fine"), [("", True), ("test", True), ("another", False)])
def test_the_release_that_a_run_asks_for(wanted: str, is_fine: bool) -> None:
    driver = make_driver()
    driver.ok("set_paused", paused=True)
    driver.ok("update_client_version", client_version=wanted)
    options = replace(OPTIONS, wait=True)
    if is_fine:
        check_run(driver.account, options, STRANGER)
        return
    with pytest.raises(VersionMismatch, match="another"):
        check_run(driver.account, options, STRANGER)
    check_run(driver.account, replace(options, client_version=wanted), STRANGER)
