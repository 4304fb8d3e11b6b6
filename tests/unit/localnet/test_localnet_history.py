"""What a local validator remembers ends somewhere, by number and by size."""

from __future__ import annotations

import pytest
from kept_memory import measure_kept_bytes
from localnet_bank import Node, move
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_py.chain.localnet import history as history_module
from psyche_py.chain.localnet import server
from psyche_py.chain.localnet.history import Block, History, LandedTransaction

NUM_KEYS = 8
SHARED = tuple(Pubkey(bytes([number]) * 32) for number in range(NUM_KEYS - 1))


def land(history: History, number: int, num_bytes: int = 100) -> Signature:
    """Remember a transaction, of a payer that nobody else has."""
    signature = Signature(number.to_bytes(64, "little"))
    keys = (*SHARED, Pubkey(number.to_bytes(32, "big")))
    meta = number.to_bytes(num_bytes, "little")
    history.add_transaction(LandedTransaction(signature, number, number, None, None, keys, meta))
    history.add_block(Block(number, number, Hash(number.to_bytes(32, "little"))))
    return signature


def test_it_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "NUM_TRANSACTIONS_KEPT", 50)
    monkeypatch.setattr(history_module, "NUM_BLOCKS_KEPT", 20)
    history = History()
    sizes = []
    for number in range(1, 3001):
        last = land(history, number)
        if number % 500 == 0:
            sizes.append(measure_kept_bytes(history))
    assert max(sizes[1:]) <= 1.05 * sizes[0], sizes
    assert len(list(history.iter_transactions())) == 50
    assert len(list(history.iter_for_address(SHARED[0]))) == 50
    assert history.get_transaction(last) is not None
    assert not list(history.iter_for_address(Pubkey((1).to_bytes(32, "big"))))


def test_large_transactions_leave_room_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_META_BYTES", 10_000)
    history = History()
    for number in range(1, 101):
        land(history, number, 1000)
    assert [landed.slot for landed in history.iter_transactions()] == list(range(91, 101))
    land(history, 101, 10_000)
    assert [landed.slot for landed in history.iter_transactions()] == [101]
    land(history, 102, 10)
    assert [landed.slot for landed in history.iter_transactions()] == [102]


def test_a_node_under_traffic_stops_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "NUM_TRANSACTIONS_KEPT", 40)
    monkeypatch.setattr(history_module, "NUM_BLOCKS_KEPT", 20)
    monkeypatch.setattr(server, "ENGINE_HISTORY", 40)
    node = Node()
    payer, target = node.fund(), Keypair().pubkey()
    sizes = []
    for number in range(1, 2001):
        node.send([move(payer, target, 10**6 + number)], payer)
        node.advance()
        if number % 400 == 0:
            sizes.append(measure_kept_bytes(node.bank))
    assert max(sizes[2:]) <= 1.02 * sizes[1], sizes
