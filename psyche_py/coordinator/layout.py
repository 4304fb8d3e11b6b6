"""The coordinator account, byte for byte.

The numpy dtypes here and the ``repr(C)`` structs of ``programs/coordinator/src/state`` are the same layout;
a conformance test compares every byte after every instruction. All integers are little-endian, padding is
explicit, reserved bytes are zero. ``version`` 2; psyche_py.coordinator.migration reads what is older.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION = 2
MAX_CLIENTS = 256
MAX_WITNESSES = 32
NUM_STORED_ROUNDS = 4
MAX_DISPUTES = 7
MAX_TIE_BREAKER_SEATS = 11
"""Of a dispute: as many as judge it at most, and one more for each party."""
MAX_VERIFICATION_PERCENT = 50
"""Half of the clients train at least."""
MAX_VERIFIED_TILES = 1024
MAX_TIE_BREAKERS = 9
MAX_U8, MAX_U16, MAX_U32, MAX_U64 = 2**8 - 1, 2**16 - 1, 2**32 - 1, 2**64 - 1
MAX_RUN_ID_BYTES = 32
MAX_CLIENT_VERSION_BYTES = 96
BITMAP_WORDS = MAX_CLIENTS // 64
BLOOM_WORDS = 16
ADDRESS_HINT_BYTES = 64
AUTHORIZATION_PREFIX_BYTES = 24
"""Kept of the address of the authorization that a client joined with."""
MODEL_PREFIX_BYTES = 16
"""Kept of the digest of a model to fall back on: nobody makes another model with the same 128 bits."""
DEFAULT_MAX_WITNESS_CONTRADICTIONS = 16
DEFAULT_VERIFIED_TILES = 64
DEFAULT_MIN_ALIGNMENT = 0
"""No limit: where a loss flattens old momentum decides honest messages, and tiles show cheats without it."""
DEFAULT_MAX_RESIDUAL = 60_000
DEFAULT_MAX_VIOLATION = 20_000
DEFAULT_MIN_JACCARD = 900_000
"""Limits of a check in millionths, measured for fleets in which some compute in bfloat16."""
MAX_ADDRESS_KIND = 3
"""Address hint kinds: 0 none, 1 ip4, 2 ip6, 3 dns."""


class RunState(IntEnum):
    """Psyche's run states, in its order."""

    Uninitialized = 0
    WaitingForMembers = 1
    Warmup = 2
    RoundTrain = 3
    RoundWitness = 4
    Cooldown = 5
    Finished = 6
    Paused = 7


HALTED = (RunState.Uninitialized, RunState.Finished, RunState.Paused)
ROUND_STATES = (RunState.RoundTrain, RunState.RoundWitness)
ACTIVE = (*ROUND_STATES, RunState.Cooldown)
"""From the first round of an epoch to its end."""
RUNNING_EPOCH = (RunState.Warmup, *ACTIVE)


class ClientState(IntEnum):
    """A client's standing in the running epoch."""

    Healthy = 0
    Dropped = 1
    Withdrawn = 2
    Ejected = 3


class DisputeState(IntEnum):
    """How an accusation stands."""

    Free = 0
    Open = 1
    Guilty = 2
    NotGuilty = 3
    Undecided = 4


GUILTY_BIT = 1 << 15
"""Set in a stored vote that says guilty; the rest is the voter's epoch client index."""


class Committee(IntEnum):
    """What a client does in a round."""

    TieBreaker = 0
    Verifier = 1
    Trainer = 2


class Architecture(IntEnum):
    """Model family."""

    HfLlama = 0
    HfDeepseek = 1
    HfAuto = 2
    Torchtitan = 3


class DataType(IntEnum):
    """What the data is for."""

    Pretraining = 0
    Finetuning = 1


class CheckpointKind(IntEnum):
    """Where an epoch's clients take the model from."""

    Ephemeral = 0
    Dummy = 1
    Hub = 2
    P2P = 3
    Gcs = 4
    P2PGcs = 5
    Local = 6
    Config = 7


SHARED_KINDS = (CheckpointKind.P2P, CheckpointKind.P2PGcs)
"""Checkpoint kinds that only the program sets, after an epoch: the clients hold the model."""


class DataLocationKind(IntEnum):
    """Where clients read training data."""

    Dummy = 0
    Server = 1
    Local = 2
    Http = 3
    WeightedHttp = 4
    Preprocessed = 5


class LrScheduleKind(IntEnum):
    """Learning rate schedule."""

    Constant = 0
    Linear = 1
    Cosine = 2
    WarmupStableDecay = 3


class OptimizerKind(IntEnum):
    """Optimizer of the run; only Distro can be trained over the mesh."""

    Dummy = 0
    AdamW = 1
    Distro = 2


MODEL_ENUMS: dict[str, type[IntEnum]] = {
    "architecture": Architecture,
    "data_type": DataType,
    "checkpoint_kind": CheckpointKind,
    "checkpoint_origin": CheckpointKind,
    "data_location_kind": DataLocationKind,
    "lr_schedule_kind": LrScheduleKind,
    "optimizer_kind": OptimizerKind,
}
"""Enumerated fields of MODEL."""

