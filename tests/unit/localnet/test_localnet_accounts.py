"""Accounts and tokens over JSON-RPC: encodings, slices, filters, parsed tokens."""

import base64
import json

import base58
import pytest
import zstandard
from localnet_bank import Node
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.rpc.responses import (
    GetAccountInfoJsonParsedResp,
    GetAccountInfoResp,
    GetProgramAccountsResp,
    GetTokenAccountBalanceResp,
    GetTokenAccountsByOwnerJsonParsedResp,
)
from solders.system_program import CreateAccountParams, create_account
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import (
    InitializeMintParams,
    MintToParams,
    TransferParams,
    create_associated_token_account,
    get_associated_token_address,
    initialize_mint,
    mint_to,
    transfer,
)

from psyche_py.chain.localnet.token_json import to_ui_amount

OWNER = Pubkey.from_string("Stake11111111111111111111111111111111111111")


@pytest.fixture
def node() -> Node:
    return Node()


def put(node: Node, data: bytes, owner: Pubkey = OWNER) -> str:
    """An account with this data, written as if by a transaction."""
    key = Keypair().pubkey()
    node.bank.engine.set_account(key, Account(10**9, data, owner))
    account = node.bank.engine.get_account(key)
    assert account is not None
    node.bank._index_account(account)
    return str(key)


def test_encodings(node: Node) -> None:
    data = bytes(range(100))
    key = put(node, data)
    read = {
        encoding: node.call("getAccountInfo", key, {"encoding": encoding})["value"]["data"]
        for encoding in ("base58", "base64", "base64+zstd", "jsonParsed")
    }
    assert read["base58"] == [base58.b58encode(data).decode(), "base58"]
    assert read["base64"] == [base64.b64encode(data).decode(), "base64"]
    assert read["jsonParsed"] == read["base64"]  # nothing we can parse
    packed = base64.b64decode(read["base64+zstd"][0])
    assert zstandard.ZstdDecompressor().decompress(packed) == data
    assert node.call("getAccountInfo", key)["value"]["data"] == read["base58"][0]  # the oldest form


def test_whole_account_parses_with_solders(node: Node) -> None:
    key = put(node, b"abc")
    parsed = GetAccountInfoResp.from_json(
        json.dumps(node.request("getAccountInfo", key, {"encoding": "base64"}))
    )
    assert isinstance(parsed, GetAccountInfoResp)
    assert parsed.value is not None
    assert (parsed.value.data, parsed.value.owner, parsed.value.lamports) == (b"abc", OWNER, 10**9)


def test_base58_is_for_small_data(node: Node) -> None:
    key = put(node, bytes(129))
    assert node.fail("getAccountInfo", key, {"encoding": "base58"})["code"] == -32600
    sliced = {"encoding": "base58", "dataSlice": {"offset": 120, "length": 100}}
    assert node.call("getAccountInfo", key, sliced)["value"]["data"][0] == "1" * 9


def test_data_slice(node: Node) -> None:
    key = put(node, b"0123456789")
    for offset, length, expected in ((2, 3, b"234"), (8, 10, b"89"), (20, 1, b"")):
        config = {"encoding": "base64", "dataSlice": {"offset": offset, "length": length}}
        value = node.call("getAccountInfo", key, config)["value"]
        assert base64.b64decode(value["data"][0]) == expected
        assert value["space"] == 10
    assert node.fail("getAccountInfo", key, {"dataSlice": {"offset": -1, "length": 1}})["code"] == -32602
    assert node.fail("getAccountInfo", key, {"dataSlice": {"offset": 1}})["code"] == -32602


def test_missing_accounts_are_null(node: Node) -> None:
    here, absent = put(node, b"x"), str(Keypair().pubkey())
    assert node.call("getAccountInfo", absent)["value"] is None
    assert node.call("getBalance", absent)["value"] == 0
    values = node.call("getMultipleAccounts", [here, absent])["value"]
    assert values[0]["data"] == ["eA==", "base64"]
    assert values[1] is None
    assert node.fail("getMultipleAccounts", [here] * 101)["message"] == "Too many inputs provided; max 100"


