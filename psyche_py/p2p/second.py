"""Second copies of announcements: who needs one at once, and for whom it may wait. No I/O.

Who has a word from its signer passes it on, since a connection may just have broken and a signer may tell
only some. But whoever is connected to the signer has the word from there, most likely: everybody tells its
peers whom it is connected to, and a copy for one that has named the signer waits for the next write to it,
or for the next round of repair. A write costs as much as dozens of announcements in it.
"""

from __future__ import annotations

from collections.abc import Collection

from psyche_py.p2p.errors import FrameError
from psyche_py.p2p.frames import SHORT_ID_BYTES, Frame

SHORT_KEY_BYTES = 8
"""As much of a key names one peer of a run: for another that begins so one has to try 2**64 keys."""
MAX_LINKS = 256
MAX_WAITING = 1_024
"""Copies for one peer: enough for all that a large run says in a second. What is beyond goes at once."""


class SecondCopies:
    """What waits for whom, who says that it is connected to whom, and whom we have told that of ourselves."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, dict[bytes, Frame]] = {}
        self._links: dict[bytes, frozenset[bytes]] = {}
        self._told: dict[bytes, frozenset[bytes]] = {}
        self._connected: frozenset[bytes] = frozenset()

    # ---- copies -------------------------------------------------------------------------------------

    def hold(self, frame: Frame, target: bytes) -> bool:
        """Keep a copy for ``target`` (32 B) until `take`; False when it should be sent now."""
        if not self.is_linked(target, frame.signer):
            return False
        frames = self._waiting.setdefault(target, {})
        if len(frames) >= MAX_WAITING:
            return False
        frames[frame.id] = frame
        return True

    def take(self, target: bytes) -> list[Frame]:
        """All that waits for a peer, oldest first; it waits no longer."""
        return list(self._waiting.pop(target, {}).values())

    def get_targets(self) -> list[bytes]:
        """The peers for which something waits."""
        return sorted(self._waiting)

    def discard(self, frame_id: bytes, target: bytes) -> None:
        """The peer has sent us this frame."""
        self._waiting.get(target, {}).pop(frame_id, None)

    def discard_known(self, short_ids: Collection[bytes], target: bytes) -> None:
        """The peer has said that it has these frames."""
        frames = self._waiting.get(target, {})
        for frame_id in [frame_id for frame_id in frames if frame_id[:SHORT_ID_BYTES] in short_ids]:
            del frames[frame_id]

    def forget_peers(self, keys: frozenset[bytes]) -> None:
        """They have left the run: nothing goes to them, and nothing that they have signed to others."""
        self._forget_links(keys)
        for frames in self._waiting.values():
            for frame_id in [frame_id for frame_id, frame in frames.items() if frame.signer in keys]:
                del frames[frame_id]

    # ---- who is connected to whom -------------------------------------------------------------------

    def hear_links(self, peer: bytes, data: bytes) -> None:
        """What ``peer`` says of its connections: 8 bytes of each key. Raises FrameError on a wrong length."""
        if len(data) % SHORT_KEY_BYTES or len(data) > MAX_LINKS * SHORT_KEY_BYTES:
            raise FrameError(f"A list of connections cannot have {len(data)} bytes.")
        starts = range(0, len(data), SHORT_KEY_BYTES)
        self._links[peer] = frozenset(data[start : start + SHORT_KEY_BYTES] for start in starts)

    def is_linked(self, peer: bytes, other: bytes) -> bool:
        """Whether ``peer`` has said that it is connected to ``other``."""
        return other[:SHORT_KEY_BYTES] in self._links.get(peer, ())

    def tell_links(self, connected: frozenset[bytes]) -> tuple[bytes, list[bytes]]:
        """What to say of our connections, and to which of these peers, who do not know it yet: now they do.

        What waits for a peer that is not connected any more is forgotten, and what it said. What a peer says
        that is not connected yet is kept: it may have seen our connection before we did.
        """
        self._forget_links(self._connected - connected)
        self._connected = connected
        uninformed = sorted(key for key in connected if self._told.get(key) != connected)
        self._told.update(dict.fromkeys(uninformed, connected))
        return b"".join(key[:SHORT_KEY_BYTES] for key in sorted(connected)[:MAX_LINKS]), uninformed

    def tell_again(self, peer: bytes) -> None:
        """There is a new connection to this peer, perhaps to a new process of it that knows nothing."""
        self._told.pop(peer, None)

    def _forget_links(self, keys: frozenset[bytes]) -> None:
        for book in (self._waiting, self._links, self._told):
            for key in keys & book.keys():
                del book[key]
