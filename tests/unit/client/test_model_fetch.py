"""A model taken from peers, some of which lie, fall silent or leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from shared_models import EPOCH, FAST, Log, are_equal, make_snapshot, offer, open_mesh, run

from psyche_py.client import model_fetch
from psyche_py.client.model_fetch import ModelFetch, find_agreed_digest
from psyche_py.client.model_lane import ask_for_manifest, ask_for_slot, release_slot
from psyche_py.client.model_share import (
    ANY_MODEL,
    IDLE_SECONDS,
    MAX_RECEIVERS,
    PENALTY_SECONDS,
    START_SECONDS,
    ModelShare,
    SharedModel,
    SlotStatus,
)
from psyche_py.client.piece_cache import PieceCache
from psyche_py.distro import digest as digest_module
from psyche_py.errors import NetworkError
from psyche_py.model import sharing
from psyche_py.model.sharing import ModelSnapshot
from psyche_py.p2p.errors import PeerUnreachable
from psyche_py.p2p.memory import Link, MemoryNetwork


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nano model in about a hundred pieces."""
    monkeypatch.setattr(digest_module, "LEAF_BYTES", 8192)
    monkeypatch.setattr(sharing, "PIECE_BYTES", 8192)


def make_fetch(
    node: MemoryNetwork,
    donors: list[MemoryNetwork],
    snapshot: ModelSnapshot,
    log: Log,
    cache: PieceCache | None = None,
) -> ModelFetch:
    return ModelFetch(node, log.sink, [d.key for d in donors], EPOCH, snapshot.digest, cache=cache)


def get_size(snapshot: ModelSnapshot) -> int:
    return sum(tensor.nbytes for tensor in snapshot.tensors.values())


def test_several_donors_at_once_and_the_fastest_serves_most() -> None:
    snapshot = make_snapshot(files={"tokenizer.json": b"{}"})

    async def main() -> None:
        async with open_mesh(3) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            hub.set_link(donors[0].key, node.key, Link(0.01, bytes_per_second=5e4))
            hub.set_link(donors[1].key, node.key, Link(0.01, bytes_per_second=5e4))
            log = Log()
            fetched = await make_fetch(node, donors, snapshot, log).run()

            assert fetched.digest == snapshot.digest
            assert are_equal(fetched.loaded.model, snapshot)
            assert fetched.loaded.files == {"tokenizer.json": b"{}"}
            assert fetched.num_peers == 3
            sent = [donor.stats.sent["blob"] for donor in donors]
            assert min(sent) > 0
            assert sent[2] > 1.5 * max(sent[:2])
            assert sum(sent) < 1.2 * get_size(snapshot), "pieces are fetched once, but for a few at the end"
            last = log.get("model_progress")[-1]
            assert last["pieces"] == last["of"] > 50
            assert {peer["pieces"] > 0 for peer in last["peers"]} == {True}
            assert node.store.total_bytes == 0

    run(main)


def test_a_wrong_piece_costs_its_donor_the_place() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(2) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            liar = donors[0].key
            hub.tamper = lambda key, data: bytes([data[0] ^ 1]) + data[1:] if key == liar else data
            log = Log()
            fetched = await make_fetch(node, donors, snapshot, log).run()

            assert are_equal(fetched.loaded.model, snapshot)
            assert fetched.num_peers == 1
            assert [event["peer"] for event in log.get("model_offender")] == [liar.hex()]
            assert node.stats.offences["model_wrong"] == 1

    run(main)


def test_a_piece_of_another_length_is_no_piece() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(2) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            hub.tamper = lambda key, data: data + b"\0" if key == donors[0].key else data
            fetched = await make_fetch(node, donors, snapshot, Log()).run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert fetched.num_peers == 1

    run(main)


def forge(snapshot: ModelSnapshot, manifest: bytes) -> SharedModel:
    """A donor that claims the right digest and has another manifest."""
    return replace(SharedModel.of_snapshot(EPOCH, snapshot), manifest_bytes=manifest)


