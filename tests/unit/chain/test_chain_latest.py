"""Which state of an account may follow which."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from psyche_py.chain.latest import LatestAccount, is_newer
from psyche_py.chain.port import AccountInfo
from psyche_py.coordinator.layout import DISCRIMINATOR

KEY = Pubkey([1] * 32)


def info(slot: int, data: bytes = b"", lamports: int = 1) -> AccountInfo:
    return AccountInfo(KEY, lamports, KEY, data, slot)


def run_account(slot: int, nonce: int) -> AccountInfo:
    return info(slot, DISCRIMINATOR + bytes(8) + nonce.to_bytes(8, "little"))


def test_slots_decide() -> None:
    assert is_newer(info(1), None, is_pushed=False)
    assert is_newer(info(2, b"b"), info(1, b"a"), is_pushed=False)
    assert not is_newer(info(1, b"b"), info(2, b"a"), is_pushed=True)
    assert not is_newer(info(2, b"a"), info(1, b"a"), is_pushed=True)
    assert is_newer(info(2, b"a", lamports=2), info(1, b"a"), is_pushed=True)


def test_within_a_slot() -> None:
    assert is_newer(info(1, b"b"), info(1, b"a"), is_pushed=True)
    assert not is_newer(info(1, b"b"), info(1, b"a"), is_pushed=False)
    assert is_newer(run_account(1, 6), run_account(1, 5), is_pushed=False)
    assert not is_newer(run_account(1, 4), run_account(1, 5), is_pushed=True)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=40))
def test_a_reader_never_goes_back(events: list[tuple[int, int, bool]]) -> None:
    async def main() -> None:
        latest = LatestAccount()
        seen: list[tuple[int, int]] = []
        for slot, nonce, is_pushed in events:
            if latest.offer(run_account(slot, nonce), is_pushed=is_pushed) and nonce % 2:
                got = latest.channel.receive_nowait()
                seen.append((got.slot, int.from_bytes(got.data[16:24], "little")))
        assert seen == sorted(seen)
        assert len({slot for slot, _ in seen}) == len(seen) or len(set(seen)) == len(seen)

    trio.run(main)


def test_slow_readers_get_the_newest_only() -> None:
    async def main() -> None:
        latest = LatestAccount()
        for slot in range(5):
            latest.offer(info(slot, bytes([slot])), is_pushed=True)
        assert latest.channel.receive_nowait().slot == 4
        with pytest.raises(trio.WouldBlock):
            latest.channel.receive_nowait()
        # not news, but it says that slot 9 has been seen
        assert not latest.offer(info(9, bytes([4])), is_pushed=False)
        assert not latest.offer(info(8, b"older"), is_pushed=True)
        latest.close()
        assert [item async for item in latest.channel] == []
        assert not latest.offer(info(10, b"x"), is_pushed=True)

    trio.run(main)