WITNESS = np.dtype(
    [
        ("index", "<u2"),
        ("_pad0", "<u2"),
        ("_pad1", "<u4"),
        ("participants", "<u8", BITMAP_WORDS),
        ("broadcast_bloom", "<u8", BLOOM_WORDS),
        ("broadcast_merkle", "u1", 32),
        ("state_digest", "u1", 32),
    ]
)
ROUND = np.dtype(
    [
        ("data_index", "<u8"),
        ("random_seed", "<u8"),
        ("height", "<u4"),
        ("step", "<u4"),
        ("batch_size", "<u4"),
        ("clients_len", "<u2"),
        ("num_witnesses", "<u2"),
        ("tie_breaker_tasks", "<u2"),
        ("apply_only", "u1"),
        ("_pad0", "u1"),
        ("_pad1", "<u4"),
        ("healthy", "<u8", BITMAP_WORDS),
        ("elected", "<u8", BITMAP_WORDS),
        ("witnesses", WITNESS, MAX_WITNESSES),
    ]
)
EPOCH_CLIENT = np.dtype(
    [
        ("entry", "<u2"),
        ("state", "u1"),
        ("refusals", "u1"),
        ("exited_height", "<u4"),
        ("attested_rounds", "<u4"),
        ("contradictions", "<u2"),
        ("silent_rounds", "<u2"),
    ]
)
EPOCH_STATE = np.dtype(
    [
        ("rounds_head", "<u4"),
        ("num_clients", "<u2"),
        ("first_round", "u1"),
        ("cold_start_epoch", "u1"),
        ("start_step", "<u4"),
        ("last_step", "<u4"),
        ("start_timestamp", "<u8"),
        ("warmup_ready", "<u8", BITMAP_WORDS),
        ("model_digest", "u1", 32),
        ("older_digests", "u1", (2, MODEL_PREFIX_BYTES)),
        ("clients", EPOCH_CLIENT, MAX_CLIENTS),
        ("rounds", ROUND, NUM_STORED_ROUNDS),
    ]
)
CONFIG = np.dtype(
    [
        ("warmup_time", "<u8"),
        ("cooldown_time", "<u8"),
        ("max_round_train_time", "<u8"),
        ("round_witness_time", "<u8"),
        ("global_batch_size_warmup_tokens", "<u8"),
        ("epoch_time", "<u8"),
        ("total_steps", "<u4"),
        ("init_min_clients", "<u2"),
        ("min_clients", "<u2"),
        ("witness_nodes", "<u2"),
        ("global_batch_size_start", "<u2"),
        ("global_batch_size_end", "<u2"),
        ("verification_percent", "u1"),
        ("waiting_for_members_extra_time", "u1"),
        ("max_witness_contradictions", "<u2"),
        ("verified_tiles", "<u2"),
        ("min_alignment", "<u4"),
        ("max_residual", "<u4"),
        ("max_violation", "<u4"),
        ("min_jaccard", "<u4"),
        ("num_tie_breakers", "u1"),
        ("max_refusals", "u1"),
        ("_pad0", "<u2"),
        ("required_bond", "<u8"),
        ("reserved", "u1", 32),
    ]
)
MODEL = np.dtype(
    [
        ("architecture", "u1"),
        ("data_type", "u1"),
        ("checkpoint_kind", "u1"),
        ("checkpoint_origin", "u1"),
        ("data_location_kind", "u1"),
        ("lr_schedule_kind", "u1"),
        ("optimizer_kind", "u1"),
        ("quantize_1bit", "u1"),
        ("max_seq_len", "<u4"),
        ("cold_start_warmup_steps", "<u4"),
        ("init_seed", "<u8"),
        ("checkpoint_repo", "u1", 128),
        ("checkpoint_revision", "u1", 64),
        ("data_path", "u1", 128),
        ("lr_base", "<f8"),
        ("lr_warmup_init", "<f8"),
        ("lr_final", "<f8"),
        ("lr_linear_final", "<f8"),
        ("lr_warmup_steps", "<u4"),
        ("lr_total_steps", "<u4"),
        ("lr_stable_steps", "<u4"),
        ("lr_cosine_decay_steps", "<u4"),
        ("lr_linear_decay_steps", "<u4"),
        ("clip_grad_norm", "<f4"),
        ("weight_decay", "<f4"),
        ("compression_decay", "<f4"),
        ("adam_beta1", "<f4"),
        ("adam_beta2", "<f4"),
        ("adam_eps", "<f4"),
        ("compression_topk", "<u2"),
        ("compression_chunk", "<u2"),
        ("data_token_size", "u1"),
        ("step_levels", "u1"),
        ("lr_outside_momentum", "u1"),
        ("local_steps", "u1"),
        ("vocab_lr_scale", "<f4"),
        ("reserved", "u1", 88),
    ]
)
PROGRESS = np.dtype([("step", "<u4"), ("epoch", "<u2"), ("_pad", "<u2"), ("epoch_start_data_index", "<u8")])
METADATA = np.dtype(
    [("name", "u1", 64), ("description", "u1", 280), ("num_parameters", "<u8"), ("vocab_size", "<u8")]
)
RATES = np.dtype([("earning_rate_total_shared", "<u8"), ("slashing_rate_per_client", "<u8")])
DISPUTE = np.dtype(
    [
        ("evidence_hash", "u1", 32),
        ("height", "<u4"),
        ("judge_height", "<u4"),
        ("accuser", "<u2"),
        ("trainer", "<u2"),
        ("state", "u1"),
        ("reason", "u1"),
        ("num_votes", "u1"),
        ("tie_breakers", "u1"),
        ("votes", "<u2", MAX_TIE_BREAKER_SEATS),
        ("_pad0", "<u2"),
    ]
)
CLIENT_ENTRY = np.dtype(
    [
        ("signer", "u1", 32),
        ("p2p_key", "u1", 32),
        ("address_hint", "u1", ADDRESS_HINT_BYTES),
        ("earned", "<u8"),
        ("slashed", "<u8"),
        ("active", "<u8"),
        ("last_epoch", "<u4"),
        ("reserved", "<u4"),
        ("claimed", "<u8"),
        ("authorization", "u1", AUTHORIZATION_PREFIX_BYTES),
    ]
)
COORDINATOR_ACCOUNT = np.dtype(
    [
        ("discriminator", "u1", 8),
        ("version", "<u8"),
        ("nonce", "<u8"),
        ("run_id", "u1", MAX_RUN_ID_BYTES),
        ("client_version", "u1", MAX_CLIENT_VERSION_BYTES),
        ("metadata", METADATA),
        ("run_state", "u1"),
        ("pending_pause", "u1"),
        ("_pad", "u1", 6),
        ("run_state_start_unix_timestamp", "<u8"),
        ("config", CONFIG),
        ("model", MODEL),
        ("progress", PROGRESS),
        ("next_active", "<u8"),
        ("current_rates", RATES),
        ("future_rates", RATES),
        ("num_entries", "<u2"),
        ("_pad2", "u1", 6),
        ("disputes", DISPUTE, MAX_DISPUTES),
        ("model_step", "<u4"),
        ("older_step", "<u4"),
        ("epoch_state", EPOCH_STATE),
        ("entries", CLIENT_ENTRY, MAX_CLIENTS),
    ]
)
ACCOUNT_SIZE = COORDINATOR_ACCOUNT.itemsize


