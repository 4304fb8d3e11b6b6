"""One donor, as a receiver of the model sees it, and the questions it is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import trio

from psyche_py.client.model_share import (
    ANSWER,
    ANY_MODEL,
    FILES_REQUEST,
    MANIFEST_REQUEST,
    QUESTION,
    RELEASE_REQUEST,
    SLOT_REQUEST,
    SlotStatus,
)
from psyche_py.errors import NetworkError
from psyche_py.model.errors import PeerModelError
from psyche_py.model.sharing import MAX_FILES_BYTES, MAX_MANIFEST_BYTES

if TYPE_CHECKING:
    from psyche_py.p2p.port import Network

ASK_DEADLINE_SECONDS = 10.0
MANIFEST_DEADLINE_SECONDS = 60.0
BUSY_PAUSE_SECONDS = 1.0
ABSENT_PAUSE_SECONDS = 3.0


class LaneState(StrEnum):
    """How things stand with a donor, in words."""

    WAITING = "not asked yet"
    SERVING = "serving"
    BUSY = "busy"
    ABSENT = "without it"
    OTHER = "with another model"
    FAILED = "not answering"
    EXCLUDED = "excluded"


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """What a donor says: whether we may take pieces, which model it has (zeros: none), its files' hash."""

    status: SlotStatus
    digest: bytes
    files_hash: bytes


@dataclass(slots=True)
class Lane:
    """What we know of one donor."""

    donor: bytes
    state: LaneState = LaneState.WAITING
    reason: str = ""
    num_pieces: int = 0
    num_bytes: int = 0
    seconds: float = 0.0
    files_hash: bytes = b""
    is_excluded: bool = False
    failure: NetworkError | None = None
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    """Pieces on their way from it."""
    last_heard: float = 0.0
    """When it last gave us a slot or a piece."""

    def note_slot(self, answer: SlotAnswer, now: float) -> None:
        """It has given us a slot."""
        self.state, self.files_hash, self.last_heard, self.failure = (
            LaneState.SERVING,
            answer.files_hash,
            now,
            None,
        )

    def note_piece(self, num_bytes: int, began: float, ended: float) -> None:
        """A piece has arrived. Time in which several were on their way counts once."""
        self.num_pieces += 1
        self.num_bytes += num_bytes
        self.seconds += ended - max(began, self.last_heard)
        self.last_heard = ended

    def note_refusal(self, answer: SlotAnswer, wanted: bytes) -> float:
        """It does not serve us now. Returns after how many seconds to ask again."""
        is_other = answer.digest not in (ANY_MODEL, wanted)
        if answer.status is SlotStatus.BUSY and not is_other:
            self.state = LaneState.BUSY
            return BUSY_PAUSE_SECONDS
        self.state = LaneState.OTHER if is_other else LaneState.ABSENT
        return ABSENT_PAUSE_SECONDS

    @property
    def is_worth_showing(self) -> bool:
        """It serves us, has served us, or we know why it does not."""
        return self.num_pieces > 0 or self.state not in (LaneState.WAITING, LaneState.ABSENT)

    @property
    def mb_per_second(self) -> float:
        """Its speed so far, while it was asked for pieces."""
        return self.num_bytes / 1e6 / self.seconds if self.seconds else 0.0

    def describe(self) -> dict[str, object]:
        """For the event file."""
        facts: dict[str, object] = {"peer": self.donor.hex()[:12], "state": str(self.state)}
        if self.reason and self.state in (LaneState.FAILED, LaneState.EXCLUDED):
            facts["reason"] = self.reason
        return facts | {"pieces": self.num_pieces, "mb_per_second": round(self.mb_per_second, 3)}


async def ask_for_slot(
    network: Network, donor: bytes, epoch: int, digest: bytes, *, wants_slot: bool = True
) -> SlotAnswer:
    """Raises NetworkError."""
    answer = await network.request(
        donor,
        SLOT_REQUEST,
        QUESTION.pack(epoch, digest, wants_slot),
        max_response_bytes=ANSWER.size,
        deadline_seconds=ASK_DEADLINE_SECONDS,
    )
    if len(answer) != ANSWER.size:
        raise NetworkError(f"Peer {donor.hex()[:12]} answered nonsense to a question for the model.")
    code, digest, files_hash = ANSWER.unpack(answer)
    try:
        return SlotAnswer(SlotStatus(code), digest, files_hash)
    except ValueError:
        raise NetworkError(f"Peer {donor.hex()[:12]} answered status {code} for the model.") from None


async def ask_for_manifest(network: Network, donor: bytes, digest: bytes) -> bytes:
    """The manifest of the model, unchecked. Raises NetworkError."""
    data = await network.request(
        donor,
        MANIFEST_REQUEST,
        digest,
        max_response_bytes=MAX_MANIFEST_BYTES,
        deadline_seconds=MANIFEST_DEADLINE_SECONDS,
    )
    if not data:
        raise PeerModelError("it gave us a slot and no manifest")
    return data


async def ask_for_files(network: Network, donor: bytes, digest: bytes) -> bytes:
    """Tokenizer files that go with the model, packed and unchecked. Raises NetworkError."""
    return await network.request(
        donor,
        FILES_REQUEST,
        digest,
        max_response_bytes=MAX_FILES_BYTES,
        deadline_seconds=MANIFEST_DEADLINE_SECONDS,
    )


async def release_slot(network: Network, donor: bytes, digest: bytes) -> None:
    """Somebody else may have our slot. It runs out by itself when the donor does not hear this."""
    try:
        await network.request(
            donor, RELEASE_REQUEST, digest, max_response_bytes=0, deadline_seconds=ASK_DEADLINE_SECONDS / 5
        )
    except NetworkError:
        return
