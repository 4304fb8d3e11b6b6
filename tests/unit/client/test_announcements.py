"""What the client tells the mesh about a body: which contradict each other, which nobody honest passes on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from psyche_py.client.announcements import MAX_LAG_ROUNDS, compute_mesh_seed, make_examiner
from psyche_py.client.session import Identity
from psyche_py.coordinator.layout import RunState
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.message import Finished, RoundHeader, WarmupReady, encode_message

IDENTITY = Identity(b"\1" * 32, b"\2" * 32, b"\3" * 32, b"run".ljust(32, b"\0"), EMPTY_HINT)
HEADER = RoundHeader(IDENTITY.program_id, IDENTITY.run_id, epoch=7, height=3_000, sender_index=5)


def make_account(
    state: RunState = RunState.RoundTrain, epoch: int = 7, height: int = 3_000
) -> SimpleNamespace:
    """The three fields that are looked at."""
    return SimpleNamespace(
        run_state=state,
        epoch=epoch,
        current_round=SimpleNamespace(height=height),
        start_timestamp=1_700_000_000,
    )


def examine(header: RoundHeader, account: SimpleNamespace | None):  # type: ignore[no-untyped-def]
    body = encode_message(Finished(header, bytes(32), 1.0))
    return make_examiner(IDENTITY, lambda: account)(body)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("account", [None, make_account()])
def test_one_key_per_sender_round_and_kind(account: SimpleNamespace | None) -> None:
    ours = examine(HEADER, account)
    assert not ours.fault
    other_words = encode_message(Finished(HEADER, b"\1" * 32, 2.0))
    assert make_examiner(IDENTITY, lambda: account)(other_words) == ours  # type: ignore[arg-type, return-value]
    for changed in (
        replace(HEADER, epoch=8),
        replace(HEADER, height=3_001),
        replace(HEADER, sender_index=6),
    ):
        assert examine(changed, account).key not in (None, ours.key)


def test_what_has_no_round_has_no_key() -> None:
    body = encode_message(WarmupReady(HEADER))
    assert make_examiner(IDENTITY, lambda: None)(body).key is None


@pytest.mark.parametrize(
    "header", [replace(HEADER, program_id=bytes(32)), replace(HEADER, run_id=b"other".ljust(32, b"\0"))]
)
def test_words_of_another_run(header: RoundHeader) -> None:
    assert examine(header, make_account()).fault == "message_other_run"


@pytest.mark.parametrize("body", [b"", bytes(74), b"\xff" * 110, bytes(3_900)])
def test_words_that_are_no_message(body: bytes) -> None:
    assert make_examiner(IDENTITY, lambda: None)(body).fault == "message_malformed"


@pytest.mark.parametrize(
    ("epoch", "height", "fault"),
    [
        (7, 3_000, ""),
        (7, 3_000 - MAX_LAG_ROUNDS, ""),
        (7, 3_000 - MAX_LAG_ROUNDS - 1, "frame_past"),
        (7, 3_000 + MAX_LAG_ROUNDS, ""),
        (7, 3_000 + MAX_LAG_ROUNDS + 1, "frame_future"),
        (6, 9_000, ""),
        (8, 0, ""),
        (5, 3_000, "frame_past"),
        (9, 3_000, "frame_future"),
    ],
)
def test_only_what_no_lag_explains_is_a_fault(epoch: int, height: int, fault: str) -> None:
    assert examine(replace(HEADER, epoch=epoch, height=height), make_account()).fault == fault


@pytest.mark.parametrize(
    "state", [RunState.Warmup, RunState.WaitingForMembers, RunState.Paused, RunState.Cooldown]
)
def test_the_last_round_of_the_epoch_before_is_no_measure(state: RunState) -> None:
    assert not examine(replace(HEADER, height=0), make_account(state)).fault


def test_the_seed_is_new_in_every_epoch_and_run_and_the_same_for_all() -> None:
    seed = compute_mesh_seed(make_account(), IDENTITY)  # type: ignore[arg-type]
    other_client = replace(IDENTITY, signer=b"\7" * 32, p2p_key=b"\x08" * 32)
    assert compute_mesh_seed(make_account(height=5), other_client) == seed  # type: ignore[arg-type]
    later = make_account()
    later.start_timestamp += 1
    others = [
        compute_mesh_seed(make_account(epoch=8), IDENTITY),  # type: ignore[arg-type]
        compute_mesh_seed(later, IDENTITY),  # type: ignore[arg-type]
        compute_mesh_seed(make_account(), replace(IDENTITY, run_id=bytes(32))),  # type: ignore[arg-type]
    ]
    assert len({seed, *others}) == 4