def compute_account_discriminator(name: str) -> bytes:
    """First 8 bytes of sha256("account:<Name>"), as Anchor does."""
    return hashlib.sha256(f"account:{name}".encode()).digest()[:8]


DISCRIMINATOR = compute_account_discriminator("CoordinatorAccount")


Record = Any
"""One numpy structured record (np.void): fields are read by name, and written when it is a copy."""


def make_record() -> Record:
    """A writable account of zeros with discriminator and version in place (run state Uninitialized)."""
    record = np.zeros(1, dtype=COORDINATOR_ACCOUNT)[0]
    set_bytes(record, "discriminator", DISCRIMINATOR)
    record["version"] = VERSION
    return record


def copy_record(record: Record) -> Record:
    """A writable copy that shares no memory with ``record``."""
    return np.frombuffer(bytearray(record.tobytes()), dtype=record.dtype)[0]


def set_bytes(record: Record, field: str, value: bytes) -> None:
    """Write a whole u1[n] field; ``value`` must have its exact length."""
    record[field] = np.frombuffer(value, dtype=np.uint8)


def get_bitmap(words: npt.NDArray[np.uint64]) -> int:
    """u8[n] as one integer: bit i of the integer is bit i % 64 of word i // 64."""
    return int.from_bytes(words.tobytes(), "little")


def set_bitmap(record: Record, field: str, bits: int) -> None:
    """Inverse of :func:`get_bitmap`, into ``record[field]``."""
    record[field] = np.frombuffer(bits.to_bytes(record[field].nbytes, "little"), dtype="<u8")


def get_bit_indices(bits: int) -> tuple[int, ...]:
    """Positions of the set bits, ascending."""
    indices = []
    while bits:
        lowest = bits & -bits
        indices.append(lowest.bit_length() - 1)
        bits ^= lowest
    return tuple(indices)


def get_text(field: npt.NDArray[np.uint8]) -> str:
    """A zero-padded UTF-8 field as text; bytes that are no UTF-8 are replaced, since others wrote them."""
    return field.tobytes().split(b"\0", 1)[0].decode("utf-8", errors="replace")


def pad_text(text: str, size: int) -> bytes:
    """UTF-8 bytes padded with zeros to ``size``. Raises ValueError when they do not fit."""
    raw = text.encode()
    if len(raw) > size:
        raise ValueError(f"{text!r} takes {len(raw)} bytes, {size} is the limit")
    return raw.ljust(size, b"\0")
