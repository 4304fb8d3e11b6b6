"""JSON-RPC itself: envelopes, batches, error codes, hostile bodies."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localnet_bank import Node

from psyche_py.chain.localnet.dispatch import METHODS
from psyche_py.errors import StorageError


@pytest.fixture(scope="module")
def node() -> Node:
    return Node()


def test_result_envelope(node: Node) -> None:
    assert node.request("getHealth") == {"jsonrpc": "2.0", "result": "ok", "id": 7}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 20_000, -32700),
        (b"NaN", -32700),
        (b"1" * 5000, -32700),
        (b"1", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"getSlot"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"getSlot"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":{"a":1}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":[1]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"toString","params":[]}', -32601),
    ],
)
def test_error_codes(node: Node, body: bytes, code: int) -> None:
    answer = node.post(body)
    assert answer["error"]["code"] == code
    assert answer["jsonrpc"] == "2.0"


def test_params_may_be_absent_or_null(node: Node) -> None:
    for call in (b'{"jsonrpc":"2.0","id":1,"method":"getSlot"}',):
        assert isinstance(node.post(call)["result"], int)
    assert isinstance(node.post(b'{"jsonrpc":"2.0","id":1,"method":"getSlot","params":null}')["result"], int)


def test_batch_keeps_order_and_ids(node: Node) -> None:
    calls = [
        {"jsonrpc": "2.0", "id": "a", "method": "getHealth"},
        {"jsonrpc": "2.0", "method": "getHealth"},  # a notification: no answer
        5,
        {"jsonrpc": "2.0", "id": 2, "method": "nope"},
    ]
    first, second, third = node.post(json.dumps(calls).encode())
    assert (first["id"], first["result"]) == ("a", "ok")
    assert (second["id"], second["error"]["code"]) == (None, -32600)
    assert (third["id"], third["error"]["code"]) == (2, -32601)


def test_batch_of_notifications_has_no_answer(node: Node) -> None:
    assert node.post(b'[{"jsonrpc":"2.0","method":"getHealth"},{"jsonrpc":"2.0","method":"nope"}]') is None


def test_batch_limit(node: Node) -> None:
    calls = [{"jsonrpc": "2.0", "id": 1, "method": "getHealth"}] * 101
    assert node.post(json.dumps(calls).encode())["error"]["code"] == -32600


def test_our_own_mistakes_are_internal_errors(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setitem(METHODS, "getHealth", broken)
    assert node.fail("getHealth") == {"code": -32603, "message": "Internal error"}
    assert "getHealth failed" in caplog.text


def test_a_ledger_that_fails_is_not_answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("disk full")

    monkeypatch.setitem(METHODS, "getHealth", full)
    with pytest.raises(StorageError):
        node.request("getHealth")


CONFIG_KEYS = [
    "encoding",
    "commitment",
    "filters",
    "memcmp",
    "dataSize",
    "offset",
    "length",
    "bytes",
    "mint",
    "dataSlice",
    "limit",
    "before",
    "accounts",
    "addresses",
    "minContextSlot",
    "programId",
]

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(
        ["11111111111111111111111111111111", "1" * 88, "AAAA", "base64", "jsonParsed", "processed"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(CONFIG_KEYS),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=600, deadline=None)
@given(method=st.sampled_from(sorted(METHODS)), params=st.lists(JSON_VALUES, max_size=3))
def test_any_params_get_a_proper_answer(node: Node, method: str, params: list[object]) -> None:
    answer = node.request(method, *params)
    assert ("result" in answer) != ("error" in answer)
    if "error" in answer:
        assert answer["error"]["code"] != -32603 or "airdrop" in answer["error"]["message"]
