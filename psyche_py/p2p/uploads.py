"""Who gets our blobs from us, and who from those that got them: uplinks are the scarce thing.

A node gives each blob to `MAX_COPIES` peers and refers all others to these, who do the same. So n copies go
out as a tree, a sender uploads about twice its payload, and the last one has it after log2(n) transfers
instead of n. Whoever is referred to a peer that is itself still fetching waits there. Whoever finds nobody
asks again urgently and is served by anybody who has the blob: a peer that dies or lies costs time only.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.port import BlobSource

MAX_COPIES = 2
MAX_REFERRALS = 2
MIN_KNOWN_BLOBS = 64
"""So many, and twice as many as there are blobs, are known before those that are gone are looked for."""
ARRIVAL_SECONDS = 10.0
"""How long an asker may wait for a blob that is on its way to us."""


@dataclass(order=True, slots=True)
class _Place:
    """A peer that we served: how many we have referred to it, its lot, its key. The least comes first."""

    num_referred: int
    lot: int
    key: bytes


def _compute_lot(digest: bytes, key: bytes) -> int:
    """Who comes first among those with as many referrals: another one for every blob.

    By key alone a peer with a small key would relay every payload, and one with a large key none.
    """
    return int.from_bytes(digest[:8]) ^ int.from_bytes(key[:8])


class UploadDesk:
    """Decides what becomes of each question for a blob."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._served: dict[bytes, dict[bytes, _Place]] = {}
        self._arriving: dict[bytes, trio.Event] = {}
        self.source: BlobSource | None = None

    def read_source(self, name: bytes, asker: bytes) -> bytes | memoryview | None:
        """What the source has for ``asker``: its own business, so neither counted nor referred to others."""
        return self.source(asker, name) if self.source is not None else None

    async def find(self, digest: bytes) -> bytes | None:
        """The blob; waits for it a while when it is being fetched."""
        event = self._arriving.get(digest)
        if event is not None and not self._store.has(digest):
            with trio.move_on_after(ARRIVAL_SECONDS):
                await event.wait()
        return self._store.get(digest)

    def admit(self, digest: bytes, asker: bytes, *, is_urgent: bool) -> tuple[bytes, ...]:
        """Nothing: serve the blob to ``asker`` (32 B), and `revoke` if that fails. Else whom to ask instead.

        Only for blobs that `find` has found: who got one is forgotten some time after the store forgot it.
        The copies in the hands of those we served are offered evenly. Urgent questions are always admitted.
        """
        served = self._served.setdefault(digest, {})
        if len(self._served) > max(MIN_KNOWN_BLOBS, 2 * len(self._store)):
            gone = [known for known in self._served if known != digest and not self._store.has(known)]
            for known in gone:
                del self._served[known]
        if asker in served or is_urgent or len(served) < MAX_COPIES:
            served.setdefault(asker, _Place(0, _compute_lot(digest, asker), asker))
            return ()
        chosen = sorted(served.values())[:MAX_REFERRALS]
        chosen[0].num_referred += 1
        return tuple(place.key for place in chosen)

    def revoke(self, digest: bytes, asker: bytes) -> None:
        """``asker`` did not get it all: somebody else may have its place."""
        self._served.get(digest, {}).pop(asker, None)

    def forget_peers(self, keys: frozenset[bytes]) -> None:
        """Peers have left: nobody is referred to them any more."""
        for served in self._served.values():
            for key in keys & served.keys():
                del served[key]

    def start_arrival(self, digest: bytes) -> trio.Event | None:
        """We fetch this blob now. Give the result to `end_arrival`."""
        if digest in self._arriving:
            return None
        self._arriving[digest] = trio.Event()
        return self._arriving[digest]

    def end_arrival(self, digest: bytes, event: trio.Event | None) -> None:
        """It has arrived, or never will."""
        if event is not None:
            event.set()
            del self._arriving[digest]
