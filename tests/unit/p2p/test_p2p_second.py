"""Second copies: for whom they wait, how long, and that nobody who needs one at once has to wait."""

from __future__ import annotations

from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p import second as second_module
from psyche_py.p2p.errors import FrameError
from psyche_py.p2p.frames import Frame, make_frame
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.memory import Link, MemoryHub, MemoryNetwork
from psyche_py.p2p.node import REPAIR_SECONDS
from psyche_py.p2p.offences import MAX_OFFENCES
from psyche_py.p2p.second import MAX_LINKS, SecondCopies
from tests.unit.p2p.test_p2p_memory import drain, open_mesh, run

ME, ALICE, BOB, EVE = (SigningKey(bytes([n]) * 32) for n in range(1, 5))
LINK_SECONDS = 0.0625
LONGEST_WAIT_SECONDS = 1.25 * REPAIR_SECONDS + LINK_SECONDS
CONNECTED_SECONDS = 2.0
"""After this everybody knows who is connected to whom."""


def make_copies(*linked: SigningKey) -> SecondCopies:
    """Of a node that has heard from Bob to whom he is connected."""
    copies = SecondCopies()
    copies.hear_links(BOB.public_key, b"".join(key.public_key[:8] for key in linked))
    return copies


def hold(copies: SecondCopies, *frames: Frame) -> list[bool]:
    return [copies.hold(frame, BOB.public_key) for frame in frames]


def test_a_copy_waits_for_who_is_connected_to_its_signer() -> None:
    copies = make_copies(ALICE)
    first, second, other = make_frame(ALICE, b"1"), make_frame(ALICE, b"2"), make_frame(EVE, b"3")
    assert hold(copies, second, other, first) == [True, False, True]
    assert not copies.hold(first, EVE.public_key), "who has said nothing may lack everything"
    assert copies.get_targets() == [BOB.public_key]
    assert copies.take(BOB.public_key) == [second, first]
    assert copies.take(BOB.public_key) == []


def test_a_copy_does_not_wait_any_more_for_who_has_it() -> None:
    copies = make_copies(ALICE)
    frames = [make_frame(ALICE, bytes([n])) for n in range(4)]
    hold(copies, *frames)
    copies.discard(frames[0].id, BOB.public_key)
    copies.discard(frames[1].id, EVE.public_key)
    copies.discard_known({frames[2].id[:8], bytes(8)}, BOB.public_key)
    copies.discard_known({frames[3].id[:8]}, EVE.public_key)
    assert copies.take(BOB.public_key) == [frames[1], frames[3]]


def test_nothing_waits_for_who_has_left_or_of_who_has_left() -> None:
    copies = make_copies(ALICE, EVE)
    copies.hear_links(EVE.public_key, BOB.public_key[:8])
    of_alice, of_eve, of_bob = (make_frame(key, b"word") for key in (ALICE, EVE, BOB))
    hold(copies, of_alice, of_eve)
    copies.hold(of_bob, EVE.public_key)
    copies.forget_peers(frozenset([EVE.public_key]))
    assert copies.take(EVE.public_key) == []
    assert copies.take(BOB.public_key) == [of_alice]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_module, "MAX_WAITING", 3)
    copies = make_copies(ALICE)
    frames = [make_frame(ALICE, bytes([n])) for n in range(5)]
    assert hold(copies, *frames) == [True] * 3 + [False] * 2
    assert copies.take(BOB.public_key) == frames[:3]


def test_connections_are_told_once_and_again_after_every_change() -> None:
    copies, all_three = SecondCopies(), frozenset(key.public_key for key in (ALICE, BOB, EVE))
    links, uninformed = copies.tell_links(all_three)
    assert uninformed == sorted(all_three)
    assert links == b"".join(key[:8] for key in sorted(all_three))
    assert copies.tell_links(all_three)[1] == []
    copies.tell_again(EVE.public_key)
    assert copies.tell_links(all_three)[1] == [EVE.public_key]
    two = all_three - {EVE.public_key}
    assert copies.tell_links(two) == (b"".join(key[:8] for key in sorted(two)), sorted(two))
    assert copies.tell_links(all_three)[1] == sorted(all_three)


def test_what_a_peer_said_of_its_connections_ends_with_its_own() -> None:
    copies, word = make_copies(ALICE), make_frame(ALICE, b"word")
    copies.tell_links(frozenset())
    assert hold(copies, word) == [True], "it is connected already, we only do not know it yet"
    copies.tell_links(frozenset([BOB.public_key]))
    assert hold(copies, word) == [True]
    copies.tell_links(frozenset([ALICE.public_key]))
    assert copies.get_targets() == []
    assert hold(copies, word) == [False]
    assert copies.tell_links(frozenset([ALICE.public_key, BOB.public_key]))[1] == sorted(
        [ALICE.public_key, BOB.public_key]
    )


