"""What ``run-manager doctor`` says of this machine's clock, with the chain's time and ours given."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio

from psyche_py.chain.port import ChainTime
from psyche_py.cli.doctor import Check, check_clock
from psyche_py.client.clock import WARN_SECONDS
from psyche_py.errors import ChainError

if TYPE_CHECKING:
    from psyche_py.chain.port import ChainBackend

CHAIN_TIME = 1_800_000_000


class Cluster:
    """Knows the time, or cannot be reached."""

    def __init__(self, error: ChainError | None = None) -> None:
        self._error = error

    async def get_chain_time(self) -> ChainTime:
        if self._error is not None:
            raise self._error
        return ChainTime(1, CHAIN_TIME)


def look(offset: float, error: ChainError | None = None) -> Check:
    return trio.run(check_clock, cast("ChainBackend", Cluster(error)), lambda: CHAIN_TIME + offset)


@pytest.mark.parametrize("offset", [0.0, 1.4, -float(WARN_SECONDS), float(WARN_SECONDS)])
def test_in_order(offset: float) -> None:
    assert look(offset) == Check("clock", f"{offset:+.0f} s from the chain's.")


@pytest.mark.parametrize(
    ("offset", "code"), [(5.1, 0), (6, 0), (-6, 0), (59.9, 0), (60, 2), (-60, 2), (3600, 2)]
)
def test_a_clock_that_is_off(offset: float, code: int) -> None:
    """Said beyond five seconds, an error from where `join` would refuse."""
    check = look(offset)
    assert check.found == f"This machine's clock is {offset:+.0f} s off the chain's."
    assert check.exit_code == code
    assert "timedatectl set-ntp true" in check.remedy


def test_a_cluster_that_does_not_tell_the_time() -> None:
    error = ChainError("The endpoint does not answer.", "Choose another with -u.")
    assert look(0.0, error) == Check("clock", error.what, error.remedy, error.exit_code)
