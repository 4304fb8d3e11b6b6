"""Where a peer is seen: who may know, for how long, and what an observer answers to whom."""

from __future__ import annotations

import errno
import os
import socket as sockets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from pipe_stream import PipeStream, make_pipe_streams

from psyche_py.p2p import seen
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import Address
from psyche_py.p2p.seen import (
    KEEP_SECONDS,
    MAX_KEPT,
    MAX_SIGHTINGS,
    MAX_TOKENS,
    SEEN_HELLO,
    PortRule,
    SeenService,
    Sightings,
    ask_for_token,
    ask_where,
    being_seen,
    compare_ports,
    decode_place,
    encode_place,
    get_place,
)

A, B, C = (bytes([number]) * 32 for number in (1, 2, 3))
PLACE = Address("203.0.113.7", 40_000)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()

    trio.run(bounded)


# ---- the book -------------------------------------------------------------------------------------------


def see(book: Sightings, subject: bytes, reader: bytes, now: float, place: Address = PLACE) -> None:
    token = book.expect(subject, reader, now)
    assert token is not None
    assert book.note(token, place, now)


def test_only_the_one_it_is_meant_for_learns_it_and_only_for_a_while() -> None:
    book = Sightings()
    see(book, A, B, 100.0)
    assert book.find(A, B, 100.0) == PLACE
    assert book.find(A, C, 100.0) is None
    assert book.find(B, A, 100.0) is None
    assert book.find(A, B, 100.0 + KEEP_SECONDS - 0.1) == PLACE
    assert book.find(A, B, 100.0 + KEEP_SECONDS) is None


def test_a_token_is_good_once_and_for_a_while() -> None:
    book = Sightings()
    token = book.expect(A, B, 0.0)
    assert token is not None
    assert book.note(token, PLACE, 1.0)
    assert not book.note(token, Address("198.51.100.1", 2_000), 2.0)
    assert book.find(A, B, 2.0) == PLACE
    late = book.expect(A, C, 0.0)
    assert late is not None
    assert not book.note(late, PLACE, KEEP_SECONDS)
    assert not book.note(os.urandom(16), PLACE, 0.0)
    assert book.find(A, C, 1.0) is None


def test_a_later_sighting_takes_the_place_of_an_earlier_one() -> None:
    book = Sightings()
    see(book, A, B, 0.0)
    see(book, A, B, 1.0, Address("203.0.113.7", 40_001))
    assert book.find(A, B, 1.0) == Address("203.0.113.7", 40_001)


def test_a_peer_fills_only_its_own_small_part() -> None:
    book = Sightings()
    tokens = [book.expect(A, os.urandom(32), 0.0) for _ in range(100)]
    assert sum(token is not None for token in tokens) == MAX_TOKENS
    assert book.expect(B, A, 0.0) is not None, "another peer is not kept out"
    assert book.expect(A, B, KEEP_SECONDS) is not None, "tokens run out"
    readers = [os.urandom(32) for _ in range(100)]
    for reader in readers:
        see(book, C, reader, 50.0)
    assert [book.find(C, reader, 50.0) for reader in readers] == [None] * (100 - MAX_SIGHTINGS) + [
        PLACE
    ] * MAX_SIGHTINGS
    assert len(book) <= 2 * (MAX_TOKENS + MAX_SIGHTINGS)


def test_who_leaves_the_run_is_forgotten() -> None:
    book = Sightings()
    for subject, reader in ((A, B), (B, A), (C, B)):
        see(book, subject, reader, 0.0)
    token = book.expect(A, C, 0.0)
    assert token is not None
    book.forget_peers([A])
    assert not book.note(token, PLACE, 0.0)
    assert [book.find(*pair, 0.0) for pair in ((A, B), (B, A), (C, B))] == [None, None, PLACE]
    assert len(book) == 1


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(0, 65_535))
def test_places_survive_the_wire(ip: object, port: int) -> None:
    place = get_place((str(ip), port))
    assert decode_place(encode_place(place)) == place
    assert len(encode_place(place)) == 18


def test_ip4_over_an_ip6_socket_is_ip4() -> None:
    assert get_place(("::ffff:192.0.2.1", 5, 0, 0)) == Address("192.0.2.1", 5)
    assert get_place(("fe80::1%eth0", 5, 0, 2)) == Address("fe80::1", 5)


@given(st.binary(min_size=18, max_size=18))
def test_any_bytes_are_some_place(raw: bytes) -> None:
    assert encode_place(decode_place(raw)) == raw


# ---- the protocol ---------------------------------------------------------------------------------------


Question = Callable[[PipeStream], Awaitable[object]]


async def ask(service: SeenService, key: bytes, question: Question) -> object:
    """What the service answers to the peer ``key``; the reason, when that is none."""
    near, far = make_pipe_streams(key)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.serve, far)
        try:
            return await question(near)
        except PeerUnreachable as error:
            return error.reason


