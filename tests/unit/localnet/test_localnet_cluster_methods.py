"""Slots, blocks and blockhashes over JSON-RPC."""

import pytest
from localnet_bank import START, Node, move
from solders.hash import Hash
from solders.keypair import Keypair


@pytest.fixture
def node() -> Node:
    return Node()


def test_commitment_levels_lag(node: Node) -> None:
    node.advance(5)
    processed, confirmed, finalized = (
        node.call("getSlot", {"commitment": level}) for level in ("processed", "confirmed", "finalized")
    )
    assert (processed, confirmed, finalized) == (node.bank.slot, processed - 1, processed - 2)
    assert node.call("getSlot") == node.call("getBlockHeight") == finalized
    assert node.call("getSlot", {"commitment": "recent"}) == processed


def test_unknown_commitment_is_refused(node: Node) -> None:
    assert node.fail("getSlot", {"commitment": "sure"})["code"] == -32602


def test_min_context_slot(node: Node) -> None:
    error = node.fail("getBalance", str(Keypair().pubkey()), {"minContextSlot": 10**6})
    assert error["code"] == -32016
    assert error["data"] == {"contextSlot": node.bank.slot}


def test_epoch_info(node: Node) -> None:
    info = node.call("getEpochInfo", {"commitment": "processed"})
    assert info["absoluteSlot"] == node.bank.slot
    assert info["slotsInEpoch"] == node.call("getEpochSchedule")["slotsPerEpoch"] == 432_000
    assert set(info) == {
        "absoluteSlot", "blockHeight", "epoch", "slotIndex", "slotsInEpoch", "transactionCount",
    }  # fmt: skip


def test_version_and_identity(node: Node) -> None:
    assert set(node.call("getVersion")) == {"feature-set", "solana-core"}
    assert node.call("getIdentity")["identity"] == node.call("getSlotLeader")
    assert node.call("getSlotLeaders", 5, 3) == [node.call("getSlotLeader")] * 3


def test_genesis_hash_differs_from_chain_to_chain(node: Node) -> None:
    assert node.call("getGenesisHash") != Node().call("getGenesisHash")


def test_blockhash_lives_150_slots(node: Node) -> None:
    latest = node.call("getLatestBlockhash")["value"]
    assert set(latest) == {"blockhash", "lastValidBlockHeight"}
    while node.bank.slot < latest["lastValidBlockHeight"]:
        node.advance()
    assert node.call("isBlockhashValid", latest["blockhash"])["value"] is True
    node.advance()
    assert node.call("isBlockhashValid", latest["blockhash"])["value"] is False
    assert node.call("isBlockhashValid", str(Hash.new_unique()))["value"] is False


def test_block_time(node: Node) -> None:
    node.advance(3)
    assert node.call("getBlockTime", 2) >= START
    assert node.fail("getBlockTime", 10**6)["code"] == -32004


def test_block_with_transactions(node: Node) -> None:
    payer = node.fund()
    signature = node.send([move(payer, Keypair().pubkey(), 10**6)], payer)
    slot = node.bank.slot
    node.advance(2)
    assert node.call("getBlock", slot, {"transactionDetails": "signatures"})["signatures"][1] == signature
    block = node.call("getBlock", slot, {"maxSupportedTransactionVersion": 0})
    assert [t["transaction"]["signatures"][0] for t in block["transactions"]][1] == signature
    assert block["parentSlot"] == slot - 1
    assert block["previousBlockhash"] == node.call("getBlock", slot - 1)["blockhash"]
    assert slot in node.call("getBlocks", 0)


def test_prioritization_fees(node: Node) -> None:
    node.advance(3)
    fees = node.call("getRecentPrioritizationFees", [str(Keypair().pubkey())])
    assert fees[-1] == {"slot": node.bank.slot - 1, "prioritizationFee": 0}
    assert node.fail("getRecentPrioritizationFees", ["x"])["code"] == -32602
