"""Who gets our blobs from us, and who from those that got them: uplinks are the scarce thing.

A node gives each blob to `MAX_COPIES` peers and refers all others to these, who do the same. So n copies go
out as a tree, a sender uploads about twice its payload, and the last one has it after log2(n) transfers
instead of n. Whoever is referred to a peer that is itself still fetching waits there.

A peer that dies or lies costs time only, and costs the sender one copy more, not one per asker: whoever found
nothing where it was referred to asks again urgently, which is a complaint. Peers complained of count no
longer, two others get a copy in their place, and the next askers are referred to these. An asker that
complains twice is served. A liar can complain twice for each blob, and so cost four copies: if it breaks off
what it got after the first time, it is referred anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.port import BlobSource

MAX_COPIES = 2
MAX_REFERRALS = 2
MAX_COMPLAINTS = 2
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
    is_doubted: bool = field(default=False, compare=False)


@dataclass(slots=True)
class _Copies:
    """Who has one blob from us, and whom we referred elsewhere."""

    places: dict[bytes, _Place] = field(default_factory=dict)
    referrals: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    num_complaints: dict[bytes, int] = field(default_factory=dict)

    def get_trusted(self) -> list[_Place]:
        """Those nobody complained of; whom to refer to next comes first."""
        return sorted(place for place in self.places.values() if not place.is_doubted)

    def note_complaint(self, asker: bytes) -> None:
        """``asker`` found nothing at those we referred it to."""
        self.num_complaints[asker] = self.num_complaints.get(asker, 0) + 1
        for key in self.referrals.pop(asker, ()):
            if key in self.places:
                self.places[key].is_doubted = True

    def forget_peer(self, key: bytes) -> None:
        """It has left."""
        self.places.pop(key, None)
        self.referrals.pop(key, None)
        self.num_complaints.pop(key, None)


def _compute_lot(digest: bytes, key: bytes) -> int:
    """Who comes first among those with as many referrals: another one for every blob.

    By key alone a peer with a small key would relay every payload, and one with a large key none.
    """
    return int.from_bytes(digest[:8]) ^ int.from_bytes(key[:8])


class UploadDesk:
    """Decides what becomes of each question for a blob."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._copies: dict[bytes, _Copies] = {}
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
        The copies in the hands of those we served are offered evenly.
        """
        copies = self._copies.setdefault(digest, _Copies())
        self._forget_gone(digest)
        if is_urgent:
            copies.note_complaint(asker)
        trusted = copies.get_trusted()
        has_waited = copies.num_complaints.get(asker, 0) >= MAX_COMPLAINTS
        if asker in copies.places or has_waited or len(trusted) < MAX_COPIES:
            copies.places.setdefault(asker, _Place(0, _compute_lot(digest, asker), asker))
            return ()
        trusted[0].num_referred += 1
        copies.referrals[asker] = tuple(place.key for place in trusted[:MAX_REFERRALS])
        return copies.referrals[asker]

    def _forget_gone(self, wanted: bytes) -> None:
        """Blobs that the store no longer has, except ``wanted``; now and then, when there are many."""
        if len(self._copies) > max(MIN_KNOWN_BLOBS, 2 * len(self._store)):
            gone = [known for known in self._copies if known != wanted and not self._store.has(known)]
            for known in gone:
                del self._copies[known]

    def revoke(self, digest: bytes, asker: bytes) -> None:
        """``asker`` did not get it all: somebody else may have its place."""
        if digest in self._copies:
            self._copies[digest].places.pop(asker, None)

    def forget_peers(self, keys: frozenset[bytes]) -> None:
        """Peers have left: nobody is referred to them any more."""
        for copies in self._copies.values():
            for key in keys:
                copies.forget_peer(key)

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
