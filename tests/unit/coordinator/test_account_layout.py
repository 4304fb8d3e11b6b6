"""The account's bytes: sizes, places, reading hostile bytes, views."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rulebook_driver import get_hint, get_p2p_key, get_signer, make_driver

from psyche_py.coordinator import layout, state
from psyche_py.coordinator.layout import (
    DisputeState,
    RunState,
    get_bit_indices,
    get_bitmap,
    get_text,
    pad_text,
)
from psyche_py.coordinator.state import CoordinatorAccount, read_account

SIZES = {
    "WITNESS": 232,
    "ROUND": 7528,
    "EPOCH_CLIENT": 16,
    "EPOCH_STATE": 34_328,
    "CONFIG": 128,
    "MODEL": 520,
    "PROGRESS": 16,
    "METADATA": 360,
    "RATES": 16,
    "DISPUTE": 72,
    "CLIENT_ENTRY": 192,
    "COORDINATOR_ACCOUNT": 85_232,
}


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_sizes_are_the_programs(name: str, size: int) -> None:
    assert getattr(layout, name).itemsize == size


@pytest.mark.parametrize("name", SIZES)
def test_every_field_is_aligned_as_repr_c_would(name: str) -> None:
    """No hidden padding: what numpy packs, Rust's repr(C) places at the same offset."""

    def get_alignment(dtype: np.dtype) -> int:
        base = dtype.subdtype[0] if dtype.subdtype else dtype
        if base.fields:
            return max(get_alignment(field[0]) for field in base.fields.values())
        return base.itemsize

    dtype = getattr(layout, name)
    for field, (kind, offset, *_) in dtype.fields.items():
        assert offset % get_alignment(kind) == 0, field
    assert dtype.itemsize % get_alignment(dtype) == 0


def test_discriminator_is_anchors() -> None:
    assert hashlib.sha256(b"account:CoordinatorAccount").digest()[:8] == layout.DISCRIMINATOR


def test_reading_is_a_view_and_round_trips() -> None:
    data = make_driver().account.to_bytes()
    account = read_account(data)
    assert account.to_bytes() == data
    assert account.record.base is not None
    assert account == CoordinatorAccount.from_bytes(data)
    assert account.run_id == "run"
    assert account.run_id_bytes == b"run".ljust(32, b"\0")
    assert account.client_version == "test"
    assert account.metadata.name == ""
    with pytest.raises(ValueError, match="read-only"):
        account.record["nonce"] = 1


def test_a_copy_can_be_written() -> None:
    account = read_account(make_driver().account.to_bytes())
    copy = account.copy()
    copy.record["nonce"] = 77
    assert (copy.nonce, account.nonce) != (account.nonce, copy.nonce)


@pytest.mark.parametrize(
    ("offset", "value", "error"),
    [
        (0, 0, state.AccountDiscriminatorError),
        (8, 3, state.AccountVersionError),
        (layout.COORDINATOR_ACCOUNT.fields["run_state"][1], 8, state.AccountValueError),
        (layout.COORDINATOR_ACCOUNT.fields["num_entries"][1] + 1, 2, state.AccountValueError),
        (layout.COORDINATOR_ACCOUNT.fields["epoch_state"][1], 4, state.AccountValueError),
        (layout.COORDINATOR_ACCOUNT.fields["epoch_state"][1] + 5, 255, state.AccountValueError),
        (layout.COORDINATOR_ACCOUNT.fields["model"][1] + 2, 8, state.AccountValueError),
    ],
)
def test_hostile_bytes_are_named(offset: int, value: int, error: type[Exception]) -> None:
    data = bytearray(make_driver().account.to_bytes())
    data[offset] = value
    with pytest.raises(error):
        read_account(bytes(data))


