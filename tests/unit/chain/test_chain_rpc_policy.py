"""Endpoint choice and back-off, as pure functions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from psyche_py.chain.rpc.policy import (
    DEFAULT_REST_SECONDS,
    FIRST_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    MAX_REST_SECONDS,
    Health,
    after_failure,
    after_rate_limit,
    choose,
    compute_backoff,
    compute_wait,
    parse_retry_after,
)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(num_failures: int, jitter: float) -> None:
    seconds = compute_backoff(num_failures, jitter)
    assert FIRST_BACKOFF_SECONDS / 2 <= seconds <= MAX_BACKOFF_SECONDS
    assert compute_backoff(num_failures + 1, jitter) >= seconds


def test_first_preferred_returns_by_itself() -> None:
    healths = [after_failure(Health(), 10.0, 0.0), Health()]
    assert choose(healths, 10.0) == 1
    assert choose(healths, 10.0 + FIRST_BACKOFF_SECONDS) == 0
    both = [healths[0], after_rate_limit(Health(), 10.0, 7.0)]
    assert choose(both, 10.0) is None
    assert compute_wait(both, 10.0) == FIRST_BACKOFF_SECONDS
    assert compute_wait(both, 100.0) == 0.0


def test_rate_limits_keep_the_count_of_failures() -> None:
    health = after_rate_limit(after_failure(Health(), 0.0, 0.0), 1.0, None)
    assert (health.num_failures, health.available_at, health.is_limited) == (
        1,
        1 + DEFAULT_REST_SECONDS,
        True,
    )
    assert after_rate_limit(Health(), 0.0, 1e9).available_at == MAX_REST_SECONDS
    assert after_rate_limit(Health(), 5.0, -3.0).available_at == 5.0


def test_retry_after() -> None:
    assert parse_retry_after("1.5") == 1.5
    assert parse_retry_after(None) is None
    assert parse_retry_after("Wed, 21 Oct 2026 07:28:00 GMT") is None
