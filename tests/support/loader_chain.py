"""The upgradeable loader in LiteSVM (solders 0.28 and newer), with nobody's signature checked.

Not checking lets a test deploy to our programs' real addresses, whose keypairs are nobody's; whether an
authority has signed is part of the message and still checked by the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solders.account import Account
from solders.instruction import Instruction
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from psyche_py.chain import upgradeable_loader as loader

CHUNK_BYTES = 900
AUTHORITY = Pubkey(bytes([11] * 32))
OTHER = Pubkey(bytes([12] * 32))


def make_svm(features: Any = None) -> Any:
    """A chain with mainnet's features, or ``features`` (a FeatureSet), that checks no signature."""
    builder: Any = LiteSVM()
    if features is not None:
        builder = builder.with_feature_set(features).with_builtins()
    return builder.with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)


def send(svm: Any, instructions: Sequence[Instruction], payer: Pubkey = AUTHORITY) -> str | None:
    """None when the transaction has landed, else the name of the last instruction's error."""
    message = Message(list(instructions), payer)
    signatures = [Signature.default()] * message.header.num_required_signatures
    if not svm.get_balance(payer):
        svm.set_account(payer, Account(10**13, b"", Pubkey.default()))
    result = svm.send_transaction(Transaction.populate(message, signatures))
    if not isinstance(result, FailedTransactionMetadata):
        return None
    return str(getattr(result.err(), "err", result.err())).rsplit(".", 1)[-1]


def fill_buffer(svm: Any, elf: bytes) -> Pubkey:
    """A buffer of AUTHORITY with the whole build in it."""
    buffer = loader.find_buffer(AUTHORITY, elf, AUTHORITY)
    rent = svm.minimum_balance_for_rent_exemption(loader.BUFFER_HEADER_BYTES + len(elf))
    assert send(svm, loader.open_buffer(AUTHORITY, elf, AUTHORITY, rent)) is None
    for at in range(0, len(elf), CHUNK_BYTES):
        assert send(svm, [loader.write(buffer, AUTHORITY, at, elf[at : at + CHUNK_BYTES])]) is None
    return buffer


def deploy(svm: Any, program_id: Pubkey, elf: bytes, *, room_bytes: int = 0) -> str | None:
    """Write and deploy, with room for a larger build; the loader's error, or None."""
    buffer = fill_buffer(svm, elf)
    rent = svm.minimum_balance_for_rent_exemption(loader.PROGRAM_ACCOUNT_BYTES)
    capacity = len(elf) + room_bytes
    return send(svm, loader.deploy(AUTHORITY, program_id, buffer, AUTHORITY, capacity, rent))


def upgrade(svm: Any, program_id: Pubkey, elf: bytes, *, authority: Pubkey = AUTHORITY) -> str | None:
    """Write and upgrade; the loader's error, or None."""
    buffer = fill_buffer(svm, elf)
    return send(svm, [loader.upgrade(program_id, buffer, authority, AUTHORITY)])


def read_code(svm: Any, program_id: Pubkey) -> bytes:
    """What the loader keeps for ``program_id``, without the room behind it."""
    data = bytes(svm.get_account(loader.find_program_data(program_id)).data)
    return data[loader.PROGRAM_DATA_HEADER_BYTES :].rstrip(b"\0")
