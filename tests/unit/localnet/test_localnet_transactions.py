"""Sending, simulating and looking up transactions over JSON-RPC."""

import base64
import json
from typing import Any

import base58
import pytest
from localnet_bank import Node, encode, move
from solders.hash import Hash
from solders.instruction import AccountMeta, CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0, to_bytes_versioned
from solders.pubkey import Pubkey
from solders.rpc.responses import (
    GetSignaturesForAddressResp,
    GetSignatureStatusesResp,
    GetTransactionResp,
    SendTransactionPreflightFailureMessage,
    SimulateTransactionResp,
)
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import (
    InstructionErrorFieldless,
    TransactionErrorFieldless,
)

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.localnet.err_text import INSTRUCTION_TEXT, TRANSACTION_TEXT, describe_err

MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")


@pytest.fixture
def node() -> Node:
    return Node()


def test_send_lands_once(node: Node) -> None:
    payer, to = node.fund(), Keypair().pubkey()
    transaction = node.sign([move(payer, to, 10**6)], payer)
    signature = node.call("sendTransaction", encode(transaction), {"encoding": "base64"})
    assert signature == str(transaction.signatures[0])
    assert node.call("getBalance", str(to))["value"] == 10**6
    error = node.fail("sendTransaction", encode(transaction), {"encoding": "base64"})
    assert (error["code"], error["data"]["err"]) == (-32002, "AlreadyProcessed")
    assert (
        node.call("sendTransaction", encode(transaction), {"encoding": "base64", "skipPreflight": True})
        == signature
    )
    assert node.call("getBalance", str(to))["value"] == 10**6


def test_base58_is_the_default(node: Node) -> None:
    payer = node.fund()
    transaction = node.sign([move(payer, Keypair().pubkey(), 10**6)], payer)
    assert node.call("sendTransaction", base58.b58encode(bytes(transaction)).decode())


def test_preflight_failure_has_logs_and_err(node: Node) -> None:
    payer, to = node.fund(), Keypair().pubkey()
    answer = node.request(
        "sendTransaction", encode(node.sign([move(payer, to, 10**18)], payer)), {"encoding": "base64"}
    )
    error = answer["error"]
    assert error["code"] == -32002
    assert error["message"] == (
        "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
    )
    assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert any("insufficient lamports" in line for line in error["data"]["logs"])
    assert error["data"]["unitsConsumed"] == 150
    assert (
        SendTransactionPreflightFailureMessage.from_json(json.dumps(error)).data.logs == error["data"]["logs"]
    )
    assert node.call("getSignatureStatuses", [str(Signature.new_unique())])["value"] == [None]


def test_our_programs_are_there_and_name_their_errors(node: Node) -> None:
    payer = node.fund()
    call = Instruction(get_program_id("coordinator"), bytes(8), [AccountMeta(payer.pubkey(), True, True)])
    error = node.fail("sendTransaction", encode(node.sign([call], payer)), {"encoding": "base64"})
    assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 6100}]}
    assert error["message"].endswith("custom program error: 0x17d4")


