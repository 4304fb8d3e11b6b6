"""Hole punching between two that agree over a pipe, and what it does with those that do not agree."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from pipe_stream import PipeStream, make_pipe_streams

from psyche_py.p2p import punch
from psyche_py.p2p.errors import NetworkError, PeerUnreachable, StreamBroken
from psyche_py.p2p.hint import Address
from psyche_py.p2p.libp2p_link import PeerLink
from psyche_py.p2p.port import TrafficStats
from psyche_py.p2p.punch import MAX_ANSWERED, MAX_OBSERVERS, NOBODY, Puncher, Step, check_target, meet
from psyche_py.p2p.seen import SEEN_HELLO, SeenService, open_shared_socket

SMALL, LARGE, OBSERVER = b"\1" * 32, b"\2" * 32, b"\5" * 32
OWN = Address("203.0.113.1", 40_000)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()

    trio.run(bounded)


# ---- where we look for a peer ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "ff02::1",
    ],
)
def test_in_a_public_run_only_public_addresses_are_tried(host: str) -> None:
    own = OWN if "." in host else Address("2606:4700::1", 40_000)
    with pytest.raises(PeerUnreachable):
        check_target(Address(host, 40_001), own, is_public=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1"])
def test_what_no_machine_has_is_tried_nowhere(host: str) -> None:
    with pytest.raises(PeerUnreachable):
        check_target(Address(host, 40_001), OWN, is_public=False)


@pytest.mark.parametrize("is_public", [True, False])
def test_a_well_known_port_ourselves_and_the_other_family_are_not_tried(is_public: bool) -> None:
    check_target(Address("8.8.4.4", 1_024), OWN, is_public=is_public)
    for target in (Address("8.8.4.4", 443), Address("8.8.4.4", 0), OWN, Address("2606:4700::1", 40_000)):
        with pytest.raises(PeerUnreachable):
            check_target(target, OWN, is_public=is_public)


def test_at_home_private_addresses_will_do() -> None:
    for host in ("192.168.1.7", "10.0.0.1", "127.0.0.1"):
        check_target(Address(host, 40_001), OWN, is_public=False)


# ---- the moment -----------------------------------------------------------------------------------------


@asynccontextmanager
async def open_listener(ip: str = "127.0.0.1") -> AsyncIterator[tuple[trio.socket.SocketType, Address]]:
    listener = await open_shared_socket(ip, 0)
    with listener:
        listener.listen(8)
        yield listener, Address(ip, listener.getsockname()[1])


@pytest.mark.parametrize("lead", [0, 1, 20])
def test_both_get_the_ends_of_one_connection(lead: int) -> None:
    """Whether they call at once, or one so much earlier that the other side's listener takes it."""

    async def main() -> None:
        async with open_listener() as (near, near_place), open_listener() as (far, far_place):
            ends: dict[str, trio.socket.SocketType] = {}

            async def come(name: str, listener: trio.socket.SocketType, target: Address) -> None:
                ends[name] = await meet(listener, target)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(come, "near", near, far_place)
                for _ in range(lead):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(come, "far", far, near_place)
            with ends["near"] as one, ends["far"] as other:
                await one.send(b"from near")
                await other.send(b"from far")
                assert await other.recv(100) == b"from near"
                assert await one.recv(100) == b"from far"

    run(main)


def test_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "MEET_SECONDS", 0.3)

    async def main() -> None:
        async with open_listener() as (near, _):
            async with open_listener() as (_, gone):
                pass
            with pytest.raises(PeerUnreachable):
                await meet(near, gone)

    run(main)


def test_somebody_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "MEET_SECONDS", 2.0)

    async def main() -> None:
        async with open_listener() as (near, near_place):
            stranger = await trio.open_tcp_stream("127.0.0.1", near_place.port)
            async with stranger:
                with pytest.raises(PeerUnreachable):
                    await meet(near, Address("127.0.0.9", 50_000))
                with pytest.raises((trio.BrokenResourceError, EOFError)):
                    if not await stranger.receive_some(1):
                        raise EOFError

    run(main)


# ---- the agreement --------------------------------------------------------------------------------------


