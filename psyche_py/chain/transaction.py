"""From instructions to a signed transaction."""

from __future__ import annotations

from collections.abc import Sequence

from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.transaction import VersionedTransaction

from psyche_py.chain.errors import TransactionTooLarge
from psyche_py.chain.port import MAX_COMPUTE_UNITS, MAX_TRANSACTION_BYTES


def add_budget(
    instructions: Sequence[Instruction],
    *,
    compute_units: int = MAX_COMPUTE_UNITS,
    micro_lamports_per_unit: int = 0,
) -> list[Instruction]:
    """The instructions behind those that set the compute limit and, if there is one, the priority fee."""
    budget = [set_compute_unit_limit(compute_units)]
    if micro_lamports_per_unit:
        budget.append(set_compute_unit_price(micro_lamports_per_unit))
    return [*budget, *instructions]


def sign(
    instructions: Sequence[Instruction], signers: Sequence[Keypair], blockhash: Hash, *, label: str = ""
) -> VersionedTransaction:
    """A signed transaction; the first signer pays. Raises TransactionTooLarge; ValueError without signers."""
    if not signers:
        raise ValueError("a transaction needs somebody who pays")
    message = Message.new_with_blockhash(list(instructions), signers[0].pubkey(), blockhash)
    required = list(message.account_keys)[: message.header.num_required_signatures]
    by_key = {signer.pubkey(): signer for signer in signers}
    missing = [str(key) for key in required if key not in by_key]
    if missing:
        raise ValueError(f"{label or 'transaction'} must also be signed by {', '.join(missing)}")
    transaction = VersionedTransaction(message, [by_key[key] for key in required])
    size = len(bytes(transaction))
    if size > MAX_TRANSACTION_BYTES:
        raise TransactionTooLarge(
            f"{label or 'transaction'}: {size} bytes; a transaction holds {MAX_TRANSACTION_BYTES}.",
            "Send it in several transactions.",
        )
    return transaction
