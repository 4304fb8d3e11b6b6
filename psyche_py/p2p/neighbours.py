"""One node's neighbours in the overlay, and to whom of them it passes an announcement on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from functools import partial

from psyche_py.p2p.overlay import PUSH_DEGREE, PUSH_RINGS, choose_neighbours, draw_links, rank_key


class Neighbours:
    """See the module. Keys are 32 B; ``connected`` are those whose connections to us stand now.

    ``links``: the peers to keep connections to. ``ring``: the two in the first ring.
    """

    def __init__(self, own_key: bytes) -> None:
        self._own_key = own_key
        self._seed = b""
        self._hidden = 0
        self.draw((), b"")

    def draw(self, peers: Iterable[bytes], seed: bytes) -> None:
        """The list of peers or the seed has changed; then say anew who is hidden."""
        known = frozenset(peers)
        self._seed = seed
        self._drawn = draw_links(tuple(sorted({*known, self._own_key})), seed)
        self.links = self._drawn.get_links(self._own_key)
        self.ring = choose_neighbours(self._own_key, known, seed, 1)
        self._pushed = choose_neighbours(self._own_key, known, seed, PUSH_RINGS)
        self._substitutes = sorted(known - self._pushed, key=partial(self._rank, seed))

    def set_hidden(self, keys: Iterable[bytes]) -> None:
        """Peers of the list that nobody can dial: they are not connected to each other."""
        self._hidden = self._drawn.get_bitmap(keys)

    def choose_push_targets(self, connected: Set[bytes]) -> list[bytes]:
        """Whom to pass on to what did not come from its signer.

        While all our connections stand, the two in the first ring: whom the signer did not tell was told by a
        few who had it from there. Else our neighbours in the first rings, and others in the place of those
        that are not connected.
        """
        if self.links <= connected:
            return sorted(self.ring)
        targets = sorted(self._pushed & connected)
        for key in self._substitutes:
            if len(targets) >= PUSH_DEGREE:
                break
            if key in connected:
                targets.append(key)
        return targets

    def choose_second_targets(self, connected: Collection[bytes], signer: bytes) -> list[bytes]:
        """Whom to pass on to what ``signer`` itself has said to us.

        It has said it to all whom it is connected to. Of the others we tell those that it is on us to carry
        words to; and the same as in any other case, for connections that have just broken.
        """
        drawn, own, hidden = self._drawn, self._own_key, self._hidden
        carried = {key for key in connected if key != signer and drawn.carries(own, signer, key, hidden)}
        return sorted(carried.union(self.choose_push_targets(frozenset(connected))))

    def _rank(self, seed: bytes, key: bytes) -> bytes:
        """Orders the peers that may stand in for a neighbour, differently at every node."""
        own = self._own_key
        return rank_key(min(own, key) + max(own, key), seed, PUSH_RINGS)
