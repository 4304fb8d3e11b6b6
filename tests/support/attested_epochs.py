"""Epochs of the rule book whose witnesses report chosen digests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rulebook_driver import Driver, make_driver, make_run_config, make_witness

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


def make_config_driver(nano: Path) -> Driver:
    """A run of the tiny configuration whose model is made by the configuration at ``nano``."""
    config = make_run_config(epoch_time=30)
    model = replace(config.model, checkpoint_repo=str(nano), max_seq_len=64)
    return make_driver(replace(config, model=model))


def make_warmup(nano: Path, digest: bytes) -> tuple[list[CoordinatorAccount], Driver]:
    """Accounts of a whole epoch that ends with ``digest``, and the driver in the next warm-up."""
    driver = make_config_driver(nano)
    seen = run_epoch(driver, [digest] * 4)
    driver.join(*CLIENTS)
    driver.tick_at_deadline()
    assert driver.account.run_state is RunState.Warmup
    return seen, driver