class Circuit:
    """A connection, of which only one stream matters here, or not even that."""

    def __init__(self, stream: PipeStream | None, *, is_relayed: bool = True) -> None:
        self._stream = stream
        self.is_relayed = is_relayed

    async def open_stream(self, protocol: str) -> PipeStream:
        assert protocol == punch.PUNCH_PROTOCOL
        assert self._stream is not None
        return self._stream


class Peer:
    """One side: its puncher, what it has adopted, and the offences that it has seen."""

    def __init__(self, key: bytes, other: bytes, observers: dict[bytes, Address], *, is_public: bool) -> None:
        self.key, self.other = key, other
        self.adopted: list[tuple[trio.socket.SocketType, bytes, bool]] = []
        self.offences: list[tuple[bytes, str]] = []
        self.stats = TrafficStats()
        self.service = SeenService()
        self.links = {name: self._make_link(name) for name in (other, OBSERVER)}
        self.links[OBSERVER].ready = Circuit(None, is_relayed=False)  # type: ignore[assignment]
        self.puncher = Puncher(
            key,
            links=self.links,
            get_address=observers.get,
            open_stream=self._open_stream,
            resolve=self._resolve,
            dial=self._dial,
            adopt=lambda *punched: self.adopted.append(punched),
            on_offence=lambda *offence: self.offences.append(offence),
            is_public=is_public,
            stats=self.stats,
            rng=Random(2),
        )
        self.nursery: trio.Nursery

    def _make_link(self, key: bytes) -> PeerLink:
        return PeerLink(
            key,
            dials_first=self.key < key,
            get_address=lambda: None,
            make_greeting=lambda: b"",
            dial=self._dial,
            rng=Random(1),
            stats=self.stats,
        )

    async def _resolve(self, host: str) -> list[str]:
        return [host]

    async def _dial(self, key: bytes, address: Address) -> None:
        raise PeerUnreachable(key, "nobody is dialed here")

    async def _open_stream(self, key: bytes, protocol: str) -> PipeStream:
        """To the observer, which knows who we are."""
        assert key == OBSERVER
        near, far = make_pipe_streams(self.key, OBSERVER)
        self.nursery.start_soon(self.service.serve, far)
        return near


@asynccontextmanager
async def open_pair(*, is_public: bool = False) -> AsyncIterator[tuple[Peer, Peer]]:
    """The one with the smaller key and the other one, with an observer that both know."""
    service = SeenService()

    async def observe(stream: trio.SocketStream) -> None:
        async with stream:
            assert await stream.receive_some(len(SEEN_HELLO)) == SEEN_HELLO
            await service.answer(stream.socket, lambda: None)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, observe, 0, host="127.0.0.1"))
        observers = {OBSERVER: Address("127.0.0.1", listeners[0].socket.getsockname()[1])}
        pair = (
            Peer(SMALL, LARGE, observers, is_public=is_public),
            Peer(LARGE, SMALL, observers, is_public=is_public),
        )
        for peer in pair:
            peer.service, peer.nursery = service, nursery
        yield pair
        nursery.cancel_scope.cancel()


async def serve(peer: Peer, stream: PipeStream) -> None:
    """As the host does: a broken stream is the end of it, an offence is counted."""
    try:
        await peer.puncher.serve(stream)
    except StreamBroken as error:
        if error.offence:
            peer.offences.append((stream.key, error.offence))
    except NetworkError:
        pass
    finally:
        await stream.reset()


async def call(peer: Peer, stream: PipeStream) -> None:
    """What `Puncher.improve` does over a circuit."""
    await peer.puncher._try(peer.links[peer.other], Circuit(stream))  # type: ignore[arg-type]


def test_the_smaller_key_begins_the_handshake_on_the_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(punch, "READY_SECONDS", 0.0)

    async def main() -> None:
        async with open_pair() as (small, large):
            near, far = make_pipe_streams(SMALL, LARGE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, large, far)
                await call(small, near)
            ((one, key_of_large, is_initiator),) = small.adopted
            ((other, key_of_small, is_other_initiator),) = large.adopted
            assert (key_of_large, is_initiator) == (LARGE, True)
            assert (key_of_small, is_other_initiator) == (SMALL, False)
            with one, other:
                assert one.getsockname() == other.getpeername()
                assert other.getsockname() == one.getpeername()
            assert small.offences == large.offences == []

    run(main)


