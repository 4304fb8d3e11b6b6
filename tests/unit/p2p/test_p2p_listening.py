"""What we tell others to dial, and what a public run never hears of."""

from __future__ import annotations

import pytest

from psyche_py.p2p.errors import HintError
from psyche_py.p2p.hint import EMPTY_HINT, Address, unpack_hint
from psyche_py.p2p.listening import is_public_host, make_own_hint

PRIVATE = [
    "0.0.0.0",
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.2",
    "169.254.7.7",
    "100.64.0.9",
    "198.51.100.7",
    "224.0.0.1",
    "::",
    "::1",
    "fe80::1",
    "fd00::1",
    "::ffff:10.0.0.1",
    "ff02::1",
    "2001:db8::1",
    "localhost",
    "printer.local",
    "box.lan",
    "a.localhost",
    "nas",
]


@pytest.mark.parametrize("host", PRIVATE)
def test_no_private_address_leaves_for_a_public_run(host: str) -> None:
    assert not is_public_host(host)
    with pytest.raises(HintError, match="--announce"):
        make_own_hint("127.0.0.1", 4001, host, is_public=True)


@pytest.mark.parametrize("ip", ["127.0.0.1", "192.168.1.2", "10.0.0.1", "::1", "fd00::1"])
def test_without_announce_a_private_listener_only_dials(ip: str) -> None:
    assert make_own_hint(ip, 4001, None, is_public=True) == EMPTY_HINT
    assert unpack_hint(make_own_hint(ip, 4001, None, is_public=False)) == Address(ip, 4001)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "node.example.com"])
def test_public_addresses_and_names_are_given_out(host: str) -> None:
    assert is_public_host(host)
    for is_public in (True, False):
        hint = make_own_hint("0.0.0.0", 4001, host, is_public=is_public)
        assert unpack_hint(hint) == Address(host, 4001)


def test_who_wants_to_dial_only_says_so() -> None:
    for is_public in (True, False):
        assert make_own_hint("127.0.0.1", 4001, "none", is_public=is_public) == EMPTY_HINT


def test_a_private_hint_can_be_given_out_where_the_run_is_private() -> None:
    assert unpack_hint(make_own_hint("0.0.0.0", 1, "10.0.0.7:99", is_public=False)) == Address("10.0.0.7", 99)
