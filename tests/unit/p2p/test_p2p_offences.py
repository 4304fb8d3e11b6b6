"""Counting offences: k of them exclude until forgiven, and what happens to the honest does not."""

from __future__ import annotations

from collections import Counter

import pytest

from psyche_py.p2p.offences import MAX_OFFENCES, TOLERATED, Offences

A, B = b"\1" * 32, b"\2" * 32


def test_the_last_offence_excludes_and_only_its_peer() -> None:
    counts: Counter[str] = Counter()
    offences = Offences(counts)
    verdicts = [offences.blame(A, f"kind{number % 3}", float(number)) for number in range(MAX_OFFENCES + 2)]
    assert verdicts == [number == MAX_OFFENCES - 1 for number in range(MAX_OFFENCES + 2)]
    assert offences.is_excluded(A)
    assert not offences.is_excluded(B)
    assert counts.total() == MAX_OFFENCES + 2
    assert offences.forgive() == {A}
    assert not offences.is_excluded(A)
    assert not offences.forgive()
    assert counts.total() == MAX_OFFENCES + 2, "what happened stays counted"


@pytest.mark.parametrize(("kind", "limits"), TOLERATED.items())
def test_a_tolerated_kind_excludes_only_beyond_its_rate(kind: str, limits: tuple[float, float]) -> None:
    rate, burst = limits
    offences = Offences(Counter())
    assert not any(offences.blame(A, kind, number / rate) for number in range(3_000))
    at_once = [offences.blame(B, kind, 0.0) for _ in range(int(burst) + MAX_OFFENCES)]
    assert at_once.index(True) == int(burst) + MAX_OFFENCES - 1


def test_what_nobody_can_be_blamed_for_is_counted() -> None:
    counts: Counter[str] = Counter()
    Offences(counts).count("handshake_failed")
    assert counts == {"handshake_failed": 1}
