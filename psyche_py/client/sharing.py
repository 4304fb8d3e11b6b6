"""The model between two epochs: given to peers, taken from peers or, as the last resort, from a checkpoint.

At the end of an epoch every client shares a copy of its replica for a while (model_share.py). Who lacks it
takes it from those that have it (model_fetch.py), held to the digest that the run's account keeps: what the
last witnesses attested. Its own checkpoint with that digest spares it the way, and is shared like any other;
where no peer can serve, the checkpoint that the run names will do, if it has that digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import trio

from psyche_py.client.machine import WANTS_MODEL
from psyche_py.client.model_fetch import ModelFetch, find_agreed_digest, find_digest
from psyche_py.client.model_share import ModelShare, SharedModel
from psyche_py.client.piece_cache import PieceCache, remove_pieces
from psyche_py.coordinator.layout import ROUND_STATES
from psyche_py.errors import DataError, NetworkError
from psyche_py.model.sharing import DIGEST_BYTES

if TYPE_CHECKING:
    from psyche_py.client.jobs import TrainerJobs
    from psyche_py.client.options import ClientOptions
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.model.sharing import ModelSnapshot
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

T = TypeVar("T")

RELEASE_HEIGHT = 4
"""The ring of rounds has turned: who begins now with the model cannot follow this epoch any more."""
RETRY_SECONDS = 1.0
LAST_RESORT_SECONDS = 15.0
"""So long peers are asked before the run's checkpoint is tried; at once when there are none."""


@dataclass(frozen=True, slots=True)
class LoadedShare:
    """A model is in place: its digest (32 B), where it came from, and how many peers served it."""

    digest: bytes
    source: str
    num_peers: int


