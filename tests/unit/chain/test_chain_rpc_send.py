"""Sending over JSON-RPC against a scripted node, on trio's mock clock."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio
import trio.testing
from chain_rpc_node import OPTIONS, SLOT_SECONDS, HttpAnswer, Node, RpcError, make_backend
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.errors import (
    AirdropRefused,
    InsufficientFunds,
    ProgramError,
    RateLimited,
    RpcRefused,
    RpcUnavailable,
    TransactionExpired,
    TransactionTooLarge,
    TransactionUnconfirmed,
)
from psyche_py.chain.port import TransactionResult

PAYER = Keypair.from_seed(bytes([1] * 32))


def run(main: Any) -> Any:
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def make_instruction(data: bytes = b"") -> Instruction:
    return Instruction(get_program_id("coordinator"), data, [])


def send(*nodes: Node, **kwargs: Any) -> TransactionResult:
    async def main() -> TransactionResult:
        async with make_backend(*nodes, **kwargs) as backend:
            return await backend.send([make_instruction()], [PAYER], label="tick")

    return run(main)


def get_units(raw: bytes) -> int:
    """The compute unit limit: the first instruction, tag 2 and a u32."""
    data = VersionedTransaction.from_bytes(raw).message.instructions[0].data
    assert data[0] == 2
    return int.from_bytes(data[1:5], "little")


def test_lands_at_once() -> None:
    node = Node()
    result = send(node)
    assert str(result.signature) == str(VersionedTransaction.from_bytes(node.sent[0]).signatures[0])
    assert [name for name, _ in node.asked] == [
        "getLatestBlockhash",
        "sendTransaction",
        "getSignatureStatuses",
    ]
    assert node.asked[-1][1] == 0.0, "no waiting when it lands at once"


def test_sends_the_same_bytes_again_until_it_lands() -> None:
    node = Node()
    node.lands_at = 4.5
    send(node)
    assert len(set(node.sent)) == 1
    assert len(node.sent) == 5
    gaps = [after - before for before, after in zip(node.sent_at, node.sent_at[1:], strict=False)]
    assert all(0.999 < gap < 2.1 for gap in gaps), gaps


def test_waits_for_the_commitment() -> None:
    node = Node()
    node.level = "processed"
    waited = 3.0

    def statuses(params: list[Any]) -> Any:
        node.level = "confirmed" if node.now > waited else "processed"
        return node.context([node.status(text) for text in params[0]])

    node.handlers["getSignatureStatuses"] = statuses
    send(node)
    assert node.level == "confirmed"
    quick = Node()
    quick.level = "processed"
    send(quick, commitment="processed")
    assert len(quick.sent) == 1


def test_expired_only_when_height_passed_and_nobody_knows_it() -> None:
    node = Node()
    node.lands_at = None
    with pytest.raises(TransactionExpired) as caught:
        send(node)
    assert node.asked[-1][1] > 150 * SLOT_SECONDS
    assert str(VersionedTransaction.from_bytes(node.sent[0]).signatures[0]) == caught.value.signature
    assert len(set(node.sent)) == 1
    searched = [name for name, _ in node.asked][-2:]
    assert searched == ["getBlockHeight", "getSignatureStatuses"]


def test_landing_in_the_last_block_is_no_expiry() -> None:
    node = Node()
    node.lands_at = None
    node.handlers["getSignatureStatuses"] = lambda params: _late(node, params)
    assert send(node).slot > 250


def _late(node: Node, params: list[Any]) -> Any:
    if params[1].get("searchTransactionHistory", False):
        node.lands_at = 0.0
    return node.context([node.status(text) for text in params[0]])


def preflight(err: Any, logs: list[str] | None = None) -> RpcError:
    data = {"err": err, "logs": logs or [], "accounts": None, "unitsConsumed": 0, "returnData": None}
    return RpcError(-32002, "Transaction simulation failed", data)


def raise_(error: Exception) -> Any:
    raise error


def test_preflight_program_error_is_decoded_and_not_resent() -> None:
    node = Node()
    logs = ["Program log: x"]
    node.handlers["sendTransaction"] = lambda p: raise_(
        preflight({"InstructionError": [1, {"Custom": 6015}]}, logs)
    )
    with pytest.raises(ProgramError) as caught:
        send(node)
    assert (caught.value.code, caught.value.name, caught.value.program) == (6015, "Halted", "coordinator")
    assert caught.value.logs == ("Program log: x",)
    assert node.count("sendTransaction") == 1
    node.handlers["sendTransaction"] = lambda p: raise_(preflight("AccountNotFound"))
    with pytest.raises(InsufficientFunds, match=str(PAYER.pubkey())):
        send(node)


def test_a_landed_failure_is_decoded_with_its_logs() -> None:
    node = Node()
    node.landing_err = {"InstructionError": [1, {"Custom": 6003}]}
    with pytest.raises(ProgramError) as caught:
        send(node)
    assert caught.value.name == "ClientsFull"
    assert node.count("getTransaction") == 1


def test_a_lagging_node_does_not_know_the_blockhash_yet() -> None:
    node = Node()

    def take(params: list[Any]) -> Any:
        if node.now < 2.5:
            raise preflight("BlockhashNotFound")
        return node.take(base64.b64decode(params[0]))

    node.handlers["sendTransaction"] = take
    send(node)
    assert node.count("sendTransaction") >= 3


def test_already_processed_is_success() -> None:
    node = Node()

    def take(params: list[Any]) -> Any:
        node.take(base64.b64decode(params[0]))
        raise preflight("AlreadyProcessed")

    node.handlers["sendTransaction"] = take
    send(node)


def test_rate_limit_moves_on_and_comes_back() -> None:
    first, second = Node("first.test"), Node("second.test")
    told: list[str] = []
    limited_until = 8.0

    def limit(params: list[Any]) -> Any:
        if first.now < limited_until:
            raise HttpAnswer(429, {"retry-after": "8"})
        return first.slot

    first.handlers["getMinimumBalanceForRentExemption"] = limit
    second.handlers["getMinimumBalanceForRentExemption"] = lambda p: 7

    async def main() -> None:
        async with make_backend(first, second, told=told) as backend:
            for _ in range(3):
                assert await backend.get_minimum_balance(1) == 7
            assert first.count("getMinimumBalanceForRentExemption") == 1
            await trio.sleep(8.1)
            assert await backend.get_minimum_balance(1) > 100

    run(main)
    assert told == ["first.test limits our requests; using second.test"]
    assert "secret" not in told[0]


def test_a_single_limited_endpoint_is_waited_for() -> None:
    node = Node()
    node.handlers["getLatestBlockhash"] = _limit_for(node, 3.0)
    send(node)
    assert node.count("getLatestBlockhash") == 2


def _limit_for(node: Node, seconds: float) -> Any:
    def handle(params: list[Any]) -> Any:
        if node.now < seconds:
            raise HttpAnswer(429, {"retry-after": str(seconds)})
        blockhash = "11111111111111111111111111111111"
        return node.context({"blockhash": blockhash, "lastValidBlockHeight": node.slot + 150})

    return handle


def test_deadlines() -> None:
    node = Node()
    node.handlers["getLatestBlockhash"] = _limit_for(node, 60.0)
    with pytest.raises(RateLimited) as caught:
        send(node)
    assert 30 < caught.value.retry_after_seconds <= 60
    silent = Node()

    async def never(params: list[Any]) -> Any:
        await trio.sleep_forever()

    silent.handlers["getSlot"] = never
    silent.handlers["getAccountInfo"] = never

    async def main() -> float:
        async with make_backend(silent) as backend:
            began = trio.current_time()
            with pytest.raises(RpcUnavailable, match="did not answer in time"):
                await backend.get_account(PAYER.pubkey())
            return trio.current_time() - began

    assert run(main) <= OPTIONS.deadline_seconds


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(500),
        HttpAnswer(502, text="<html>bad gateway</html>"),
        HttpAnswer(403),
        HttpAnswer(200, text="<html>hello</html>"),
        HttpAnswer(200, text='{"jsonrpc":"2.0","id":1,"result":"nonsense"}'),
        RpcError(-32005, "Node is behind by 42 slots", {"numSlotsBehind": 42}),
        RpcError(-32429, "slow down"),
    ],
)
def test_failover(answer: Exception) -> None:
    bad, good = Node("bad.test"), Node("good.test")
    bad.answer = lambda method, params: raise_(answer)  # type: ignore[method-assign]
    send(bad, good)
    assert len(good.sent) == 1


def test_a_refusal_is_not_tried_elsewhere() -> None:
    first, second = Node("first.test"), Node("second.test")
    first.handlers["sendTransaction"] = lambda p: raise_(RpcError(-32003, "signature verification failed"))
    with pytest.raises(RpcRefused, match="TransactionSignatureVerificationFailure"):
        send(first, second)
    assert not second.asked


def test_unknown_outcome_is_said_to_be_unknown() -> None:
    node = Node()
    node.lands_at = None

    def statuses(params: list[Any]) -> Any:
        raise HttpAnswer(503)

    node.handlers["getSignatureStatuses"] = statuses
    with pytest.raises(TransactionUnconfirmed, match="unknown") as caught:
        send(node)
    assert caught.value.signature in caught.value.remedy
    never = Node()
    never.handlers["sendTransaction"] = lambda p: raise_(HttpAnswer(503))
    with pytest.raises(RpcUnavailable) as refused:
        send(never)
    assert not isinstance(refused.value, TransactionUnconfirmed)


def test_equal_transactions_differ_and_the_blockhash_is_reused() -> None:
    node = Node()

    async def main() -> None:
        async with make_backend(node) as backend:
            for _ in range(3):
                await backend.send([make_instruction()], [PAYER])
            await trio.sleep(OPTIONS.max_blockhash_age_seconds + 0.1)
            await backend.send([make_instruction()], [PAYER])

    run(main)
    assert len(set(node.sent)) == 4
    assert node.count("getLatestBlockhash") == 2
    assert node.count("simulateTransaction") == 0


def test_what_is_prepared_need_not_be_asked_for_when_it_is_sent() -> None:
    node = Node()

    async def main() -> None:
        async with make_backend(node) as backend:
            await backend.prepare()
            assert node.count("getLatestBlockhash") == 1
            await backend.prepare()  # still young
            await backend.send([make_instruction()], [PAYER])
            assert node.count("getLatestBlockhash") == 1
            await trio.sleep(OPTIONS.max_blockhash_age_seconds / 2 + 0.1)
            await backend.prepare()  # would soon be too old
            assert node.count("getLatestBlockhash") == 2

    run(main)


def test_a_priority_fee_pays_for_what_is_needed() -> None:
    node = Node()
    simulated = {"err": None, "logs": [], "accounts": None, "unitsConsumed": 10_000, "returnData": None}
    node.handlers["simulateTransaction"] = lambda p: node.context(simulated)
    send(node, priority_fee_micro_lamports=5)
    assert 12_000 <= get_units(node.sent[0]) <= 12_000 + 2 * 4096
    message = VersionedTransaction.from_bytes(node.sent[0]).message
    assert bytes(message.instructions[1].data) == b"\3" + (5).to_bytes(8, "little")
    failing = {**simulated, "err": {"InstructionError": [2, {"Custom": 6015}]}}
    node.handlers["simulateTransaction"] = lambda p: node.context(failing)
    with pytest.raises(ProgramError, match="Halted"):
        send(node, priority_fee_micro_lamports=5)


def test_too_large() -> None:
    async def main() -> None:
        async with make_backend(Node()) as backend:
            with pytest.raises(TransactionTooLarge, match="1232"):
                await backend.send([make_instruction(bytes(1300))], [PAYER])

    run(main)


def test_airdrop() -> None:
    node = Node()
    signature = "1" * 64

    def give(params: list[Any]) -> str:
        node.sent.append(b"")
        node.sent_at.append(node.now)
        return signature

    node.handlers["requestAirdrop"] = give

    async def main() -> None:
        async with make_backend(node) as backend:
            await backend.request_airdrop(PAYER.pubkey(), 5)
            node.handlers["requestAirdrop"] = lambda p: raise_(RpcError(429, "airdrop limit"))
            with pytest.raises(AirdropRefused, match="no test money") as caught:
                await backend.request_airdrop(PAYER.pubkey(), 5)
            assert "faucet" in caught.value.remedy

    run(main)
