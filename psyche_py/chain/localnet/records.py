"""What the ledger remembers, as bytes.

A record is one kind byte and a payload:

    S  slot u64, unix_timestamp i64, blockhash[32]      block ``slot`` is done and has this hash
    A  account                                          an account as it is now
    T  meta_length u32, meta, then accounts             a landed transaction and what it wrote

    account: pubkey[32], lamports u64, owner[32], executable u8, length u32, data

``meta`` is the JSON that getTransaction is answered from (``encode_transaction``). A payload over 512 bytes
is compressed with zstd, and its kind is in lower case. Zero lamports mean that the account is gone. All
integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import zstandard
from solders.pubkey import Pubkey

from psyche_py.errors import StorageError

MAX_RECORD_BYTES = 64 << 20
"""Expanded: a transaction can write some ten-megabyte accounts."""

COMPRESS_ABOVE_BYTES = 512

_ACCOUNT_HEAD = struct.Struct("<32sQ32sBI")
_SLOT = struct.Struct("<Qq32s")
_LENGTH = struct.Struct("<I")
_compressor = zstandard.ZstdCompressor(level=1)
_decompressor = zstandard.ZstdDecompressor()


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """Block ``slot`` is done."""

    slot: int
    unix_timestamp: int
    blockhash: bytes


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account's whole content."""

    pubkey: Pubkey
    lamports: int
    owner: Pubkey
    executable: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A landed transaction: its JSON, and the accounts it changed."""

    meta: bytes
    accounts: tuple[AccountRecord, ...]


Record = SlotRecord | AccountRecord | TransactionRecord


def pack_record(record: Record) -> bytes:
    """Bytes of a record."""
    if isinstance(record, SlotRecord):
        return b"S" + _SLOT.pack(record.slot, record.unix_timestamp, record.blockhash)
    if isinstance(record, AccountRecord):
        return _compress(b"A", b"".join(_pack_accounts([record])))
    parts = [_LENGTH.pack(len(record.meta)), record.meta, *_pack_accounts(record.accounts)]
    return _compress(b"T", b"".join(parts))


def _compress(kind: bytes, payload: bytes) -> bytes:
    if len(payload) <= COMPRESS_ABOVE_BYTES:
        return kind + payload
    return kind.lower() + _compressor.compress(payload)


def _pack_accounts(accounts: Iterable[AccountRecord]) -> list[bytes]:
    parts = []
    for a in accounts:
        parts += [
            _ACCOUNT_HEAD.pack(bytes(a.pubkey), a.lamports, bytes(a.owner), a.executable, len(a.data)),
            a.data,
        ]
    return parts


def unpack_record(raw: bytes) -> Record:
    """Inverse of :func:`pack_record`. Raises StorageError on anything else."""
    try:
        return _unpack(raw)
    except (struct.error, zstandard.ZstdError, ValueError) as error:
        raise StorageError(
            f"The ledger holds a record that cannot be read ({error}).", "Start with --reset."
        ) from error


def _unpack(raw: bytes) -> Record:
    kind, payload = raw[:1], raw[1:]
    if kind.islower():
        payload = _decompressor.decompress(payload, max_output_size=MAX_RECORD_BYTES)
    if kind == b"S":
        return SlotRecord(*_SLOT.unpack(payload))
    if kind in b"Aa":
        (account,) = _unpack_accounts(payload)
        return account
    if kind in b"Tt":
        (length,) = _LENGTH.unpack_from(payload)
        end = _LENGTH.size + length
        return TransactionRecord(payload[_LENGTH.size : end], tuple(_unpack_accounts(payload[end:])))
    raise ValueError(f"unknown kind {kind!r}")


def _unpack_accounts(payload: bytes) -> Sequence[AccountRecord]:
    accounts, position = [], 0
    while position < len(payload):
        pubkey, lamports, owner, executable, length = _ACCOUNT_HEAD.unpack_from(payload, position)
        position += _ACCOUNT_HEAD.size
        data = payload[position : position + length]
        if len(data) != length:
            raise ValueError("account data is cut off")
        position += length
        accounts.append(AccountRecord(Pubkey(pubkey), lamports, Pubkey(owner), bool(executable), data))
    return accounts