class ModelExchange:
    """Both sides of one client. Pieces are kept beside its checkpoints, where it writes any."""

    def __init__(self, network: Network, sink: EventSink, jobs: TrainerJobs, options: ClientOptions) -> None:
        self._network = network
        self._sink = sink
        self._jobs = jobs
        self._share = ModelShare(network)
        self._directory = get_pieces_directory(options)
        self._fetching: tuple[int, trio.CancelScope] | None = None

    def see(self, account: CoordinatorAccount) -> None:
        """A newer version of the run's account. Ends what nobody needs any more."""
        if self._fetching is not None and not wants_model(account, self._fetching[0]):
            self._fetching[1].cancel()
        is_late = account.run_state in ROUND_STATES and account.current_round.height >= RELEASE_HEIGHT
        if is_late and self._share.epoch == account.epoch and not self._share.num_receivers:
            self._share.withdraw()

    def offer(self, epoch: int, snapshot: ModelSnapshot) -> None:
        """Share the replica that ``epoch`` starts from, until the rounds of the epoch are under way."""
        self._share.offer(SharedModel.of_snapshot(epoch, snapshot))

    def stop_live_share(self) -> None:
        """The weights are about to move: what we share of them directly is shared no more."""
        self._share.withdraw(only_live=True)

    # ---- taking it ----------------------------------------------------------------------------------

    async def load(self, donors: Sequence[bytes], account: CoordinatorAccount) -> LoadedShare | None:
        """Ask until the model that the epoch starts from is in place.

        None when the epoch wants us no more; then `see` has noticed. What is here is kept.
        """
        loaded: LoadedShare | None = None
        with trio.CancelScope() as scope:
            self._fetching = account.start_timestamp, scope
            try:
                loaded = await self._load(donors, account)
            finally:
                self._fetching = None
        return loaded

    async def _load(self, donors: Sequence[bytes], account: CoordinatorAccount) -> LoadedShare:
        fetch: ModelFetch | None = None
        digest = account.model_digest
        own = await self._find_own(account, digest) if digest is not None else None
        if own is not None:
            return own
        last_resort = trio.current_time() + (LAST_RESORT_SECONDS if donors else 0.0)
        while True:
            try:
                if fetch is None:
                    wanted = await self._choose_digest(donors, account)
                    fetch = ModelFetch(
                        self._network,
                        self._sink,
                        donors,
                        account.epoch,
                        wanted,
                        own_files=self._jobs.read_tokenizer_files(),
                        cache=PieceCache(self._directory, wanted) if self._directory else None,
                    )
                return await self._take(fetch, account)
            except NetworkError as error:
                self._sink.emit("warning", message=f"model from peers: {error}")
                if digest is None:
                    fetch = None  # nobody attested it: perhaps most peers have another one by now
            if trio.current_time() >= last_resort:
                last_resort = float("inf")  # once is enough: it does not change
                loaded = await self._load_checkpoint(account, digest)
                if loaded is None and digest is None and account.older_digests:
                    loaded = await self._find_own(account, account.older_digests[0])
                if loaded is not None:
                    return loaded
            await trio.sleep(RETRY_SECONDS)

    async def _choose_digest(self, donors: Sequence[bytes], account: CoordinatorAccount) -> bytes:
        """The whole digest (32 B) of the model to fetch. Raises NetworkError where nobody can tell it yet."""
        digest, epoch = account.model_digest, account.epoch
        if digest is not None and len(digest) == DIGEST_BYTES:
            return digest
        if digest is not None:
            return await find_digest(self._network, donors, epoch, digest)
        digest = await find_agreed_digest(self._network, donors, epoch)
        self._sink.emit(
            "warning",
            message=f"no quorum attested the model that epoch {epoch} starts from: we take the one most "
            f"peers have, {digest.hex()[:12]}",
        )
        return digest

    async def _take(self, fetch: ModelFetch, account: CoordinatorAccount) -> LoadedShare:
        """Raises NetworkError."""
        fetched = await fetch.run()
        digest = await _in_thread(self._jobs.load_fetched, account, fetched)
        if self._directory is not None:
            await _in_thread(remove_pieces, self._directory)
        if self._jobs.trainer.device.type == "cpu":
            self._share.offer(fetch.make_share())
        return LoadedShare(digest, "P2P", fetched.num_peers)

    async def _load_checkpoint(self, account: CoordinatorAccount, digest: bytes | None) -> LoadedShare | None:
        """The last resort: the checkpoint that the run names, if it is what the epoch starts from."""
        source = account.model.checkpoint_origin.name
        self._sink.emit("waiting", reason=f"no peer has the model: trying the run's checkpoint ({source})")
        try:
            found = await _in_thread(self._jobs.load_checkpoint, account, digest)
        except DataError as error:
            self._sink.emit("warning", message=f"model from the run's checkpoint: {error}")
            return None
        await self._offer_loaded(account)
        return LoadedShare(found, source, 0)

    async def _find_own(self, account: CoordinatorAccount, digest: bytes) -> LoadedShare | None:
        """The replica in memory, or one of our checkpoints, if it is the model: then we share it too."""
        if await _in_thread(self._jobs.holds, digest):
            source = "memory"
        elif await _in_thread(self._jobs.load_own_checkpoint, account, digest):
            source = "own checkpoint"
        else:
            return None
        await self._offer_loaded(account)
        return LoadedShare(self._jobs.trainer.digest(), source, 0)

    async def _offer_loaded(self, account: CoordinatorAccount) -> None:
        """Share a copy: whoever joins with us may have nobody else to ask."""
        if self._share.epoch != account.epoch:
            self.offer(account.epoch, await _in_thread(self._jobs.export))


def get_pieces_directory(options: ClientOptions) -> Path | None:
    """Where pieces of a run's model are kept: beside its checkpoints, if there is a place for these."""
    if options.checkpoint_dir is None:
        return None
    return options.checkpoint_dir / f"{quote(options.run_id, safe='')}.incoming"


def wants_model(account: CoordinatorAccount, epoch_start: int) -> bool:
    """Whether the epoch that began at ``epoch_start`` (unix seconds) still takes clients with its model."""
    return account.start_timestamp == epoch_start and account.run_state in WANTS_MODEL


async def _in_thread(function: Callable[..., T], *args: object) -> T:
    return await trio.to_thread.run_sync(partial(function, *args))
