"""Getting the model from peers, and giving it to them.

At the end of an epoch every client cuts its replica into hashed pieces and keeps them in its blob store.
A joiner asks the clients of the new epoch for the manifest, takes the one that most of them name, and
fetches the pieces from all of those at once. Nothing is trusted but hashes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from psyche_py.errors import NetworkError
from psyche_py.model.sharing import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ModelSnapshot,
    assemble,
    make_manifest,
    parse_manifest,
)

if TYPE_CHECKING:
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

MANIFEST_REQUEST = "model-manifest"
EPOCH = struct.Struct("<H")
MANIFEST_DEADLINE_SECONDS = 10.0
PIECE_DEADLINE_SECONDS = 60.0
CONCURRENT_PIECES = 4


class ModelShare:
    """The donor's side: the pieces of the newest epoch's model, in the blob store."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._epoch = -1
        self._manifest = b""
        self._pieces: list[bytes] = []
        network.set_request_handler(MANIFEST_REQUEST, self._answer)

    def offer(self, epoch: int, manifest: bytes, pieces: Sequence[bytes]) -> None:
        """Share this model as the starting point of ``epoch``; the previous one is dropped."""
        new = [self._network.store.put(piece) for piece in pieces]
        for digest in set(self._pieces) - set(new):
            self._network.store.drop(digest)
        self._epoch, self._manifest, self._pieces = epoch, manifest, new

    async def _answer(self, sender_key: bytes, body: bytes) -> bytes:
        if len(body) != EPOCH.size or EPOCH.unpack(body)[0] != self._epoch:
            return b""
        return self._manifest


def make_pieces(snapshot: ModelSnapshot) -> tuple[bytes, list[bytes]]:
    """Manifest bytes and pieces of a model (CPU work; call it in a worker thread)."""
    return make_manifest(snapshot)


async def fetch_model(
    network: Network, sink: EventSink, donors: Sequence[bytes], epoch: int
) -> tuple[ModelSnapshot, int]:
    """Fetch the model that ``epoch`` starts from; returns it and how many peers served it.

    Raises NetworkError when no donor has it yet; the caller decides how long to go on asking.
    """
    manifest_bytes, holders = await _choose_manifest(network, donors, epoch)
    manifest = parse_manifest(manifest_bytes)
    sink.emit("model_fetch", pieces=len(manifest.pieces), bytes=manifest.num_bytes, peers=len(holders))
    pieces = await _fetch_pieces(network, manifest, holders)
    snapshot = await trio.to_thread.run_sync(assemble, manifest, pieces)
    for piece in manifest.pieces:
        network.store.drop(piece.digest)
    return snapshot, len(holders)


async def _choose_manifest(
    network: Network, donors: Sequence[bytes], epoch: int
) -> tuple[bytes, list[bytes]]:
    answers: dict[bytes, bytes] = {}

    async def ask(donor: bytes) -> None:
        try:
            answer = await network.request(
                donor,
                MANIFEST_REQUEST,
                EPOCH.pack(epoch),
                max_response_bytes=MAX_MANIFEST_BYTES,
                deadline_seconds=MANIFEST_DEADLINE_SECONDS,
            )
        except NetworkError:
            return  # counted below: the donor is not among the holders
        if answer:
            answers[donor] = answer

    async with trio.open_nursery() as nursery:
        for donor in donors:
            nursery.start_soon(ask, donor)
    if not answers:
        raise NetworkError(
            f"None of {len(donors)} peers has the model of epoch {epoch} yet.",
            "The client goes on asking until the warm-up ends.",
        )
    manifest, _ = Counter(answers.values()).most_common(1)[0]
    return manifest, sorted(donor for donor, answer in answers.items() if answer == manifest)


async def _fetch_pieces(network: Network, manifest: Manifest, holders: Sequence[bytes]) -> list[bytes]:
    """All pieces, a few at a time, each starting with another holder so that uplinks share the load.

    Raises the first NetworkError; pieces that arrived stay in the store, so that another try goes on there.
    """
    pieces: list[bytes] = [b""] * len(manifest.pieces)
    failures: list[NetworkError] = []
    limiter = trio.CapacityLimiter(CONCURRENT_PIECES)

    async def fetch(number: int) -> None:
        piece = manifest.pieces[number]
        turn = number % len(holders)
        async with limiter:
            try:
                pieces[number] = await network.fetch(
                    piece.digest,
                    piece.size,
                    [*holders[turn:], *holders[:turn]],
                    deadline_seconds=PIECE_DEADLINE_SECONDS,
                )
            except NetworkError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number in range(len(pieces)):
            nursery.start_soon(fetch, number)
    if failures:
        raise failures[0]
    return pieces
