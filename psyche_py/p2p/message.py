"""Bodies of the announcements: fixed binary layouts, little-endian, exact length.

    header 74 B   version u8, kind u8, program_id 32, run_id 32, epoch u16, height u32, sender_index u16
    TrainingResult +116 B   batch_start u64, batch_end u64 (inclusive), commitment 96, size u32
    Finished       + 36 B   state_digest 32, loss f32
    WarmupReady    +  0 B

The signature around a body (see frames.py) therefore covers program, run, epoch and round: nothing
that was said in one place can be said again in another.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from psyche_py.p2p.errors import MessageError as MessageError

MESSAGE_VERSION = 2
_HEADER = struct.Struct("<BB32s32sHIH")
COMMITMENT_BYTES = 96
_RESULT = struct.Struct("<QQ96sI")
_FINISHED = struct.Struct("<32sf")


class MessageKind(IntEnum):
    """What an announcement says."""

    TrainingResult = 1
    Finished = 2
    WarmupReady = 3


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """Where an announcement belongs: program and run (32 B each), epoch, round height, the sender's index."""

    program_id: bytes
    run_id: bytes
    epoch: int
    height: int
    sender_index: int


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The sender trained batches ``batch_start..batch_end`` (inclusive).

    commitment:  payload SHA-256, momentum root, bitmap of foreseen clients (96 B, coordinator/commitment.py)
    size:        of the payload, bytes
    """

    header: RoundHeader
    batch_start: int
    batch_end: int
    commitment: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The sender is done with its round: digest of its replica (32 B), training loss (f32, NaN: none)."""

    header: RoundHeader
    state_digest: bytes
    loss: float


@dataclass(frozen=True, slots=True)
class WarmupReady:
    """The sender has loaded the model of the epoch."""

    header: RoundHeader


Message = TrainingResult | Finished | WarmupReady


def encode_message(message: Message) -> bytes:
    """Bytes of a message. Raises MessageError when a field does not fit its layout."""
    header = message.header
    if len(header.program_id) != 32 or len(header.run_id) != 32:
        raise MessageError("Program and run ids have 32 bytes.")
    kind, tail = _encode_tail(message)
    try:
        head = _HEADER.pack(
            MESSAGE_VERSION,
            kind,
            header.program_id,
            header.run_id,
            header.epoch,
            header.height,
            header.sender_index,
        )
    except struct.error as error:
        raise MessageError(f"A header field is out of range: {error}.") from None
    return head + tail


def _encode_tail(message: Message) -> tuple[MessageKind, bytes]:
    try:
        match message:
            case TrainingResult():
                _check_result(message.batch_start, message.batch_end, message.commitment, message.size)
                tail = _RESULT.pack(message.batch_start, message.batch_end, message.commitment, message.size)
                return MessageKind.TrainingResult, tail
            case Finished():
                if len(message.state_digest) != 32:
                    raise MessageError("A state digest has 32 bytes.")
                loss = message.loss if math.isfinite(message.loss) else math.nan
                return MessageKind.Finished, _FINISHED.pack(message.state_digest, loss)
            case WarmupReady():
                return MessageKind.WarmupReady, b""
    except (struct.error, OverflowError) as error:
        raise MessageError(f"A field is out of range: {error}.") from None
    raise MessageError(f"{type(message).__name__} is not a message.")


def decode_message(body: bytes) -> Message:
    """Read an announcement body sent by anybody. Raises MessageError, nothing else."""
    if len(body) < _HEADER.size:
        raise MessageError(f"The body has {len(body)} bytes, a header alone has {_HEADER.size}.")
    version, kind, program_id, run_id, epoch, height, sender_index = _HEADER.unpack_from(body)
    if version != MESSAGE_VERSION:
        raise MessageError(f"Message version {version} is unknown.", "Update this client.")
    header = RoundHeader(program_id, run_id, epoch, height, sender_index)
    tail = body[_HEADER.size :]
    if kind == MessageKind.TrainingResult:
        start, end, commitment, size = _unpack(_RESULT, tail, "TrainingResult")
        _check_result(start, end, commitment, size)
        return TrainingResult(header, start, end, commitment, size)
    if kind == MessageKind.Finished:
        digest, loss = _unpack(_FINISHED, tail, "Finished")
        return Finished(header, digest, loss if math.isfinite(loss) else math.nan)
    if kind == MessageKind.WarmupReady:
        if tail:
            raise MessageError("A WarmupReady body has bytes after its header.")
        return WarmupReady(header)
    raise MessageError(f"Message kind {kind} is unknown.")


def _unpack(layout: struct.Struct, tail: bytes, name: str) -> tuple[Any, ...]:
    if len(tail) != layout.size:
        raise MessageError(f"{name} has {layout.size} bytes after its header, not {len(tail)}.")
    return layout.unpack(tail)


def _check_result(start: int, end: int, commitment: bytes, size: int) -> None:
    if start > end:
        raise MessageError(f"Batches {start}..{end} are not a range.")
    if len(commitment) != COMMITMENT_BYTES:
        raise MessageError(f"A commitment has {COMMITMENT_BYTES} bytes.")
    if size == 0:
        raise MessageError("A payload has at least one byte.")
