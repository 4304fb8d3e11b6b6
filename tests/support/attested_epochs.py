"""Epochs of the rule book whose witnesses report chosen digests."""

from __future__ import annotations

from rulebook_driver import Driver, make_witness

from psyche_py.coordinator.layout import RunState
from psyche_py.coordinator.state import CoordinatorAccount

CLIENTS = [0, 1, 2, 3]
ONE, TWO, UNKNOWN = b"\1" * 32, b"\2" * 32, bytes(32)


def run_epoch(driver: Driver, digests: list[bytes]) -> list[CoordinatorAccount]:
    """An epoch to its end. In every round client i reports ``digests[i]``. Every account on the way."""
    seen = []
    driver.warm_up(CLIENTS)
    for _ in range(300):
        seen.append(driver.account)
        state = driver.account.run_state
        if state is RunState.WaitingForMembers:
            return seen
        current = driver.account.current_round
        if state is not RunState.RoundTrain or current.witnesses:
            driver.tick_at_deadline()
            continue
        driver.wait(1)
        for client, digest in zip(CLIENTS, digests, strict=True):
            arguments = make_witness(driver, client)
            if arguments is not None and driver.account.current_round.height == current.height:
                driver.ok("witness", **{**arguments, "state_digest": digest.hex()})
                seen.append(driver.account)
    raise AssertionError("the epoch never ended")
