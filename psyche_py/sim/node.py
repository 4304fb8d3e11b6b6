"""A client's place in the mesh: the node of ``p2p``, with wires that only count and delay.

Allow-list, overlay, stand-ins for neighbours that are not connected, and who is served a blob and who is
referred to whom are the node's own. Bytes, signatures and retries are not here: ``wires`` and ``fetching``
play them in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psyche_py.p2p.allowlist import PeerChanges
from psyche_py.p2p.frames import Frame, ItemKind
from psyche_py.p2p.node import Node, ReplyStatus
from psyche_py.p2p.port import PeerInfo
from psyche_py.p2p.transfer import BlobQuestion


class SimNode(Node):
    """See the module. ``is_reachable(key)`` says whether the wires to a peer are whole."""

    def __init__(
        self, key_seed: bytes, clock: Callable[[], float], is_reachable: Callable[[bytes], bool]
    ) -> None:
        super().__init__(key_seed, None, clock)
        self._is_reachable = is_reachable
        self._news: tuple[Sequence[PeerInfo], bytes] | None = None
        self._linked: frozenset[bytes] = frozenset()

    @property
    def connected_peers(self) -> frozenset[bytes]:
        """Peers with a standing connection: of those that overlay.py says."""
        return frozenset(key for key in self._linked if self._is_reachable(key))

    def learn_peers(self, peers: Sequence[PeerInfo], seed: bytes) -> None:
        """``set_peers``, put off until it matters: hundreds join within seconds, and rings cost time."""
        self._news = (peers, seed)

    def get_own_targets(self) -> list[bytes]:
        """Whom we say our own announcements to."""
        self._read_news()
        return self._get_own_targets()

    def get_second_targets(self, signer: bytes) -> list[bytes]:
        """Whom we pass on to what a signer has said to us itself."""
        self._read_news()
        return self._get_second_targets(signer)

    def get_neighbours(self) -> list[bytes]:
        """Whom we pass others' announcements to."""
        self._read_news()
        return self._get_push_targets()

    def knows(self, key: bytes) -> bool:
        """Whether a peer is on our allow-list."""
        self._read_news()
        return key in self._allowed

    def admit(self, digest: bytes, asker: bytes, *, is_urgent: bool) -> tuple[bytes, ...]:
        """See UploadDesk.admit."""
        if self._news is not None:
            self._read_news()
        return self._desk.admit(digest, asker, is_urgent=is_urgent)

    def revoke(self, digest: bytes, asker: bytes) -> None:
        """See UploadDesk.revoke."""
        self._desk.revoke(digest, asker)

    def _read_news(self) -> None:
        if self._news is not None:
            (peers, seed), self._news = self._news, None
            self.set_peers(peers, seed)

    def _apply_changes(self, changes: PeerChanges) -> None:
        self._linked = self._neighbours.links

    def _exclude(self, key: bytes) -> None:
        self._linked -= {key}

    # ---- what needs wires is played elsewhere -----------------------------------------------------------

    def _send_frame(self, frame: Frame, target: bytes) -> None:
        raise AssertionError("sim.wires carries announcements")

    def _send_news(self, kind: ItemKind, data: bytes, target: bytes) -> None:
        raise AssertionError("sim.wires repairs")

    async def _download(self, peer_key: bytes, question: BlobQuestion) -> None:
        raise AssertionError("sim.fetching carries payloads")

    async def _call(
        self, peer_key: bytes, kind: str, body: bytes, max_response_bytes: int
    ) -> tuple[ReplyStatus, bytes]:
        raise AssertionError("sim.fetching asks peers")
