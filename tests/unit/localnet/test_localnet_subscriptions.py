"""The subscription hub, with subscribers that only collect."""

import base64
import json
from typing import Any

import pytest
from localnet_bank import Node, move
from solders.keypair import Keypair
from solders.rpc.responses import parse_websocket_message
from solders.system_program import CreateAccountParams, create_account

from psyche_py.chain.localnet.params import Params
from psyche_py.chain.localnet.rpc_errors import RpcError
from psyche_py.chain.localnet.subscriptions import Hub
from psyche_py.chain.localnet.websocket_server import MAX_QUEUED_BYTES, Outbox


class Collector:
    """A subscriber."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def push(self, text: str) -> None:
        self.texts.append(text)

    def take(self, subscription: int | None = None) -> list[Any]:
        """The results that came since the last call."""
        notes = [json.loads(text)["params"] for text in self.texts]
        self.texts.clear()
        return [n["result"] for n in notes if subscription in (None, n["subscription"])]


class Stage:
    """A node, its hub and one subscriber."""

    def __init__(self) -> None:
        self.node = Node()
        self.hub = Hub(self.node.bank)
        self.out = Collector()

    def do(self, method: str, *params: Any) -> Any:
        return self.hub.handle(self.out, method, Params(params))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_account_notifications_by_commitment(stage: Stage) -> None:
    payer, to = stage.node.fund(), Keypair().pubkey()
    processed, confirmed, finalized = (
        stage.do("accountSubscribe", str(to), {"commitment": level, "encoding": "base64"})
        for level in ("processed", "confirmed", "finalized")
    )
    stage.node.send([move(payer, to, 10**6)], payer)
    slot = stage.node.bank.slot
    (note,) = [json.loads(text)["params"] for text in stage.out.texts]
    assert note["subscription"] == processed
    assert note["result"]["value"]["lamports"] == 10**6
    assert note["result"]["context"]["slot"] == slot
    assert parse_websocket_message(f"[{stage.out.texts[0]}]")[0].result.value.lamports == 10**6
    stage.out.take()
    stage.node.advance()
    stage.node.send([move(payer, to, 10**6)], payer)
    seen = {n["params"]["subscription"]: n["params"]["result"] for n in map(json.loads, stage.out.texts)}
    stage.out.take()
    assert seen[confirmed]["value"]["lamports"] == 10**6
    assert seen[confirmed]["context"]["slot"] == slot
    assert seen[processed]["value"]["lamports"] == 2 * 10**6
    assert finalized not in seen
    stage.node.advance()
    # as it was when its slot ended, although it has changed since
    (result,) = stage.out.take(finalized)
    assert (result["value"]["lamports"], result["context"]["slot"]) == (10**6, slot)


def test_a_confirmed_subscriber_hears_once_per_slot(stage: Stage) -> None:
    payer, to = stage.node.fund(), Keypair().pubkey()
    number = stage.do("accountSubscribe", str(to), {"commitment": "confirmed"})
    for _ in range(3):
        stage.node.send([move(payer, to, 10**6 + len(stage.out.texts))], payer)
        stage.node.advance()
    assert len(stage.out.take(number)) == 3
    for amount in (1, 2, 3):
        stage.node.send([move(payer, to, amount)], payer)
    stage.node.advance()
    (only,) = stage.out.take(number)
    assert only["value"]["lamports"] == stage.node.call("getBalance", str(to))["value"]


def test_failed_transactions_change_only_the_payer(stage: Stage) -> None:
    payer, to = stage.node.fund(), Keypair().pubkey()
    for key in (payer.pubkey(), to):
        stage.do("accountSubscribe", str(key), {"commitment": "processed"})
    stage.node.send([move(payer, to, 10**18)], payer, skipPreflight=True)
    (note,) = stage.out.take()
    assert note["value"]["lamports"] == 10**10 - 5000


def test_an_account_that_ceases(stage: Stage) -> None:
    payer = stage.node.fund(10**9)
    stage.do("accountSubscribe", str(payer.pubkey()), {"commitment": "processed"})
    stage.node.send([move(payer, Keypair().pubkey(), 10**9 - 5000)], payer)
    (note,) = stage.out.take()
    assert (note["value"]["lamports"], note["value"]["owner"]) == (0, "1" * 32)


def test_program_notifications_with_filters(stage: Stage) -> None:
    payer, program = stage.node.fund(), Keypair().pubkey()
    wanted = stage.do(
        "programSubscribe",
        str(program),
        {"commitment": "processed", "encoding": "base64", "filters": [{"dataSize": 24}]},
    )
    keys = [Keypair(), Keypair()]
    made = [
        create_account(
            CreateAccountParams(
                from_pubkey=payer.pubkey(), to_pubkey=k.pubkey(), lamports=10**9, space=space, owner=program
            )
        )
        for k, space in zip(keys, (16, 24), strict=True)
    ]
    stage.node.send(made, payer, *keys)
    (note,) = stage.out.take(wanted)
    assert note["value"]["pubkey"] == str(keys[1].pubkey())
    assert base64.b64decode(note["value"]["account"]["data"][0]) == bytes(24)


def test_signature_is_told_once_before_or_after(stage: Stage) -> None:
    payer = stage.node.fund()
    signed = stage.node.sign([move(payer, Keypair().pubkey(), 10**6)], payer)
    signature = str(signed.signatures[0])
    early = stage.do("signatureSubscribe", signature, {"commitment": "confirmed"})
    stage.hub.after_subscribed(early)
    stage.node.bank.process(signed)
    assert stage.out.take() == []
    stage.node.advance()
    assert [r["value"] for r in stage.out.take(early)] == [{"err": None}]
    late = stage.do("signatureSubscribe", signature, {"commitment": "confirmed"})
    stage.hub.after_subscribed(late)
    assert [r["value"] for r in stage.out.take(late)] == [{"err": None}]
    stage.node.advance(3)
    assert stage.out.take() == []
    with pytest.raises(RpcError):
        stage.do("signatureUnsubscribe", late)  # it ended by itself


def test_logs(stage: Stage) -> None:
    payer, to = stage.node.fund(), Keypair().pubkey()
    everything = stage.do("logsSubscribe", "all", {"commitment": "processed"})
    mentioning = stage.do("logsSubscribe", {"mentions": [str(to)]}, {"commitment": "processed"})
    signature = stage.node.send([move(payer, to, 10**6)], payer)
    stage.node.send([move(payer, Keypair().pubkey(), 10**6)], payer)
    notes = [json.loads(text)["params"] for text in stage.out.texts]
    assert [n["subscription"] for n in notes] == [everything, mentioning, everything]
    assert notes[1]["result"]["value"]["signature"] == signature
    assert notes[1]["result"]["value"]["logs"][-1].endswith("success")


def test_slots_and_roots(stage: Stage) -> None:
    slots, roots = stage.do("slotSubscribe"), stage.do("rootSubscribe")
    stage.node.advance()
    notes = {n["params"]["subscription"]: n["params"]["result"] for n in map(json.loads, stage.out.texts)}
    slot = stage.node.bank.slot
    assert notes == {slots: {"parent": slot - 1, "root": slot - 2, "slot": slot}, roots: slot - 2}


def test_unsubscribe(stage: Stage) -> None:
    number = stage.do("slotSubscribe")
    with pytest.raises(RpcError):
        stage.do("accountUnsubscribe", number)  # of another kind
    with pytest.raises(RpcError):
        stage.hub.handle(Collector(), "slotUnsubscribe", Params([number]))  # somebody else's
    assert stage.do("slotUnsubscribe", number) is True
    stage.node.advance()
    assert stage.out.texts == []
    with pytest.raises(RpcError) as caught:
        stage.do("slotUnsubscribe", number)
    assert caught.value.to_json() == {"code": -32602, "message": "Invalid subscription id."}


def test_a_connection_that_goes_is_forgotten(stage: Stage) -> None:
    stage.do("slotSubscribe")
    stage.do("accountSubscribe", str(Keypair().pubkey()))
    stage.hub.drop_subscriber(stage.out)
    stage.hub.drop_subscriber(stage.out)
    stage.node.advance()
    assert stage.out.texts == []
    assert not stage.hub._by_id
    assert not stage.hub._by_topic


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("accountSubscribe", []),
        ("accountSubscribe", ["x"]),
        ("accountSubscribe", ["1" * 32, {"encoding": "hex"}]),
        ("programSubscribe", ["1" * 32, {"filters": [5]}]),
        ("signatureSubscribe", ["x"]),
        ("logsSubscribe", ["some"]),
        ("logsSubscribe", [{"mentions": ["1" * 32, "1" * 32]}]),
        ("logsSubscribe", [{"mentions": [5]}]),
        ("slotUnsubscribe", []),
        ("slotUnsubscribe", ["1"]),
    ],
)
def test_bad_requests(stage: Stage, method: str, params: list[Any]) -> None:
    with pytest.raises(RpcError) as caught:
        stage.do(method, *params)
    assert caught.value.code == -32602


def test_other_methods_are_unknown_here(stage: Stage) -> None:
    for method in ("getSlot", "blockSubscribe", "voteSubscribe"):
        with pytest.raises(RpcError) as caught:
            stage.do(method)
        assert caught.value.code == -32601


def test_data_too_long_for_base58_is_said_in_its_place(stage: Stage) -> None:
    payer, key, program = stage.node.fund(), Keypair(), Keypair().pubkey()
    stage.do("accountSubscribe", str(key.pubkey()), {"commitment": "processed"})
    made = CreateAccountParams(
        from_pubkey=payer.pubkey(), to_pubkey=key.pubkey(), lamports=10**10 - 10**6, space=200, owner=program
    )
    stage.node.send([create_account(made)], payer, key)
    (note,) = stage.out.take()
    assert note["value"]["data"] == "error: data too large for bs58 encoding"


def test_an_outbox_overflows_instead_of_growing() -> None:
    outbox = Outbox()
    text = "x" * (1 << 20)
    for _ in range(MAX_QUEUED_BYTES // len(text)):
        outbox.push(text)
    assert not outbox.is_overflown
    outbox.push(text)
    outbox.push("more")
    assert outbox.is_overflown
    assert not outbox._texts