def test_a_forged_manifest_is_refused_before_a_single_piece_is_asked_for() -> None:
    snapshot, other = make_snapshot(), make_snapshot(2)
    # the same weights under another configuration: only the digest can tell
    changed = snapshot.manifest.replace(b'"rms_norm_eps":', b'"rms_norm_esp":')
    assert changed != snapshot.manifest

    async def main() -> None:
        for manifest in (other.manifest, changed, snapshot.manifest[:-1], b"", b"\0" * 4096):
            async with open_mesh(1) as (_, node, donors):
                ModelShare(donors[0]).offer(forge(snapshot, manifest))
                log = Log()
                with pytest.raises(NetworkError, match="1 excluded"):
                    await make_fetch(node, donors, snapshot, log).run()
                assert donors[0].stats.sent["blob"] == 0
                assert len(log.get("model_offender")) == 1

    run(main)


def test_a_forged_manifest_among_honest_ones_does_no_harm() -> None:
    snapshot, other = make_snapshot(), make_snapshot(2)

    async def main() -> None:
        async with open_mesh(4) as (_, node, donors):
            for donor in donors[:3]:
                ModelShare(donor).offer(forge(snapshot, other.manifest))
            offer(donors[3], snapshot)
            fetched = await make_fetch(node, donors, snapshot, Log()).run()
            assert are_equal(fetched.loaded.model, snapshot)

    run(main)


def test_models_of_other_epochs_and_other_models_are_left_where_they_are() -> None:
    snapshot, other = make_snapshot(), make_snapshot(2)

    async def main() -> None:
        async with open_mesh(4) as (_, node, donors):
            offer(donors[0], snapshot, EPOCH - 1)
            offer(donors[1], other)
            offer(donors[2], snapshot)
            log = Log()
            fetched = await make_fetch(node, donors, snapshot, log).run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert [donor.stats.sent["blob"] > 0 for donor in donors] == [False, False, True, False]
            assert not log.get("model_offender"), "to have another model is no offence"

    run(main)


def test_silent_and_slow_donors_do_not_hold_us_up() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(7) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            for donor in donors[:3]:  # grants a slot, then a piece takes hours
                hub.set_link(donor.key, node.key, Link(0.01, bytes_per_second=100.0), both_ways=False)
            for donor in donors[3:6]:  # answers nothing
                hub.set_link(donor.key, node.key, Link(0.01, drop=1.0))
            started = trio.current_time()
            fetched = await make_fetch(node, donors, snapshot, Log()).run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert trio.current_time() - started < model_fetch.PIECE_DEADLINE_SECONDS

    run(main)


def test_pieces_survive_the_loss_of_every_donor_but_one() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(4, Link(0.01, bytes_per_second=1e5)) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            fetch = make_fetch(node, donors, snapshot, Log())

            async def cut() -> None:
                while fetch.model.num_bytes < get_size(snapshot) // 2:
                    await trio.sleep(0.05)
                hub.partition([node.key, donors[3].key], [d.key for d in donors[:3]])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                fetched = await fetch.run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert node.stats.received["blob"] < 1.2 * get_size(snapshot), "half of it was here already"

    run(main)