def test_an_observer_that_names_private_addresses_is_not_followed_in_a_public_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On loopback it says the truth, and even that is not dialed."""
    connected: list[Address] = []
    monkeypatch.setattr(punch, "meet", lambda listener, target: connected.append(target))

    async def main() -> None:
        async with open_pair(is_public=True) as (small, large):
            near, far = make_pipe_streams(SMALL, LARGE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, large, far)
                await call(small, near)
            assert connected == []
            assert small.adopted == large.adopted == []
            assert small.stats.punches == {"tried": 1, "failed": 1}

    run(main)


@pytest.mark.parametrize(
    "said",
    [b"\0", bytes([MAX_OBSERVERS + 1]), b"\xff" + os.urandom(300)],
    ids=["nobody", "too many", "garbage"],
)
def test_a_call_that_is_none(said: bytes) -> None:
    async def main() -> None:
        async with open_pair() as (small, large):
            near, far = make_pipe_streams(SMALL, LARGE)
            await near.write(said, 5)
            await serve(large, far)
            assert large.offences == [(SMALL, "punch_malformed")]
            # and a well-formed one by the side that has to wait for it
            near, far = make_pipe_streams(LARGE, SMALL)
            await near.write(b"\1" + OBSERVER, 5)
            await serve(small, far)
            assert small.offences == [(LARGE, "punch_malformed")]

    run(main)


@pytest.mark.parametrize("step", [Step.READY, Step.PING, Step.GO, 0, 77])
def test_steps_out_of_turn(step: int) -> None:
    async def main() -> None:
        async with open_pair() as (_, large):
            near, far = make_pipe_streams(SMALL, LARGE)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, large, far)
                await near.write(b"\1" + OBSERVER + bytes([step]), 5)
                assert await near.read_exactly(2, 5) == bytes([0, Step.SEEN])
            assert large.offences == [(SMALL, "punch_malformed")]
            assert large.adopted == []

    run(main)


@pytest.mark.parametrize("answer", [b"\1", b"\xfe", b"\0\x09"], ids=["no such choice", "254", "step 9"])
def test_answers_that_are_none(answer: bytes) -> None:
    async def main() -> None:
        async with open_pair() as (small, _):
            near, far = make_pipe_streams(SMALL, LARGE)
            await far.write(answer, 5)
            await call(small, near)
            assert small.offences == [(LARGE, "punch_malformed")]
            assert small.stats.punches == {"tried": 1, "failed": 1}

    run(main)


def test_refusals_are_no_offence() -> None:
    async def main() -> None:
        async with open_pair() as (small, large):
            del large.links[SMALL]
            for observer in (OBSERVER, b"\6" * 32):
                near, far = make_pipe_streams(SMALL, LARGE)
                await near.write(b"\1" + observer, 5)
                await serve(large, far)
                assert await near.read_exactly(1, 5) == bytes([NOBODY])
            near, far = make_pipe_streams(SMALL, LARGE)
            await far.write(bytes([NOBODY]), 5)
            await call(small, near)
            assert small.offences == large.offences == []
            assert large.stats.punches == {"refused": 2}

    run(main)


def test_a_peer_has_only_so_many_attempts_in_an_epoch() -> None:
    async def main() -> None:
        async with open_pair() as (_, large):
            answers = []

            async def knock() -> None:
                near, far = make_pipe_streams(SMALL, LARGE)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(serve, large, far)
                    await near.write(b"\1" + OBSERVER, 5)
                    answers.append(await near.read_exactly(1, 5))
                    await near.reset()

            for _ in range(MAX_ANSWERED + 2):
                await knock()
            assert answers == [b"\0"] * MAX_ANSWERED + [bytes([NOBODY])] * 2
            assert large.offences == [(SMALL, "punch_surplus")] * 2
            large.puncher.start_epoch(b"the next one")
            await knock()
            large.puncher.start_epoch(b"the next one")
            assert answers[-1] == b"\0"
            assert large.puncher._answered == {SMALL: 1}, "the same seed is the same epoch"

    run(main)