def test_skip_preflight_lands_the_failure(node: Node) -> None:
    payer = node.fund(10**9)
    signature = node.send([move(payer, Keypair().pubkey(), 10**18)], payer, skipPreflight=True)
    (status,) = node.call("getSignatureStatuses", [signature])["value"]
    assert status["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert status["status"] == {"Err": status["err"]}
    assert node.call("getBalance", str(payer.pubkey()))["value"] == 10**9 - 5000


def test_unknown_blockhash(node: Node) -> None:
    payer = node.fund()
    message = Message.new_with_blockhash([move(payer, MEMO, 1)], payer.pubkey(), Hash.new_unique())
    text = encode(VersionedTransaction(message, [payer]))
    error = node.fail("sendTransaction", text, {"encoding": "base64"})
    assert error["message"] == "Transaction simulation failed: Blockhash not found"
    assert error["data"]["err"] == "BlockhashNotFound"
    # turned away without preflight, too: no status, no fee
    signature = node.call("sendTransaction", text, {"encoding": "base64", "skipPreflight": True})
    assert node.call("getSignatureStatuses", [signature])["value"] == [None]


def test_payer_without_money(node: Node) -> None:
    payer = Keypair()
    error = node.fail(
        "sendTransaction", encode(node.sign([move(payer, MEMO, 1)], payer)), {"encoding": "base64"}
    )
    assert error["data"]["err"] == "AccountNotFound"


def test_wrong_signature(node: Node) -> None:
    payer = node.fund()
    signed = node.sign([move(payer, Keypair().pubkey(), 10**6)], payer)
    forged = VersionedTransaction.populate(signed.message, [Signature.new_unique()])
    for skip in (False, True):
        error = node.fail("sendTransaction", encode(forged), {"encoding": "base64", "skipPreflight": skip})
        assert error == {"code": -32003, "message": "Transaction signature verification failure"}


def _make_hostile_messages(payer: Pubkey, blockhash: Hash) -> list[Message]:
    other = Pubkey.new_unique()
    instructions = [
        CompiledInstruction(9, b"", bytes([0])),  # no such program
        CompiledInstruction(1, b"", bytes([200])),  # no such account
        CompiledInstruction(0, b"", b""),  # the payer as program
    ]
    return [
        Message.new_with_compiled_instructions(1, 0, 1, [payer, other], blockhash, [instruction])
        for instruction in instructions
    ]


def test_malformed_transactions(node: Node) -> None:
    payer = node.fund()
    good = node.sign([move(payer, MEMO, 1)], payer)
    message = bytes(good.message)
    raws = [
        b"",
        b"\x00",
        b"\xff" * 100,
        bytes(good)[:-1],
        b"\x00" + message,  # no signature at all
        b"\x02" + bytes(128) + message,  # one too many
        b"\x01" + bytes(64) + bytes([5, 0, 0]) + message[3:],  # five signers, one signature
        b"\x01" + bytes(64) + bytes([1, 1, 0]) + message[3:],  # the payer is read-only
    ]
    hostile = _make_hostile_messages(payer.pubkey(), good.message.recent_blockhash)
    raws += [bytes(VersionedTransaction(message, [payer])) for message in hostile]
    for raw in raws:
        text = base64.b64encode(raw).decode()
        for method in ("sendTransaction", "simulateTransaction"):
            assert node.fail(method, text, {"encoding": "base64"})["code"] == -32602, raw[:80]


def test_transaction_text_errors(node: Node) -> None:
    big = node.fail("sendTransaction", "A" * 1700, {"encoding": "base64"})
    assert big["code"] == -32602
    assert "too large: 1700 bytes (max: encoded/raw 1644/1232)" in big["message"]
    assert node.fail("sendTransaction", "A" * 1700)["code"] == -32602
    assert "invalid base64 encoding" in node.fail("sendTransaction", "?", {"encoding": "base64"})["message"]
    assert "invalid base58 encoding" in node.fail("sendTransaction", "0OIl")["message"]
    assert node.fail("sendTransaction", "A", {"encoding": "hex"})["code"] == -32602
    assert node.fail("sendTransaction", 5)["code"] == -32602
    assert node.fail("sendTransaction")["code"] == -32602


def test_status_settles_slot_by_slot(node: Node) -> None:
    payer = node.fund()
    signature = node.send([move(payer, Keypair().pubkey(), 10**6)], payer)
    seen = []
    for _ in range(3):
        answer = node.request("getSignatureStatuses", [signature, str(Signature.new_unique())])
        status, unknown = answer["result"]["value"]
        assert unknown is None
        assert isinstance(GetSignatureStatusesResp.from_json(json.dumps(answer)), GetSignatureStatusesResp)
        seen.append((status["confirmationStatus"], status["confirmations"]))
        node.advance()
    assert seen == [("processed", 0), ("confirmed", 1), ("finalized", None)]
    assert node.fail("getSignatureStatuses", [signature] * 257)["code"] == -32602


def test_get_transaction_waits_for_commitment(node: Node) -> None:
    payer = node.fund()
    signature = node.send([move(payer, Keypair().pubkey(), 10**6)], payer)
    assert node.call("getTransaction", signature, {"commitment": "confirmed"}) is None
    node.advance()
    assert node.call("getTransaction", signature, {"commitment": "confirmed"}) is not None
    assert node.call("getTransaction", signature) is None
    node.advance()
    assert node.call("getTransaction", signature) is not None
    assert node.fail("getTransaction", signature, {"commitment": "processed"})["code"] == -32602


@pytest.mark.parametrize("encoding", ["json", "jsonParsed", "base64", "base58"])
def test_get_transaction_encodings(node: Node, encoding: str) -> None:
    payer, to = node.fund(), Keypair().pubkey()
    transaction = node.sign([move(payer, to, 10**6)], payer)
    signature = node.call("sendTransaction", encode(transaction), {"encoding": "base64"})
    node.advance(2)
    answer = node.request(
        "getTransaction", signature, {"encoding": encoding, "maxSupportedTransactionVersion": 0}
    )
    found = answer["result"]
    assert found["version"] == "legacy"
    meta = found["meta"]
    assert (meta["fee"], meta["err"], meta["status"]) == (5000, None, {"Ok": None})
    assert meta["postBalances"][1] - meta["preBalances"][1] == 10**6
    assert meta["computeUnitsConsumed"] == 150
    assert meta["logMessages"][-1].endswith("success")
    body = found["transaction"]
    if encoding == "base64":
        assert body == [encode(transaction), "base64"]
    elif encoding == "base58":
        assert base58.b58decode(body[0]) == bytes(transaction)
    elif encoding == "json":
        assert body["message"]["accountKeys"][:2] == [str(payer.pubkey()), str(to)]
        assert body["message"]["header"]["numRequiredSignatures"] == 1
    else:
        flags = [(k["signer"], k["writable"]) for k in body["message"]["accountKeys"]]
        assert flags == [(True, True), (False, True), (False, False)]
        assert body["message"]["instructions"][0]["accounts"] == [str(payer.pubkey()), str(to)]
    parsed = GetTransactionResp.from_json(json.dumps(answer))
    assert isinstance(parsed, GetTransactionResp)
    assert parsed.value is not None


def test_versioned_transactions_need_a_client_that_knows_them(node: Node) -> None:
    payer = node.fund()
    blockhash = node.bank.engine.get_latest_blockhash().blockhash
    message = MessageV0.try_compile(payer.pubkey(), [move(payer, Keypair().pubkey(), 10**6)], [], blockhash)
    text = encode(VersionedTransaction(message, [payer]))
    signature = node.call("sendTransaction", text, {"encoding": "base64"})
    node.advance(2)
    assert node.fail("getTransaction", signature)["code"] == -32015
    found = node.call("getTransaction", signature, {"maxSupportedTransactionVersion": 0})
    assert found["version"] == 0
    assert found["transaction"]["message"]["addressTableLookups"] == []


def test_signatures_for_address(node: Node) -> None:
    payer, to = node.fund(), Keypair().pubkey()
    sent = []
    for number in range(5):
        memo = Instruction(MEMO, f"note {number}".encode(), [])
        sent.append(node.send([move(payer, to, 10**6), memo], payer))
        node.advance()
    node.advance(2)
    newest_first = sent[::-1]

    def find(**options: Any) -> list[str]:
        return [item["signature"] for item in node.call("getSignaturesForAddress", str(to), options)]

    assert find() == newest_first
    assert find(limit=2) == newest_first[:2]
    assert find(before=newest_first[1]) == newest_first[2:]
    assert find(until=newest_first[3]) == newest_first[:3]
    assert find(before=newest_first[0], until=newest_first[3]) == newest_first[1:3]
    assert find(before=str(Signature.new_unique())) == []
    answer = node.request("getSignaturesForAddress", str(to))
    assert answer["result"][0]["memo"] == "[6] note 4"
    assert answer["result"][0]["confirmationStatus"] == "finalized"
    assert isinstance(GetSignaturesForAddressResp.from_json(json.dumps(answer)), GetSignaturesForAddressResp)
    assert node.fail("getSignaturesForAddress", str(to), {"limit": 0})["code"] == -32602
    assert node.fail("getSignaturesForAddress", str(to), {"limit": 1001})["code"] == -32602


def test_simulate_changes_nothing(node: Node) -> None:
    payer, to = node.fund(), Keypair().pubkey()
    text = encode(node.sign([move(payer, to, 10**6)], payer))
    accounts = {"addresses": [str(to), str(MEMO)], "encoding": "base64"}
    answer = node.request("simulateTransaction", text, {"encoding": "base64", "accounts": accounts})
    value = answer["result"]["value"]
    assert (value["err"], value["unitsConsumed"]) == (None, 150)
    assert value["accounts"][0]["lamports"] == 10**6
    assert value["accounts"][1]["executable"] is True
    assert isinstance(SimulateTransactionResp.from_json(json.dumps(answer)), SimulateTransactionResp)
    assert node.call("getBalance", str(to))["value"] == 0


def test_simulate_options(node: Node) -> None:
    payer = node.fund()
    message = Message.new_with_blockhash([move(payer, MEMO, 1)], payer.pubkey(), Hash.new_unique())
    text = encode(VersionedTransaction.populate(message, [Signature.default()]))
    options = {"encoding": "base64"}
    assert node.call("simulateTransaction", text, options)["value"]["err"] == "BlockhashNotFound"
    value = node.call("simulateTransaction", text, options | {"replaceRecentBlockhash": True})["value"]
    assert value["replacementBlockhash"]["blockhash"] == node.call("getLatestBlockhash")["value"]["blockhash"]
    assert node.fail("simulateTransaction", text, options | {"sigVerify": True})["code"] == -32003
    both = options | {"sigVerify": True, "replaceRecentBlockhash": True}
    assert node.fail("simulateTransaction", text, both)["code"] == -32602
    for accounts in (5, {}, {"addresses": ["x"]}, {"addresses": [str(MEMO)] * 9}):
        assert node.fail("simulateTransaction", text, options | {"accounts": accounts})["code"] == -32602


def test_fee_for_message(node: Node) -> None:
    payer, second = node.fund(), Keypair()
    signed = node.sign([move(payer, MEMO, 1), move(second, MEMO, 1)], payer, second)
    text = base64.b64encode(to_bytes_versioned(signed.message)).decode()
    assert node.call("getFeeForMessage", text)["value"] == 10_000
    node.advance(151)
    assert node.call("getFeeForMessage", text)["value"] is None
    assert node.fail("getFeeForMessage", "AAAA")["code"] == -32602


def test_equal_airdrops_are_two(node: Node) -> None:
    to = str(Keypair().pubkey())
    assert node.call("requestAirdrop", to, 10**9) != node.call("requestAirdrop", to, 10**9)
    assert node.call("getBalance", to)["value"] == 2 * 10**9
    assert node.fail("requestAirdrop", to, 2**63)["code"] == -32603
    assert node.fail("requestAirdrop", to, 0)["code"] == -32603
    assert node.fail("requestAirdrop", to, -1)["code"] == -32602


def test_every_error_has_words() -> None:
    # every error that solders knows, so that none is missing when solders moves
    for kind, table in (
        (InstructionErrorFieldless, INSTRUCTION_TEXT),
        (TransactionErrorFieldless, TRANSACTION_TEXT),
    ):
        for name in table:
            assert hasattr(kind, name), name
    missing = {name for name in dir(InstructionErrorFieldless) if name[0].isupper()} - set(INSTRUCTION_TEXT)
    assert missing == set()
    assert describe_err({"InstructionError": [2, "InvalidSeeds"]}) == (
        "Error processing Instruction 2: Provided seeds do not result in a valid address"
    )
    assert describe_err({"InsufficientFundsForRent": {"account_index": 1}}).startswith(
        "Transaction results in"
    )