@pytest.mark.parametrize(
    ("field", "value"), [("state", 5), ("accuser", 3), ("trainer", 65535), ("num_votes", 12), ("votes", 3)]
)
def test_hostile_disputes_are_named(field: str, value: int) -> None:
    """They name clients by index, so every index is looked at before anybody uses it."""
    driver = make_driver()
    driver.warm_up([0, 1, 2])
    record = driver.account.copy().record
    dispute = record["disputes"][6]
    dispute["accuser"], dispute["trainer"], dispute["state"], dispute["num_votes"] = (
        0,
        1,
        DisputeState.Open,
        2,
    )
    dispute["votes"][:2] = [2 | layout.GUILTY_BIT, 1]
    (found,) = read_account(record.tobytes()).disputes
    assert (found.slot, found.votes) == (6, ((2, True), (1, False)))
    assert (found.accuser_signer, found.trainer_signer) == (get_signer(0), get_signer(1))
    if field == "votes":
        dispute["votes"][1] = value
    else:
        dispute[field] = value
    with pytest.raises(state.AccountValueError, match="disputes"):
        read_account(record.tobytes())


@pytest.mark.parametrize("size", [0, 1, layout.ACCOUNT_SIZE - 1, layout.ACCOUNT_SIZE + 1])
def test_a_wrong_length_is_named(size: int) -> None:
    with pytest.raises(state.AccountLengthError):
        read_account(bytes(size))


def test_views_show_clients_and_rounds() -> None:
    driver = make_driver()
    driver.warm_up([4, 2, 9])
    account = read_account(driver.account.to_bytes())
    assert [client.signer for client in account.epoch_clients] == [get_signer(c) for c in (4, 2, 9)]
    assert [client.p2p_key for client in account.epoch_clients] == [get_p2p_key(c) for c in (4, 2, 9)]
    assert account.epoch_clients[1].address_hint == get_hint(9002)
    assert account.find_entry(get_signer(9)) == 2
    assert account.find_epoch_client(get_signer(9)) == 2
    assert account.find_entry(get_signer(1)) is account.find_epoch_client(get_signer(1)) is None
    assert account.num_healthy == 3
    assert account.current_round.healthy_indices == (0, 1, 2)
    assert account.previous_round is None
    assert account.get_round_at(0) is account.current_round
    assert account.get_round_at(-1) is account.get_round_at(1) is None
    assert account.run_state is RunState.RoundTrain
    assert account.is_first_round
    assert not account.is_halted
    assert not account.pending, "next_active has moved on"
    assert account.current_rates.earning_rate_total_shared == account.future_rates.earning_rate_total_shared


def test_the_ring_keeps_four_rounds() -> None:
    driver = make_driver()
    driver.warm_up([0, 1])
    seeds = {}
    for height in range(6):
        account = driver.account
        assert account.current_round.height == height
        seeds[height] = account.current_round.random_seed
        for back in range(-1, 6):
            found = account.get_round_at(height - back)
            is_stored = 0 <= back <= 3 and height - back >= 0
            assert (found is not None) == is_stored
            if found is not None:
                assert found.height == height - back
                assert found.random_seed == seeds[height - back]
        driver.wait(1)
        driver.attest([0, 1])
    assert len(set(seeds.values())) == 6


@settings(max_examples=50)
@given(st.sets(st.integers(0, 255)))
def test_bitmaps_round_trip(indices: set[int]) -> None:
    record = layout.make_record()["epoch_state"]
    layout.set_bitmap(record, "warmup_ready", sum(1 << index for index in indices))
    assert get_bit_indices(get_bitmap(record["warmup_ready"])) == tuple(sorted(indices))
    for index in range(256):
        assert bool(int(record["warmup_ready"][index // 64]) >> (index % 64) & 1) == (index in indices)


@settings(max_examples=50)
@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8))
def test_text_round_trips(text: str) -> None:
    assert get_text(np.frombuffer(pad_text(text, 32), np.uint8)) == text


def test_text_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="33 bytes"):
        pad_text("x" * 33, 32)
    assert get_text(np.frombuffer(b"ab\0cd", np.uint8)) == "ab"


def test_importing_the_rule_book_stays_cheap() -> None:
    code = (
        "import sys, psyche_py.coordinator.transition, psyche_py.coordinator.config;"
        "heavy = {'torch', 'trio', 'solders', 'solana', 'anchorpy', 'libp2p', 'click'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
