"""Taking the model from peers: the receiver's side (questions: model_share.py).

A lane per donor asks for a slot until it gets one, a few lanes at a time. Lanes take the next missing piece
as soon as they are done with one, so the fastest donor serves most; when nothing is left to begin, an idle
lane takes a piece over from a slow one, and the first to deliver it wins. Each piece is held to its hashes
on arrival and put where it belongs in the model that is being built; what is there stays there, whoever
leaves. Who serves a wrong piece or manifest is not asked again.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import trio

from psyche_py.client.incoming_model import IncomingModel
from psyche_py.client.model_lane import (
    BUSY_PAUSE_SECONDS,
    Lane,
    LaneState,
    SlotAnswer,
    ask_for_files,
    ask_for_manifest,
    ask_for_slot,
    release_slot,
)
from psyche_py.client.model_share import ANY_MODEL, SharedModel, SlotStatus
from psyche_py.errors import NetworkError
from psyche_py.model.errors import PeerModelError
from psyche_py.model.sharing import pack_files, parse_files

if TYPE_CHECKING:
    from psyche_py.client.piece_cache import PieceCache
    from psyche_py.model.loader import LoadedModel
    from psyche_py.observe.events import EventSink
    from psyche_py.p2p.port import Network

MAX_LANES = 4
PIECES_PER_LANE = 2
PIECE_DEADLINE_SECONDS = 120.0
LANE_PATIENCE_SECONDS = 12.0
"""A donor that delivers nothing for so long gives its place to one that waits for it."""
SLOW_FACTOR = 8
TAKE_OVER_SECONDS = 2.0
"""A piece that is on its way for so long may be taken over, when nothing else is left to begin."""
STALL_SECONDS = 20.0
"""After so long without a piece, and without one on its way, the caller is told."""
REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class FetchedModel:
    """A whole model and its digest (32 B); ``num_peers`` served pieces of it."""

    loaded: LoadedModel
    digest: bytes
    num_peers: int


class ModelFetch:
    """The model that ``epoch`` starts from, taken from ``donors`` (their p2p keys).

    digest:     of that model, 32 B
    own_files:  tokenizer files that we have ourselves; none: those that most donors name are taken
    cache:      keeps pieces on disk; None: only in memory
    """

    def __init__(
        self,
        network: Network,
        sink: EventSink,
        donors: Sequence[bytes],
        epoch: int,
        digest: bytes,
        *,
        own_files: dict[str, bytes] | None = None,
        cache: PieceCache | None = None,
    ) -> None:
        self._network = network
        self._sink = sink
        self._epoch = epoch
        self._own_files = own_files or {}
        self.model = IncomingModel(digest, cache)
        # receivers begin with other donors and pieces than others do, so that slots are shared
        self._rng = Random(network.key)
        shuffled = sorted(donors)
        self._rng.shuffle(shuffled)
        self._lanes = [Lane(donor) for donor in shuffled]
        self._files: dict[bytes, dict[str, bytes]] = {}
        self._missing: deque[int] = deque()
        self._started: dict[int, float] = {}
        self._is_resumed = False
        self._building = trio.Lock()
        self._has_manifest = trio.Event()
        self._lane_limit = trio.CapacityLimiter(MAX_LANES)
        self._news = trio.Event()
        self._last_piece = 0.0

    async def run(self) -> FetchedModel:
        """Fetch what is missing; after an error it can be called again, and what is here is kept.

        Raises NetworkError when no piece has come from anybody for STALL_SECONDS.
        """
        self._last_piece = trio.current_time()
        if not self._is_resumed:
            self._is_resumed = True
            await trio.to_thread.run_sync(self.model.resume)
            self._list_missing()
        if not self.model.is_complete:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                for lane in self._lanes:
                    nursery.start_soon(self._drive, lane)
            self._show()
        if not self.model.is_complete:
            raise NetworkError(
                f"No peer serves the model of epoch {self._epoch}; of those asked: {self._describe_lanes()}.",
                "The client goes on asking until the warm-up ends.",
            )
        loaded = self.model.loaded
        assert loaded is not None
        loaded.files = self._own_files or self._choose_files()
        return FetchedModel(loaded, self.model.digest, sum(lane.num_pieces > 0 for lane in self._lanes))

    def make_share(self) -> SharedModel:
        """What we have fetched, for those who come after us: as long as nobody changes its weights."""
        model, manifest = self.model, self.model.manifest
        assert manifest is not None, "only a complete model is shared"
        assert model.loaded is not None
        files = pack_files(model.loaded.files)
        return SharedModel(self._epoch, model.manifest_bytes, manifest, model.memory, files, is_live=True)

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Ends the fetch when it is complete, or when nothing has moved for a while."""
        while not self.model.is_complete:
            idle = trio.current_time() - self._last_piece
            is_coming = any(lane.state is LaneState.SERVING for lane in self._lanes)
            limit = STALL_SECONDS + PIECE_DEADLINE_SECONDS if is_coming else STALL_SECONDS
            if idle >= limit or all(lane.is_excluded for lane in self._lanes):
                break
            await self._wait_for_news(1.0)
        scope.cancel()

    async def _wait_for_news(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._news.wait()

    def _tell(self) -> None:
        """Something has changed that lanes may be waiting for."""
        self._news.set()
        self._news = trio.Event()

    # ---- lanes --------------------------------------------------------------------------------------

    async def _drive(self, lane: Lane) -> None:
        """Use this donor whenever it has a slot for us, until it proves to be unusable."""
        pause = BUSY_PAUSE_SECONDS
        while not lane.is_excluded:
            before = lane.num_pieces
            async with self._lane_limit:
                try:
                    wait = await self._use(lane)
                except NetworkError as error:
                    wait = pause
                    if not lane.is_excluded:
                        lane.state, lane.reason = LaneState.FAILED, str(error)
                    pause = min(2 * pause, 16 * BUSY_PAUSE_SECONDS)
            if lane.num_pieces > before:
                pause = BUSY_PAUSE_SECONDS
            await trio.sleep(wait * self._rng.uniform(0.8, 1.2))

    async def _use(self, lane: Lane) -> float:
        """Ask for a slot and use it. Returns after how many seconds to ask again. Raises NetworkError."""
        answer = await ask_for_slot(self._network, lane.donor, self._epoch, self.model.digest)
        if answer.status is not SlotStatus.GRANTED or answer.digest != self.model.digest:
            return lane.note_refusal(answer, self.model.digest)
        lane.note_slot(answer, trio.current_time())
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._judge, lane, nursery.cancel_scope)
                nursery.start_soon(self._work, lane, nursery.cancel_scope)
        finally:
            with trio.CancelScope(shield=True):
                await release_slot(self._network, lane.donor, self.model.digest)
        if lane.failure is not None:
            raise lane.failure
        return BUSY_PAUSE_SECONDS

    async def _work(self, lane: Lane, scope: trio.CancelScope) -> None:
        """Take from a donor what there is to take; ends ``scope``."""
        try:
            await self._get_manifest(lane)
            await self._get_files(lane)
            async with trio.open_nursery() as nursery:
                for _ in range(PIECES_PER_LANE):
                    nursery.start_soon(self._fetch_pieces, lane, nursery.cancel_scope)
        except NetworkError as error:
            self._note_failure(lane, error)
        scope.cancel()

    def _note_failure(self, lane: Lane, error: NetworkError) -> None:
        """A donor that served what cannot be right has lost its place, whatever it says from now on."""
        lane.failure = lane.failure or error
        if isinstance(error, PeerModelError) and not lane.is_excluded:
            lane.state, lane.is_excluded, lane.reason = LaneState.EXCLUDED, True, str(error)
            self._network.report(lane.donor, "model_wrong")
            self._sink.emit("model_offender", peer=lane.donor.hex(), reason=str(error))
            self._tell()

    async def _judge(self, lane: Lane, scope: trio.CancelScope) -> None:
        """While others wait for a place: take it from a donor that is silent or far slower than the best."""
        while True:
            await trio.sleep(LANE_PATIENCE_SECONDS / 4)
            fastest = max(other.mb_per_second for other in self._lanes)
            is_silent = trio.current_time() - lane.last_heard >= LANE_PATIENCE_SECONDS
            is_slow = lane.num_pieces > PIECES_PER_LANE and SLOW_FACTOR * lane.mb_per_second < fastest
            if (is_silent or is_slow) and self._lane_limit.statistics().tasks_waiting:
                lane.failure = NetworkError(f"Peer {lane.donor.hex()[:12]} is too slow.")
                scope.cancel()
                return

    async def _get_manifest(self, lane: Lane) -> None:
        """Have a manifest, from this donor or another: a slow one must not hold the others up.

        Raises NetworkError; PeerModelError when this donor is at fault.
        """
        errors: list[NetworkError] = []

        async def ask(scope: trio.CancelScope) -> None:
            try:
                await self._begin(await ask_for_manifest(self._network, lane.donor, self.model.digest))
            except NetworkError as error:
                errors.append(error)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            if self.model.manifest is None:
                nursery.start_soon(ask, nursery.cancel_scope)
                await self._has_manifest.wait()
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]

    async def _begin(self, manifest: bytes) -> None:
        """Raises PeerModelError."""
        async with self._building:
            if self.model.manifest is None:
                await trio.to_thread.run_sync(self.model.begin, manifest)
                self._list_missing()

    async def _get_files(self, lane: Lane) -> None:
        """Tokenizer files, once for every content that donors name."""
        if self._own_files or lane.files_hash in self._files:
            return
        packed = await ask_for_files(self._network, lane.donor, self.model.digest)
        if hashlib.sha256(packed).digest() != lane.files_hash:
            raise PeerModelError("its files are not what their hash says")
        self._files[lane.files_hash] = parse_files(packed)

    def _choose_files(self) -> dict[str, bytes]:
        """Those that most donors have. Nothing attests them, and nothing but checkpoints needs them."""
        votes = Counter(lane.files_hash for lane in self._lanes if lane.files_hash in self._files)
        return self._files[votes.most_common(1)[0][0]] if votes else {}

    def _list_missing(self) -> None:
        manifest = self.model.manifest
        if manifest is None:
            return
        numbers = [n for n in range(len(manifest.pieces)) if n not in self.model.have]
        self._rng.shuffle(numbers)
        self._missing = deque(numbers)
        self._has_manifest.set()
        fields = {"pieces": len(manifest.pieces), "bytes": manifest.num_bytes, "peers": len(self._lanes)}
        self._sink.emit("model_fetch", **fields, digest=self.model.digest.hex(), here=len(self.model.have))

    # ---- pieces -------------------------------------------------------------------------------------

    async def _fetch_pieces(self, lane: Lane, others: trio.CancelScope) -> None:
        """One piece after the other, until none is left or the donor fails."""
        while not self.model.is_complete and lane.failure is None:
            number = self._choose(lane)
            if number is None:
                await self._wait_for_news(TAKE_OVER_SECONDS / 2)
                continue
            try:
                await self._fetch_piece(lane, number)
            except NetworkError as error:
                self._note_failure(lane, error)
                others.cancel()
            finally:
                self._give_back(number)

    def _choose(self, lane: Lane) -> int | None:
        """A missing piece; else one that somebody has not delivered for a while."""
        if self._missing:
            number = self._missing.popleft()
            self._started[number] = trio.current_time()
            return number
        now = trio.current_time()
        late = [n for n, began in self._started.items() if now - began >= TAKE_OVER_SECONDS]
        late = [n for n in late if n not in lane.scopes]
        if not late:
            return None
        number = min(late, key=lambda n: self._started[n])
        self._started[number] = now  # the next idle lane takes another one
        return number

    async def _fetch_piece(self, lane: Lane, number: int) -> None:
        """Raises NetworkError; PeerModelError when the donor is at fault."""
        assert self.model.manifest is not None
        piece, began = self.model.manifest.pieces[number], trio.current_time()
        with trio.CancelScope() as scope:
            lane.scopes[number] = scope
            try:
                data = await self._network.fetch_from(
                    lane.donor, piece.name, piece.size, deadline_seconds=PIECE_DEADLINE_SECONDS
                )
            finally:
                lane.scopes.pop(number, None)
        if scope.cancelled_caught:
            return  # another donor was faster
        await trio.to_thread.run_sync(self.model.take, number, data)
        lane.note_piece(piece.size, began, trio.current_time())
        self._last_piece = trio.current_time()
        for other in self._lanes:
            if number in other.scopes:
                other.scopes[number].cancel()
        self._tell()

    def _give_back(self, number: int) -> None:
        """Nobody is at this piece any more: it is here, or missing again."""
        if any(number in lane.scopes for lane in self._lanes):
            return
        self._started.pop(number, None)
        if number not in self.model.have and number not in self._missing:
            self._missing.append(number)
            self._tell()

    # ---- what people see ----------------------------------------------------------------------------

    async def _report(self) -> None:
        while True:
            before = trio.current_time(), self.model.num_bytes
            await trio.sleep(REPORT_SECONDS)
            self._show((self.model.num_bytes - before[1]) / 1e6 / (trio.current_time() - before[0]))

    def _show(self, mb_per_second: float = 0.0) -> None:
        """What is here, how fast it comes, and from whom."""
        manifest, error = self.model.manifest, self.model.cache_error
        if error is not None:
            self.model.cache_error = None
            self._sink.emit("warning", message=str(error))
        self._sink.emit(
            "model_progress",
            pieces=len(self.model.have),
            of=len(manifest.pieces) if manifest is not None else 0,
            bytes=self.model.num_bytes,
            mb_per_second=round(mb_per_second, 3),
            peers=[lane.describe() for lane in self._lanes if lane.is_worth_showing],
        )

    def _describe_lanes(self) -> str:
        states = Counter(lane.state for lane in self._lanes)
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nobody to ask"


