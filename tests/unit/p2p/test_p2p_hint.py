"""Address hints: round trips, canonical form, hostile bytes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p.errors import HintError
from psyche_py.p2p.hint import EMPTY_HINT, HINT_BYTES, Address, pack_hint, parse_address, unpack_hint

PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(), PORTS)
def test_every_ip_address_survives(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    if ip.is_unspecified or ip.is_multicast:
        with pytest.raises(HintError):
            pack_hint(str(ip), port)
        return
    hint = pack_hint(str(ip), port)
    assert len(hint) == HINT_BYTES
    assert unpack_hint(hint) == Address(str(ip), port)


def test_bytes_are_as_on_chain() -> None:
    assert pack_hint("10.1.2.3", 0x1234) == bytes([1, 0, 0x34, 0x12, 10, 1, 2, 3]) + bytes(56)
    name = "node-7.example.org"
    assert pack_hint(name, 1) == b"\x03\x00\x01\x00" + name.encode() + bytes(60 - len(name))
    assert pack_hint("::1", 2) == b"\x02\x00\x02\x00" + bytes(15) + b"\x01" + bytes(44)


def test_names_are_lower_cased_and_limited() -> None:
    assert unpack_hint(pack_hint("Node.Example.", 9)) == Address("node.example", 9)
    assert unpack_hint(pack_hint("a" * 60, 9)) == Address("a" * 60, 9)
    for bad in ("a" * 61, "", "-a", "a-", "a..b", "a b", "ünit", "1.2.3", "999.1.1.1", "a_b", "a\n"):
        with pytest.raises(HintError):
            pack_hint(bad, 9)


def test_port_zero_and_wildcards_cannot_be_announced() -> None:
    for host, port in (("10.0.0.1", 0), ("10.0.0.1", 65_536), ("0.0.0.0", 1), ("::", 1), ("224.0.0.1", 1)):
        with pytest.raises(HintError):
            pack_hint(host, port)


def test_no_hint() -> None:
    assert unpack_hint(EMPTY_HINT) is None


@pytest.mark.parametrize(
    "hint",
    [
        b"",
        bytes(63),
        bytes(65),
        bytes(63) + b"\1",
        b"\1\1" + bytes(62),
        b"\4\0\1\0" + bytes(60),
        b"\1\0\0\0\1\1\1\1" + bytes(56),
        b"\1\0\1\0\1\1\1\1" + bytes(55) + b"\1",
        b"\1\0\1\0" + bytes(60),
        b"\2\0\1\0" + b"\x20" * 17 + bytes(43),
        b"\3\0\1\0" + bytes(60),
        b"\3\0\1\0" + b"10.0.0.1".ljust(60, b"\0"),
        b"\3\0\1\0" + b"a\0b".ljust(60, b"\0"),
        b"\3\0\1\0" + b"A.example".ljust(60, b"\0"),
        b"\3\0\1\0" + b"\xff" * 60,
    ],
)
def test_malformed_hints_are_refused(hint: bytes) -> None:
    with pytest.raises(HintError):
        unpack_hint(hint)


@given(st.one_of(st.binary(max_size=80), st.binary(min_size=64, max_size=64)))
def test_any_bytes_are_refused_or_canonical(hint: bytes) -> None:
    try:
        address = unpack_hint(hint)
    except HintError:
        return
    assert hint == (EMPTY_HINT if address is None else pack_hint(address.host, address.port))


def test_what_users_type() -> None:
    assert parse_address("203.0.113.7:4001") == Address("203.0.113.7", 4001)
    assert parse_address("node.example", 5) == Address("node.example", 5)
    assert parse_address("[2001:db8::1]:7") == Address("2001:db8::1", 7)
    assert parse_address("2001:db8::1", 8) == Address("2001:db8::1", 8)
    assert str(Address("2001:db8::1", 8)) == "[2001:db8::1]:8"
    assert str(Address("host", 8)) == "host:8"
    for bad in ("", "a:b:c", "host:port", "[::1"):
        with pytest.raises(HintError):
            parse_address(bad)