def test_without_any_donor_the_caller_is_told_and_what_is_here_is_kept() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(2, Link(0.01, bytes_per_second=1e5)) as (hub, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            log = Log()
            fetch = make_fetch(node, donors, snapshot, log)

            async def cut() -> None:
                while fetch.model.num_bytes < get_size(snapshot) // 2:
                    await trio.sleep(0.05)
                hub.partition([node.key])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                with pytest.raises(NetworkError, match="2 not answering"):
                    await fetch.run()
            here = fetch.model.num_bytes
            assert here >= get_size(snapshot) // 2
            hub.heal()
            before = node.stats.received["blob"]
            fetched = await fetch.run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert node.stats.received["blob"] - before <= 1.2 * (get_size(snapshot) - here)
            assert any(peer["state"] == "not answering" for peer in log.get("model_progress")[-2]["peers"])

    run(main)


def test_a_restarted_client_goes_on_where_it_was(tmp_path: Path) -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(2, Link(0.01, bytes_per_second=1e5)) as (_, node, donors):
            for donor in donors:
                offer(donor, snapshot)
            first = make_fetch(node, donors, snapshot, Log(), PieceCache(tmp_path, snapshot.digest))

            async with trio.open_nursery() as nursery:  # the first life ends in the middle
                nursery.start_soon(first.run)
                while first.model.num_bytes < get_size(snapshot) // 2:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            pieces = tmp_path / snapshot.digest.hex()[:16] / "pieces"
            have = pieces.with_name("have").read_text().split()
            damaged = min(map(int, have))
            data = bytearray(pieces.read_bytes())
            manifest = sharing.parse_manifest(snapshot.manifest)
            data[sum(p.size for p in manifest.pieces[:damaged])] ^= 1
            pieces.write_bytes(data)

            before, log = node.stats.received["blob"], Log()
            second = make_fetch(node, donors, snapshot, log, PieceCache(tmp_path, snapshot.digest))
            fetched = await second.run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert log.get("model_fetch")[0]["here"] == len(set(have)) - 1, "one was damaged"
            assert node.stats.received["blob"] - before < 0.7 * get_size(snapshot)

            # a third life finds everything here and asks nobody
            before = node.stats.received["blob"]
            third = make_fetch(node, [], snapshot, Log(), PieceCache(tmp_path, snapshot.digest))
            assert are_equal((await third.run()).loaded.model, snapshot)
            assert node.stats.received["blob"] == before

    run(main)


def test_pieces_of_another_model_make_room(tmp_path: Path) -> None:
    one, two = make_snapshot(), make_snapshot(2)
    cache = PieceCache(tmp_path, one.digest)
    assert cache.open() is None
    cache.begin(one.manifest)
    cache.write(0, bytes(8))
    assert PieceCache(tmp_path, one.digest).open() == one.manifest
    assert PieceCache(tmp_path, two.digest).open() is None
    assert [path.name for path in tmp_path.iterdir()] == [two.digest.hex()[:16]]


def test_a_full_disk_costs_the_cache_and_not_the_model(tmp_path: Path) -> None:
    snapshot = make_snapshot()
    (tmp_path / "file").write_text("in the way")

    async def main() -> None:
        async with open_mesh(1) as (_, node, donors):
            offer(donors[0], snapshot)
            log = Log()
            cache = PieceCache(tmp_path / "file", snapshot.digest)
            fetched = await make_fetch(node, donors, snapshot, log, cache).run()
            assert are_equal(fetched.loaded.model, snapshot)
            assert len(log.get("warning")) == 1

    run(main)


# ---- slots ----------------------------------------------------------------------------------------------


def test_a_donor_serves_two_and_tells_the_third_at_once() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(3) as (_, donor, askers):
            share = offer(donor, snapshot)
            answers = [await ask_for_slot(n, donor.key, EPOCH, snapshot.digest) for n in askers]
            assert [a.status for a in answers] == [SlotStatus.GRANTED] * 2 + [SlotStatus.BUSY]
            assert share.num_receivers == MAX_RECEIVERS
            name = sharing.parse_manifest(snapshot.manifest).pieces[0].name
            size = sharing.parse_manifest(snapshot.manifest).pieces[0].size
            with pytest.raises(PeerUnreachable):
                await askers[2].fetch_from(donor.key, name, size, deadline_seconds=5)
            with pytest.raises(NetworkError, match="no manifest"):
                await ask_for_manifest(askers[2], donor.key, snapshot.digest)
            await askers[0].fetch_from(donor.key, name, size, deadline_seconds=5)
            await release_slot(askers[0], donor.key, snapshot.digest)
            third = await ask_for_slot(askers[2], donor.key, EPOCH, snapshot.digest)
            assert third.status is SlotStatus.GRANTED

    run(main)


def test_slots_of_those_who_do_nothing_or_are_gone_are_given_to_others() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(4) as (hub, donor, askers):
            share = offer(donor, snapshot)
            for node in askers[:2]:
                await ask_for_slot(node, donor.key, EPOCH, snapshot.digest)
            hub.partition([donor.key, askers[0].key])
            assert share.num_receivers == 1, "whoever is not connected has no slot"
            await trio.sleep(START_SECONDS)
            assert share.num_receivers == 0
            again = await ask_for_slot(askers[0], donor.key, EPOCH, snapshot.digest)
            assert again.status is SlotStatus.BUSY, "it has kept a slot for nothing"
            await trio.sleep(PENALTY_SECONDS)
            again = await ask_for_slot(askers[0], donor.key, EPOCH, snapshot.digest)
            assert again.status is SlotStatus.GRANTED
            piece = sharing.parse_manifest(snapshot.manifest).pieces[0]
            await askers[0].fetch_from(donor.key, piece.name, piece.size, deadline_seconds=5)
            await trio.sleep(IDLE_SECONDS - 1)
            assert share.num_receivers == 1, "a slow line has time for its next piece"

    run(main)


def test_nobody_takes_the_model_without_end() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(1) as (_, node, donors):
            offer(donors[0], snapshot)
            for _ in range(3):
                await make_fetch(node, donors, snapshot, Log()).run()
            answer = await ask_for_slot(node, donors[0].key, EPOCH, snapshot.digest)
            assert answer.status is SlotStatus.BUSY

    run(main)


def test_receivers_share_the_slots_and_all_get_the_model() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(7) as (_, first, others):
            donors, receivers = others[:2], [first, *others[2:]]
            shares = [offer(donor, snapshot) for donor in donors]
            models: list[bool] = []
            most = [0]

            async def receive(node: MemoryNetwork) -> None:
                fetched = await make_fetch(node, donors, snapshot, Log()).run()
                models.append(are_equal(fetched.loaded.model, snapshot))

            async def watch() -> None:
                while True:
                    most[0] = max(most[0], *(share.num_receivers for share in shares))
                    await trio.sleep(0.1)

            async with trio.open_nursery() as watching:
                watching.start_soon(watch)
                async with trio.open_nursery() as nursery:
                    for node in receivers:
                        nursery.start_soon(receive, node)
                watching.cancel_scope.cancel()
            assert models == [True] * 6
            assert most[0] == MAX_RECEIVERS

    run(main)


def test_what_is_shared_live_is_copied_and_ends_with_the_first_change() -> None:
    snapshot = make_snapshot()

    async def main() -> None:
        async with open_mesh(2, FAST) as (_, first, others):
            offer(others[0], snapshot)
            fetch = make_fetch(first, [others[0]], snapshot, Log())
            await fetch.run()
            share = ModelShare(first)
            share.offer(fetch.make_share())
            fetched = await make_fetch(others[1], [first], snapshot, Log()).run()
            assert are_equal(fetched.loaded.model, snapshot)
            await ask_for_slot(others[1], first.key, EPOCH, snapshot.digest)
            piece = sharing.parse_manifest(snapshot.manifest).pieces[0]
            read = share._read(others[1].key, piece.name)
            assert isinstance(read, bytes)
            share.withdraw(only_live=True)
            assert share._read(others[1].key, piece.name) is None

    run(main)


# ---- which model ----------------------------------------------------------------------------------------


def test_the_model_that_most_have_is_agreed_on_and_a_tie_is_not() -> None:
    one, two = make_snapshot(), make_snapshot(2)

    async def main() -> None:
        async with open_mesh(6) as (_, node, others):
            keys = [other.key for other in others]
            with pytest.raises(NetworkError, match="none of 6 peers"):
                await find_agreed_digest(node, keys, EPOCH)
            for other in others[:2]:
                offer(other, one)
            offer(others[2], two)
            offer(others[3], two, EPOCH - 1)
            assert await find_agreed_digest(node, keys, EPOCH) == one.digest
            offer(others[4], two)
            with pytest.raises(NetworkError, match="2 different models"):
                await find_agreed_digest(node, keys, EPOCH)
            answer = await ask_for_slot(node, keys[0], EPOCH, ANY_MODEL, wants_slot=False)
            assert answer.status is SlotStatus.BUSY, "to ask which model it is takes no slot"

    run(main)