@given(st.integers(0, 3 * MAX_LINKS * 8))
def test_a_list_of_connections_of_a_wrong_length_is_refused(num_bytes: int) -> None:
    copies = SecondCopies()
    if num_bytes % 8 == 0 and num_bytes <= MAX_LINKS * 8:
        copies.hear_links(BOB.public_key, bytes(num_bytes))
    else:
        with pytest.raises(FrameError):
            copies.hear_links(BOB.public_key, bytes(num_bytes))


def test_more_connections_than_fit_make_a_list_that_is_accepted() -> None:
    keys = frozenset(n.to_bytes(32, "big") for n in range(MAX_LINKS + 10))
    links, _ = SecondCopies().tell_links(keys)
    assert len(links) == 8 * MAX_LINKS
    SecondCopies().hear_links(BOB.public_key, links)


# ---- in a mesh ------------------------------------------------------------------------------------------


def make_hub(seed: int = 0, drop: float = 0.0) -> MemoryHub:
    return MemoryHub(Random(seed), Link(LINK_SECONDS, drop))


async def hear(node: MemoryNetwork) -> tuple[bytes, float]:
    """The next body and when it comes."""
    with trio.fail_after(60):
        return (await node.announcements().receive()).body, trio.current_time()


def count_sent(nodes: list[MemoryNetwork]) -> int:
    """Bytes of announcements; those of a frame of four bytes are 100."""
    return sum(node.stats.sent["announcement"] for node in nodes)


def test_in_a_whole_mesh_only_the_signer_sends_at_once() -> None:
    async def main() -> None:
        async with open_mesh(16) as (_, nodes):
            await trio.sleep(CONNECTED_SECONDS)
            before = count_sent(nodes)
            await nodes[0].publish(b"word")
            await trio.sleep(0.001)
            assert count_sent(nodes) - before == 15 * 100
            assert [len(await drain(node, 0.001)) for node in nodes[1:]] == [1] * 15
            await trio.sleep(LONGEST_WAIT_SECONDS)
            # everybody of the first ring once more, but the signer: from one side or from both
            assert (15 + 14) * 100 >= count_sent(nodes) - before >= (15 + 14) * 100 // 2
            assert [await drain(node, 0.001) for node in nodes] == [[]] * 16

    run(main)


def test_who_is_not_connected_to_the_signer_does_not_wait() -> None:
    async def main() -> None:
        async with open_mesh(16, make_hub()) as (_, (a, b, *others)):
            for _ in range(MAX_OFFENCES):
                a.report(b.key, "something")
            assert b.key not in a.connected_peers
            await trio.sleep(CONNECTED_SECONDS)
            said = trio.current_time()
            await a.publish(b"word")
            assert await hear(others[0]) == (b"word", said + LINK_SECONDS)
            assert await hear(b) == (b"word", said + 2 * LINK_SECONDS)

    run(main)


def test_nobody_waits_before_it_is_known_who_is_connected() -> None:
    async def main() -> None:
        async with open_mesh(4, make_hub()) as (hub, (a, b, *_)):
            hub.set_link(a.key, b.key, Link(drop=1.0))
            said = trio.current_time()
            await a.publish(b"word")
            assert await hear(b) == (b"word", said + 2 * LINK_SECONDS)

    run(main)


def test_a_word_that_a_dead_connection_swallows_comes_a_little_later() -> None:
    async def main() -> None:
        async with open_mesh(16, make_hub()) as (hub, (a, b, *_)):
            await trio.sleep(CONNECTED_SECONDS)
            hub.set_link(a.key, b.key, Link(drop=1.0))
            said = trio.current_time()
            await a.publish(b"word")
            body, heard = await hear(b)
            assert body == b"word"
            assert LINK_SECONDS < heard - said <= LINK_SECONDS + LONGEST_WAIT_SECONDS

    run(main)


def test_a_copy_that_waits_goes_with_the_next_word() -> None:
    async def main() -> None:
        async with open_mesh(3, make_hub()) as (hub, (a, b, c)):
            await trio.sleep(CONNECTED_SECONDS)
            hub.set_link(a.key, b.key, Link(drop=1.0))
            await a.publish(b"lost")
            assert (await hear(c))[0] == b"lost"
            said = trio.current_time()
            await c.publish(b"next")
            assert [await hear(b), await hear(b)] == [
                (b"lost", said + LINK_SECONDS),
                (b"next", said + LINK_SECONDS),
            ]

    run(main)


@pytest.mark.parametrize("seed", range(5))
def test_everybody_hears_all_though_links_lose_a_fifth_and_some_pass_nothing_on(seed: int) -> None:
    async def main() -> None:
        async with open_mesh(12, make_hub(seed, drop=0.2)) as (_, nodes):
            await trio.sleep(CONNECTED_SECONDS)
            for liar in nodes[:2]:
                liar._spread = lambda frame, source: None  # type: ignore[method-assign]
            for node in nodes:
                await node.publish(b"word")
            await trio.sleep(58.0)
            for node in nodes:
                heard = await drain(node, 0.001)
                assert len(heard) == len({item.sender_key for item in heard}) == 11

    run(main)
