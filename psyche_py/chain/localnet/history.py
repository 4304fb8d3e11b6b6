"""What has happened: blocks and landed transactions, as far back as they are remembered."""

from __future__ import annotations

import base64
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

NUM_BLOCKS_KEPT = 1024
NUM_TRANSACTIONS_KEPT = 20_000
MAX_META_BYTES = 64 << 20
"""What the kept transactions may take together; log lines make some of them a hundred times as large."""


@dataclass(frozen=True, slots=True)
class LandedTransaction:
    """A transaction that landed. ``raw_meta``: the JSON of ``encode_transaction.to_meta``."""

    signature: Signature
    slot: int
    unix_timestamp: int
    err: Any
    memo: str | None
    account_keys: tuple[Pubkey, ...]
    raw_meta: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block."""

    slot: int
    unix_timestamp: int
    blockhash: Hash


def read_landed(raw_meta: bytes) -> LandedTransaction:
    """A history entry from the JSON that the ledger keeps of it."""
    stored = json.loads(raw_meta)
    transaction = VersionedTransaction.from_bytes(base64.b64decode(stored["transaction"]))
    loaded = stored["meta"]["loadedAddresses"]
    keys = list(transaction.message.account_keys)
    keys += [Pubkey.from_string(text) for text in loaded["writable"] + loaded["readonly"]]
    return LandedTransaction(
        signature=Signature.from_string(stored["signature"]),
        slot=stored["slot"],
        unix_timestamp=stored["blockTime"],
        err=stored["meta"]["err"],
        memo=stored["memo"],
        account_keys=tuple(keys),
        raw_meta=raw_meta,
    )


class History:
    """Bounded: the oldest entries are forgotten."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, Block] = OrderedDict()
        self._landed: OrderedDict[Signature, LandedTransaction] = OrderedDict()
        self._by_address: dict[Pubkey, OrderedDict[Signature, None]] = {}
        self._num_bytes = 0

    def add_block(self, block: Block) -> None:
        """Remember a block, newer than all others."""
        self.blocks[block.slot] = block
        while len(self.blocks) > NUM_BLOCKS_KEPT:
            self.blocks.popitem(last=False)

    def add_transaction(self, landed: LandedTransaction) -> None:
        """Remember a transaction, newer than all others."""
        self._landed[landed.signature] = landed
        for key in landed.account_keys:
            self._by_address.setdefault(key, OrderedDict())[landed.signature] = None
        self._num_bytes += len(landed.raw_meta)
        while len(self._landed) > NUM_TRANSACTIONS_KEPT or self._num_bytes > MAX_META_BYTES:
            self._forget(self._landed.popitem(last=False)[1])

    def _forget(self, oldest: LandedTransaction) -> None:
        self._num_bytes -= len(oldest.raw_meta)
        for key in oldest.account_keys:
            index = self._by_address.get(key)
            if index is not None:
                index.pop(oldest.signature, None)
                if not index:
                    del self._by_address[key]

    def get_transaction(self, signature: Signature) -> LandedTransaction | None:
        """A landed transaction, while it is remembered."""
        return self._landed.get(signature)

    def iter_transactions(self) -> Iterator[LandedTransaction]:
        """All of them, oldest first."""
        return iter(self._landed.values())

    def iter_for_address(self, address: Pubkey) -> Iterator[LandedTransaction]:
        """Those that name ``address``, newest first."""
        for signature in reversed(self._by_address.get(address, OrderedDict())):
            yield self._landed[signature]

    def get_block_transactions(self, slot: int) -> list[LandedTransaction]:
        """The transactions of one slot, in order."""
        found = []
        for landed in reversed(self._landed.values()):
            if landed.slot < slot:
                break
            if landed.slot == slot:
                found.append(landed)
        return found[::-1]
