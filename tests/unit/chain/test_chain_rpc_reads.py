"""Reading over JSON-RPC: what goes out and what comes back."""

from __future__ import annotations

import base64
from typing import Any

import base58
import pytest
import trio
import zstandard
from chain_rpc_node import OWNER, Node, account_json, make_backend
from solders.pubkey import Pubkey

from psyche_py.chain.errors import RpcRefused
from psyche_py.chain.port import ChainTime, Memcmp

A, B = Pubkey([1] * 32), Pubkey([2] * 32)
CLOCK = "SysvarC1ock11111111111111111111111111111111"


def read(node: Node, name: str, *args: Any, **kwargs: Any) -> Any:
    async def main() -> Any:
        async with make_backend(node) as backend:
            return await getattr(backend, name)(*args, **kwargs)

    return trio.run(main)


def test_account_compressed_or_not() -> None:
    node = Node()
    data = bytes(90_000)
    packed = base64.b64encode(zstandard.ZstdCompressor().compress(data)).decode()
    asked: list[Any] = []

    def answer(params: list[Any]) -> Any:
        asked.append(params)
        return node.context({**account_json(5, b""), "data": [packed, "base64+zstd"], "space": len(data)})

    node.handlers["getAccountInfo"] = answer
    info = read(node, "get_account", A)
    assert (info.pubkey, info.lamports, info.owner, info.data) == (A, 5, OWNER, data)
    assert info.slot >= 100
    assert asked[0][1]["encoding"] == "base64+zstd"
    assert asked[0][1]["commitment"] == "confirmed"
    assert read(Node(), "get_account", A) is None


def test_many_accounts_in_order() -> None:
    node = Node()
    node.accounts[str(B)] = (1, b"b")
    keys = [A, B] * 60
    found = read(node, "get_multiple_accounts", keys)
    assert [info.data if info else None for info in found] == [None, b"b"] * 60
    assert node.count("getMultipleAccounts") == 2


def test_program_accounts_filters() -> None:
    node = Node()
    asked: list[Any] = []

    def answer(params: list[Any]) -> Any:
        asked.append(params)
        return [{"pubkey": str(A), "account": account_json(1, b"x")}]

    node.handlers["getProgramAccounts"] = answer
    found = read(node, "get_program_accounts", B, data_size=9, memcmp=[Memcmp(8, b"\1\2")])
    assert [(info.pubkey, info.data) for info in found] == [(A, b"x")]
    filters = asked[0][1]["filters"]
    assert {"dataSize": 9} in filters
    memcmp = next(item["memcmp"] for item in filters if "memcmp" in item)
    assert memcmp["offset"] == 8
    assert memcmp["bytes"] in (base58.b58encode(b"\1\2").decode(), [1, 2])


def test_chain_time() -> None:
    node = Node()
    values = (77, 5, 0, 1)
    clock = b"".join(value.to_bytes(8, "little") for value in values) + (1_700_000_000).to_bytes(8, "little")
    node.accounts[CLOCK] = (1, clock)
    assert read(node, "get_chain_time") == ChainTime(77, 1_700_000_000)
    with pytest.raises(RpcRefused, match="Clock"):
        read(Node(), "get_chain_time")
