"""A ledger in one file: zstd over JSON, with a checksum. Written and read by ``litesvm_engine``."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import zstandard
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_py.chain.port import AccountInfo
from psyche_py.errors import StorageError

MAGIC = b"psyche-py ledger 1\n"
MAX_LEDGER_BYTES = 1 << 30
"""Refuse to expand a file to more than this."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a chain must remember to go on."""

    slot: int
    unix_timestamp: int
    num_transactions: int
    num_airdrops: int
    genesis_hash: Hash
    blockhashes: list[tuple[Hash, int]]
    signatures: dict[Signature, tuple[int, Any]]
    accounts: list[AccountInfo]


def pack(snapshot: Snapshot) -> bytes:
    """MAGIC, sha256 of the rest, then the compressed JSON."""
    content = {
        "slot": snapshot.slot,
        "unix_timestamp": snapshot.unix_timestamp,
        "num_transactions": snapshot.num_transactions,
        "num_airdrops": snapshot.num_airdrops,
        "genesis_hash": str(snapshot.genesis_hash),
        "blockhashes": [[str(blockhash), slot] for blockhash, slot in snapshot.blockhashes],
        "signatures": {str(signature): status for signature, status in snapshot.signatures.items()},
        "accounts": [
            [str(a.pubkey), a.lamports, str(a.owner), base64.b64encode(a.data).decode()]
            for a in snapshot.accounts
        ],
    }
    body = zstandard.ZstdCompressor(level=3).compress(json.dumps(content).encode())
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes) -> Snapshot:
    """Inverse of :func:`pack`. Raises StorageError on anything else."""
    digest, body = data[len(MAGIC) : len(MAGIC) + 32], data[len(MAGIC) + 32 :]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise StorageError(
            "The ledger file is damaged or of another version.", "Start the local network with --reset."
        )
    raw = zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_LEDGER_BYTES)
    content = json.loads(raw)
    slot = int(content["slot"])
    return Snapshot(
        slot=slot,
        unix_timestamp=int(content["unix_timestamp"]),
        num_transactions=int(content["num_transactions"]),
        num_airdrops=int(content["num_airdrops"]),
        genesis_hash=Hash.from_string(content["genesis_hash"]),
        blockhashes=[(Hash.from_string(text), int(made)) for text, made in content["blockhashes"]],
        signatures={
            Signature.from_string(text): (int(landed), err)
            for text, (landed, err) in content["signatures"].items()
        },
        accounts=[
            AccountInfo(
                Pubkey.from_string(pubkey),
                int(lamports),
                Pubkey.from_string(owner),
                base64.b64decode(encoded),
                slot,
            )
            for pubkey, lamports, owner, encoded in content["accounts"]
        ],
    )
