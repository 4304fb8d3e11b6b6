"""A channel that keeps only the newest account: what subscriptions hand to their reader."""

from __future__ import annotations

import trio

from psyche_py.chain.port import AccountInfo
from psyche_py.coordinator.layout import DISCRIMINATOR

_NONCE = slice(16, 24)


def is_newer(new: AccountInfo, old: AccountInfo | None, *, is_pushed: bool) -> bool:
    """Whether ``new`` should replace ``old``.

    A higher slot wins. Within a slot an account can change more than once: for a run's account its nonce
    decides; of other accounts a pushed state is taken, as pushes come in order, and a polled one is not, as
    it may have been read before the push. Equal content is never news.
    """
    if old is None:
        return True
    if new.slot < old.slot or (new.data == old.data and new.lamports == old.lamports):
        return False
    if new.slot > old.slot:
        return True
    if new.data[:8] == old.data[:8] == DISCRIMINATOR:
        new_nonce, old_nonce = (int.from_bytes(info.data[_NONCE], "little") for info in (new, old))
        return new_nonce > old_nonce
    return is_pushed


class LatestAccount:
    """Sending side of such a channel; ``channel`` is the reader's."""

    def __init__(self) -> None:
        self._sender, self.channel = trio.open_memory_channel[AccountInfo](1)
        self._newest: AccountInfo | None = None

    @property
    def newest(self) -> AccountInfo | None:
        """What was put last."""
        return self._newest

    def offer(self, info: AccountInfo, *, is_pushed: bool) -> bool:
        """Hand ``info`` to the reader if it is news; returns whether it was.

        A state that is not news still moves the slot below which nothing is accepted any more.
        """
        old = self._newest
        if not is_newer(info, old, is_pushed=is_pushed):
            if old is not None and info.slot > old.slot:
                self._newest = info
            return False
        self._newest = info
        try:
            self._sender.send_nowait(info)
        except trio.WouldBlock:
            self.channel.receive_nowait()  # the reader is slow: it never sees the state in between
            self._sender.send_nowait(info)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False  # the reader has gone
        return True

    def close(self) -> None:
        """End the channel: the account is gone, or nobody watches it any more."""
        self._sender.close()