def test_pubkey_errors(node: Node) -> None:
    assert node.fail("getBalance", "0OIl")["message"] == "Invalid param: Invalid"
    assert node.fail("getBalance", "abc")["message"] == "Invalid param: WrongSize"
    assert node.fail("getBalance", 5)["code"] == -32602
    assert node.fail("getBalance")["code"] == -32602


def test_sysvars_and_programs_can_be_read(node: Node) -> None:
    clock = node.call("getAccountInfo", "SysvarC1ock11111111111111111111111111111111", {"encoding": "base64"})
    data = base64.b64decode(clock["value"]["data"][0])
    assert int.from_bytes(data[:8], "little") == node.bank.slot
    program = node.call("getAccountInfo", str(TOKEN_PROGRAM_ID), {"dataSlice": {"offset": 0, "length": 0}})
    assert program["value"]["executable"] is True


def test_program_accounts_filters(node: Node) -> None:
    keys = [put(node, data) for data in (b"aaaa", b"aabb", b"aabbcc")]

    def find(*filters: object) -> set[str]:
        config = {"encoding": "base64", "filters": list(filters)}
        return {item["pubkey"] for item in node.call("getProgramAccounts", str(OWNER), config)}

    at_two = base58.b58encode(b"bb").decode()
    assert find() == set(keys)
    assert find({"dataSize": 4}) == set(keys[:2])
    assert find({"memcmp": {"offset": 2, "bytes": at_two}}) == set(keys[1:])
    assert find({"memcmp": {"offset": 2, "bytes": "YmI=", "encoding": "base64"}}) == set(keys[1:])
    assert find({"memcmp": {"offset": 2, "bytes": [98, 98]}}, {"dataSize": 6}) == {keys[2]}
    assert find({"memcmp": {"offset": 5, "bytes": at_two}}) == set()
    assert find("tokenAccountState") == set()


def test_program_accounts_bad_filters(node: Node) -> None:
    for filters in (
        5,
        [{}],
        [{"dataSize": "4"}],
        [{"memcmp": {"offset": 0}}],
        [{"memcmp": {"offset": 0, "bytes": "0OIl"}}],
        [{"memcmp": {"offset": 0, "bytes": "1" * 300}}],
        [{"memcmp": {"offset": 0, "bytes": "1" * 200}}],
        [{"memcmp": {"offset": -1, "bytes": "1"}}],
        [{"memcmp": {"offset": 0, "bytes": "1", "encoding": "hex"}}],
        [{"memcmp": {"offset": 0, "bytes": [256]}}],
        [{"dataSize": 1}] * 5,
    ):
        assert node.fail("getProgramAccounts", str(OWNER), {"filters": filters})["code"] == -32602


def test_program_accounts_context_and_slice(node: Node) -> None:
    put(node, b"abcd")
    config = {"encoding": "base64", "withContext": True, "dataSlice": {"offset": 1, "length": 2}}
    answer = node.request("getProgramAccounts", str(OWNER), config)
    assert answer["result"]["context"]["slot"] == node.bank.slot
    assert answer["result"]["value"][0]["account"]["data"][0] == base64.b64encode(b"bc").decode()
    answer = node.request("getProgramAccounts", str(OWNER), {"encoding": "base64"})
    assert isinstance(GetProgramAccountsResp.from_json(json.dumps(answer)), GetProgramAccountsResp)


def test_rent(node: Node) -> None:
    assert node.call("getMinimumBalanceForRentExemption", 0) == 890_880
    assert node.fail("getMinimumBalanceForRentExemption", 2**40)["code"] == -32602


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [(0, 0, "0"), (5, 0, "5"), (100, 2, "1"), (1, 9, "0.000000001"), (2**64 - 1, 6, "18446744073709.551615")],
)
def test_ui_amount(amount: int, decimals: int, text: str) -> None:
    shown = to_ui_amount(amount, decimals)
    assert (shown["uiAmountString"], shown["amount"]) == (text, str(amount))