@asynccontextmanager
async def open_observer(
    service: SeenService, known: list[bool], ip: str = "127.0.0.1"
) -> AsyncIterator[Address]:
    """A port where the hello is read and the service answers."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            assert await stream.receive_some(len(SEEN_HELLO)) == SEEN_HELLO
            await service.answer(stream.socket, lambda: known.append(True))

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host=ip))
        yield Address(ip, listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


def test_an_observer_passes_on_what_it_has_seen_itself() -> None:
    async def main() -> None:
        service, known = SeenService(), list[bool]()
        async with open_observer(service, known) as observer:
            assert await ask(service, B, partial(ask_where, subject=A)) == "it has not been seen"
            token = await ask(service, A, partial(ask_for_token, reader=B))
            assert isinstance(token, bytes)
            async with being_seen(observer, token) as (port, place):
                assert place == Address("127.0.0.1", port)
                assert await ask(service, B, partial(ask_where, subject=A)) == place
                assert await ask(service, C, partial(ask_where, subject=A)) == "it has not been seen"
            assert known == [True]
            # a second time from the same port, at once
            async with being_seen(observer, token, port) as (again, _):
                assert again == port
            assert known == [True], "the token has been used: it is a stranger now"

    run(main)


def test_an_observer_keeps_only_so_many_connections_of_a_peer() -> None:
    """They are kept for a while, and count for none of the limits of strangers."""

    async def main() -> None:
        service, answers = SeenService(), list[object]()
        async with open_observer(service, []) as observer:
            async with AsyncExitStack() as stack:
                for _ in range(MAX_KEPT + 1):
                    answers.append(await ask(service, A, partial(ask_for_token, reader=B)))
                    if isinstance(answers[-1], bytes):
                        await stack.enter_async_context(being_seen(observer, answers[-1]))
                assert [type(answer) for answer in answers] == [bytes] * MAX_KEPT + [str]
                other = await ask(service, C, partial(ask_for_token, reader=B))
                assert isinstance(other, bytes), "another peer is not kept out"
            while not isinstance(await ask(service, A, partial(ask_for_token, reader=B)), bytes):
                await trio.lowlevel.checkpoint()  # until it has noticed that they have ended

    run(main)


def test_an_observer_without_time_and_a_question_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MAX_TOKENS", 0)

    async def main() -> None:
        service = SeenService()
        answer = await ask(service, A, partial(ask_for_token, reader=B))
        assert answer == "it has no time to look where we come from"
        near, far = make_pipe_streams(A)
        await near.write(b"\7" + B, 5)
        with pytest.raises(StreamBroken) as caught:
            await service.serve(far)
        assert caught.value.offence == "seen_question_malformed"

    run(main)


@pytest.mark.parametrize("said", [b"", b"\0" * 17], ids=["nothing", "less than a place"])
def test_an_observer_that_breaks_off(said: bytes) -> None:
    async def main() -> None:
        async def serve(stream: trio.SocketStream) -> None:
            async with stream:
                await stream.receive_some(100)
                if said:
                    await stream.send_all(said)

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(PeerUnreachable):
                async with being_seen(Address("127.0.0.1", port), bytes(16)):
                    raise AssertionError("it has not said where it sees us")
            nursery.cancel_scope.cancel()

    run(main)


def test_nobody_listens_at_the_observer() -> None:
    with sockets.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        async def main() -> None:
            with pytest.raises(PeerUnreachable):
                async with being_seen(Address("127.0.0.1", port), bytes(16)):
                    raise AssertionError("there is nobody")
            assert await compare_ports([Address("127.0.0.1", port)], bytes(16)) is PortRule.UNKNOWN
            assert await compare_ports([], bytes(16)) is PortRule.UNKNOWN

        run(main)


def has_ip6_loopback() -> bool:
    with sockets.socket(sockets.AF_INET6) as probe:
        return probe.connect_ex(("::1", 9)) == errno.ECONNREFUSED


@pytest.mark.skipif(not has_ip6_loopback(), reason="this machine has no IPv6")
def test_observers_in_both_families_of_addresses_are_not_compared() -> None:
    """A machine with both, whose router keeps ports, is not told that hole punching cannot work."""

    async def main() -> None:
        async with open_observer(SeenService(), []) as one, open_observer(SeenService(), [], "::1") as other:
            assert await compare_ports([one, other], bytes(16)) is PortRule.KEPT

    run(main)


def test_two_ports_of_one_observer_are_one_witness() -> None:
    async def main() -> None:
        async with open_observer(SeenService(), []) as one, open_observer(SeenService(), []) as other:
            assert await compare_ports([one, other], bytes(16)) is PortRule.KEPT

    run(main)


@pytest.mark.parametrize("offset", [0, 1])
def test_two_observers_that_see_the_same_or_another_port(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they see is put in their mouths: this machine has no router between its addresses."""

    async def main() -> None:
        ports = iter((40_000, 40_000 + offset))

        def translate(name: tuple[str, int]) -> Address:
            return Address("203.0.113.7", next(ports)) if name[0].startswith("127.") else get_place(name)

        monkeypatch.setattr(seen, "get_place", translate)
        async with open_observer(SeenService(), []) as one:
            other = Address("127.0.0.2", one.port)

            async def forward(stream: trio.SocketStream) -> None:
                async with stream:
                    assert await stream.receive_some(len(SEEN_HELLO)) == SEEN_HELLO
                    await SeenService().answer(stream.socket, lambda: None)

            async with trio.open_nursery() as nursery:
                await nursery.start(partial(trio.serve_tcp, forward, one.port, host="127.0.0.2"))
                rule = await compare_ports([one, other], bytes(16))
                nursery.cancel_scope.cancel()
        assert rule is (PortRule.OTHER if offset else PortRule.SAME)

    run(main)
