"""Who may talk to us, and where they can be dialed: a copy of the run's client list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psyche_py.p2p.errors import HintError
from psyche_py.p2p.hint import Address, unpack_hint
from psyche_py.p2p.identity import KEY_BYTES
from psyche_py.p2p.port import PeerInfo


@dataclass(frozen=True, slots=True)
class PeerChanges:
    """What one `AllowList.replace` changed, as sets of keys."""

    added: frozenset[bytes]
    removed: frozenset[bytes]
    moved: frozenset[bytes]


class AllowList:
    """The allowed peers by key. Empty until the first `replace`; never contains our own key."""

    def __init__(self, own_key: bytes) -> None:
        self._own_key = own_key
        self._hints: dict[bytes, bytes] = {}

    def replace(self, peers: Sequence[PeerInfo]) -> PeerChanges:
        """Make ``peers`` the whole list. A key that is listed twice keeps its last hint."""
        new: dict[bytes, bytes] = {}
        for peer in peers:
            if len(peer.key) != KEY_BYTES:
                raise ValueError(f"a peer key has {KEY_BYTES} bytes, not {len(peer.key)}")
            if peer.key != self._own_key:
                new[peer.key] = peer.hint
        old = self._hints
        self._hints = new
        return PeerChanges(
            added=frozenset(new.keys() - old.keys()),
            removed=frozenset(old.keys() - new.keys()),
            moved=frozenset(key for key in new.keys() & old.keys() if new[key] != old[key]),
        )

    def get_address(self, key: bytes) -> Address | None:
        """Where ``key`` says it can be dialed; None when it says nothing usable.

        A malformed hint is the peer's own fault and costs it being dialed, so it is no error here.
        """
        try:
            return unpack_hint(self._hints.get(key, b""))
        except HintError:
            return None

    def __contains__(self, key: object) -> bool:
        return key in self._hints

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._hints)

    def __len__(self) -> int:
        return len(self._hints)
