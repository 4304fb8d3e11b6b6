"""A localnet's chain and methods without sockets: requests in, responses out."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.dispatch import iter_answers
from psyche_py.chain.localnet.ledger import Ledger
from psyche_py.chain.localnet.server import open_bank

START = 1_700_000_000


class Node:
    """Drives a Bank through JSON-RPC."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.bank: Bank = open_bank(ledger, START)
        self.bank.advance(START)

    def post(self, body: bytes) -> Any:
        """The parsed response to a request body, None when there is none."""
        answer = b"".join(piece or b"" for piece in iter_answers(self.bank, body))
        return json.loads(answer) if answer else None

    def request(self, method: str, *params: Any) -> Any:
        """The whole response to a call."""
        call = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)}
        return self.post(json.dumps(call).encode())

    def call(self, method: str, *params: Any) -> Any:
        """The result of a call."""
        answer = self.request(method, *params)
        assert "error" not in answer, answer["error"]
        assert answer["id"] == 7
        return answer["result"]

    def fail(self, method: str, *params: Any) -> Any:
        """The error of a call that must fail."""
        answer = self.request(method, *params)
        assert "result" not in answer, answer
        return answer["error"]

    def fund(self, lamports: int = 10**10) -> Keypair:
        """A wallet with money."""
        keypair = Keypair()
        self.call("requestAirdrop", str(keypair.pubkey()), lamports)
        return keypair

    def sign(self, instructions: Sequence[Instruction], *signers: Keypair) -> VersionedTransaction:
        """A transaction with the newest blockhash; the first signer pays."""
        blockhash = self.bank.engine.get_latest_blockhash().blockhash
        message = Message.new_with_blockhash(instructions, signers[0].pubkey(), blockhash)
        return VersionedTransaction(message, list(signers))

    def send(self, instructions: Sequence[Instruction], *signers: Keypair, **options: Any) -> str:
        """Send in base64; the signature."""
        return self.call(
            "sendTransaction", encode(self.sign(instructions, *signers)), {"encoding": "base64"} | options
        )

    def advance(self, slots: int = 1) -> None:
        """Let slots pass."""
        for _ in range(slots):
            self.bank.advance(self.bank.engine.unix_timestamp + 1)


def encode(transaction: VersionedTransaction) -> str:
    """Base64 of a transaction."""
    return base64.b64encode(bytes(transaction)).decode()


def move(payer: Keypair, to: Pubkey, lamports: int) -> Instruction:
    """A transfer."""
    return transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))