def test_tokens_from_mint_to_transfer(node: Node) -> None:
    payer, mint, friend = node.fund(), Keypair(), Keypair().pubkey()
    own, theirs = (get_associated_token_address(who, mint.pubkey()) for who in (payer.pubkey(), friend))
    space = 82
    made = create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(),
            to_pubkey=mint.pubkey(),
            lamports=node.call("getMinimumBalanceForRentExemption", space),
            space=space,
            owner=TOKEN_PROGRAM_ID,
        )
    )
    program = {"program_id": TOKEN_PROGRAM_ID}
    initialized = initialize_mint(
        InitializeMintParams(decimals=6, mint=mint.pubkey(), mint_authority=payer.pubkey(), **program)
    )
    accounts = [
        create_associated_token_account(payer.pubkey(), who, mint.pubkey())
        for who in (payer.pubkey(), friend)
    ]
    minted = mint_to(
        MintToParams(mint=mint.pubkey(), dest=own, mint_authority=payer.pubkey(), amount=5_000_000, **program)
    )
    node.send([made, initialized, *accounts, minted], payer, mint)
    moved = transfer(
        TransferParams(source=own, dest=theirs, owner=payer.pubkey(), amount=1_250_000, **program)
    )
    signature = node.send([moved], payer)

    answer = node.request("getTokenAccountBalance", str(theirs))
    assert answer["result"]["value"]["uiAmountString"] == "1.25"
    assert isinstance(GetTokenAccountBalanceResp.from_json(json.dumps(answer)), GetTokenAccountBalanceResp)
    assert node.call("getTokenSupply", str(mint.pubkey()))["value"]["amount"] == "5000000"
    largest = node.call("getTokenLargestAccounts", str(mint.pubkey()))["value"]
    assert [entry["amount"] for entry in largest] == ["3750000", "1250000"]

    parsed = {"encoding": "jsonParsed"}
    answer = node.request("getTokenAccountsByOwner", str(friend), {"mint": str(mint.pubkey())}, parsed)
    assert isinstance(
        GetTokenAccountsByOwnerJsonParsedResp.from_json(json.dumps(answer)),
        GetTokenAccountsByOwnerJsonParsedResp,
    )
    (found,) = answer["result"]["value"]
    assert found["pubkey"] == str(theirs)
    info = found["account"]["data"]["parsed"]["info"]
    assert (info["owner"], info["tokenAmount"]["uiAmount"], info["state"]) == (
        str(friend),
        1.25,
        "initialized",
    )
    by_program = {"programId": str(TOKEN_PROGRAM_ID)}
    assert len(node.call("getTokenAccountsByOwner", str(friend), by_program, parsed)["value"]) == 1
    answer = node.request("getAccountInfo", str(mint.pubkey()), parsed)
    assert answer["result"]["value"]["data"]["parsed"]["type"] == "mint"
    assert isinstance(
        GetAccountInfoJsonParsedResp.from_json(json.dumps(answer)), GetAccountInfoJsonParsedResp
    )

    node.advance(2)
    meta = node.call("getTransaction", signature)["meta"]
    before, after = (
        {b["owner"]: b["uiTokenAmount"]["amount"] for b in meta[name]}
        for name in ("preTokenBalances", "postTokenBalances")
    )
    assert before == {str(payer.pubkey()): "5000000", str(friend): "0"}
    assert after == {str(payer.pubkey()): "3750000", str(friend): "1250000"}


def test_token_errors(node: Node) -> None:
    absent, plain = str(Keypair().pubkey()), put(node, b"x")
    assert node.fail("getTokenAccountBalance", absent)["message"] == "Invalid param: could not find account"
    assert node.fail("getTokenAccountBalance", plain)["message"] == "Invalid param: not a Token account"
    assert node.fail("getTokenSupply", absent)["code"] == -32602
    assert node.fail("getTokenAccountsByOwner", absent, {"mint": absent})["code"] == -32602
    assert node.fail("getTokenAccountsByOwner", absent, {"programId": absent})["code"] == -32602
    assert node.fail("getTokenAccountsByOwner", absent, {})["code"] == -32602
    broken = put(node, b"\x00" * 82, TOKEN_PROGRAM_ID)
    assert node.fail("getTokenSupply", broken)["message"] == "Invalid param: not a Token mint"