async def find_agreed_digest(network: Network, donors: Sequence[bytes], epoch: int) -> bytes:
    """The model that more than half of the donors that have one for ``epoch`` say they have.

    Where no quorum attested one. Raises NetworkError when there is no such model.
    """
    votes = await _ask_digests(network, donors, epoch)
    digest, count = votes.most_common(1)[0] if votes else (ANY_MODEL, 0)
    if 2 * count <= votes.total():
        said = f"{len(votes)} different models" if votes else f"none of {len(donors)} peers has one yet"
        raise NetworkError(
            f"No model of epoch {epoch} that most peers agree on: {said}.",
            "The client goes on asking until the warm-up ends.",
        )
    return digest


async def find_digest(network: Network, donors: Sequence[bytes], epoch: int, prefix: bytes) -> bytes:
    """The digest (32 B) that begins with ``prefix``, from a donor that has its model for ``epoch``.

    Raises NetworkError when nobody has it.
    """
    for digest in await _ask_digests(network, donors, epoch):
        if digest.startswith(prefix):
            return digest
    raise NetworkError(
        f"None of {len(donors)} peers has the model {prefix.hex()[:12]} that epoch {epoch} starts from.",
        "The client goes on asking until the warm-up ends.",
    )


async def _ask_digests(network: Network, donors: Sequence[bytes], epoch: int) -> Counter[bytes]:
    """How many donors have which model for ``epoch``, by digest."""
    answers: list[SlotAnswer] = []

    async def ask(donor: bytes) -> None:
        try:
            answers.append(await ask_for_slot(network, donor, epoch, ANY_MODEL, wants_slot=False))
        except NetworkError:
            return  # it is not among those that have one

    async with trio.open_nursery() as nursery:
        for donor in donors:
            nursery.start_soon(ask, donor)
    return Counter(answer.digest for answer in answers if answer.digest != ANY_MODEL)
