"""Plays a rule-book history on the coordinator program in LiteSVM, without any of our chain code.

Instructions are encoded by hand from the contract's argument lists, so that this is a second opinion on the
IDL and on psyche_py.chain as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from documented_errors import check_documented
from rulebook_driver import START, get_slot_hash
from solders.account import Account
from solders.clock import Clock
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import CreateAccountParams, create_account
from solders.transaction import Transaction
from solders.transaction_metadata import TransactionMetadata

from psyche_py.coordinator.errors import ErrorCode
from psyche_py.coordinator.layout import ACCOUNT_SIZE, compute_account_discriminator
from psyche_py.coordinator.pda import ANYBODY, JOIN_SCOPE, get_authorization_seeds, get_instance_seeds

PACKAGE = Path(__file__).resolve().parents[2] / "psyche_py" / "chain"
SBPF_VERSION = int(os.environ.get("PSYCHE_SBPF_VERSION", "0"))
"""Format of the programs under test; `make test-newest` runs these tests in both."""
PROGRAM = PACKAGE / "programs" / ("v3" if SBPF_VERSION == 3 else "") / "coordinator.so"
SYSTEM = Pubkey.default()


def read_program_id(name: str) -> Pubkey:
    """A program's id, from its IDL."""
    idl = json.loads((PACKAGE / "idl" / f"{name}.json").read_text())
    return Pubkey.from_string(idl["metadata"]["address"])


def get_keypair(client: int) -> Keypair:
    """A client's wallet."""
    return Keypair.from_seed(hashlib.sha256(f"keypair {client}".encode()).digest())


def _option(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    return b"\0" if value is None else b"\1" + encode(value)


def _string(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


ENCODERS: dict[str, Callable[..., bytes]] = {
    "tick": lambda: b"",
    "join_run": lambda address_hint: bytes.fromhex(address_hint),
    "leave_run": lambda: b"",
    "remove_unauthorized": lambda entry: struct.pack("<H", entry),
    "record_claim": lambda user, points: bytes(get_keypair(user).pubkey()) + struct.pack("<Q", points),
    "warmup_witness": lambda index: struct.pack("<H", index),
    "health_check": lambda index: struct.pack("<H", index),
    "witness": lambda index, step, participants, broadcast_bloom, broadcast_merkle, state_digest: (
        struct.pack("<HI4Q16Q", index, step, *participants, *broadcast_bloom)
        + bytes.fromhex(broadcast_merkle + state_digest)
        + struct.pack("<4f", 10.0, 20.0, 3.5, 0.5)
    ),
    "checkpoint": lambda kind, repo, revision: (
        bytes([kind]) + repo.encode().ljust(128, b"\0") + revision.encode().ljust(64, b"\0")
    ),
    "set_paused": lambda paused: bytes([paused]),
    "update": lambda metadata=None, config=None, model=None, progress=None: b"".join(
        _option(part, bytes.fromhex) for part in (metadata, config, model, progress)
    ),
    "update_client_version": lambda client_version: _string(client_version),
    "set_future_epoch_rates": lambda earning_rate_total_shared=None, slashing_rate_per_client=None: (
        _option(earning_rate_total_shared, _u64) + _option(slashing_rate_per_client, _u64)
    ),
}
OWNER_EVENTS = ("set_paused", "update", "update_client_version", "set_future_epoch_rates", "record_claim")


def install_shipped(svm: Any, program_id: Pubkey) -> None:
    """The program that the package ships."""
    svm.add_program(program_id, PROGRAM.read_bytes())


class ProgramDriver:
    """One run on the program. ``apply`` mirrors Driver.apply and returns the error's name, or None."""

    logs: tuple[str, ...] = ()
    """Log of the newest transaction that was not refused."""

    def __init__(self, num_wallets: int, install: Callable[[Any, Pubkey], None] | None = None) -> None:
        """``install(svm, program_id)`` puts the coordinator in place; the shipped one unless given."""
        builder: Any = LiteSVM()
        self.svm: Any = builder.with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        self.program_id = read_program_id("coordinator")
        (install or install_shipped)(self.svm, self.program_id)
        self.owner = get_keypair(1_000_000)
        self.wallets = [get_keypair(client) for client in range(num_wallets)]
        for wallet in (self.owner, *self.wallets):
            self.svm.airdrop(wallet.pubkey(), 10**12)
        self.now, self.slot = START, 10
        self.units: dict[str, int] = {}
        self._set_clock()
        self._create_run()
        self.authorization = self._authorize_anybody()

    def _set_clock(self) -> None:
        self.svm.set_clock(Clock(self.slot, 0, 0, 1, self.now))
        self.svm.set_slot_hashes([(self.slot, Hash(get_slot_hash(self.slot)))])

    def _create_run(self) -> None:
        self.run = get_keypair(1_000_001)
        seeds = get_instance_seeds("run")
        self.instance, _ = Pubkey.find_program_address(seeds, self.program_id)
        owner = self.owner.pubkey()
        lamports = self.svm.minimum_balance_for_rent_exemption(ACCOUNT_SIZE)
        create = CreateAccountParams(
            from_pubkey=owner,
            to_pubkey=self.run.pubkey(),
            lamports=lamports,
            space=ACCOUNT_SIZE,
            owner=self.program_id,
        )
        data = _discriminate("init_coordinator") + bytes(owner) * 2 + _string("run") + _string("test")
        metas = [
            AccountMeta(owner, True, True),
            AccountMeta(self.instance, False, True),
            AccountMeta(self.run.pubkey(), True, True),
            AccountMeta(SYSTEM, False, False),
        ]
        init = Instruction(self.program_id, data, metas)
        assert self._send([create_account(create), init], self.owner) is None

    def _authorize_anybody(self) -> Pubkey:
        """An active authorization, put in place as the authorizer program would write it."""
        authorizer, grantor = read_program_id("authorizer"), bytes(self.owner.pubkey())
        seeds = get_authorization_seeds(grantor, ANYBODY)
        address, bump = Pubkey.find_program_address(seeds, authorizer)
        scope = struct.pack("<I", len(JOIN_SCOPE)) + JOIN_SCOPE
        data = compute_account_discriminator("Authorization") + bytes([bump]) + grantor + ANYBODY + scope
        data += b"\1" + struct.pack("<Iq", 0, START)
        self.svm.set_account(address, Account(10**9, data, authorizer))
        return address

    def set_authorized(self, is_active: bool) -> None:
        """Switch everybody's authorization."""
        account = self.svm.get_account(self.authorization)
        data = bytearray(account.data)
        data[73 + 4 + len(JOIN_SCOPE)] = is_active
        self.svm.set_account(self.authorization, Account(10**9, bytes(data), account.owner))

    def read(self) -> bytes:
        """The account's bytes."""
        return bytes(self.svm.get_account(self.run.pubkey()).data)

    def apply(self, name: str, **arguments: Any) -> str | None:
        """Send the event as an instruction of its actor."""
        if name == "advance":
            self.now += arguments["seconds"]
            self.slot += arguments["slots"]
            self._set_clock()
            return None
        client = arguments.pop("client", 0)
        actor = self.owner if name in OWNER_EVENTS else self.wallets[client]
        metas = [
            AccountMeta(actor.pubkey(), True, False),
            AccountMeta(self.instance, False, False),
            AccountMeta(self.run.pubkey(), False, True),
        ]
        if name == "remove_unauthorized":
            self.set_authorized(arguments.pop("is_valid"))
            metas.append(AccountMeta(self.authorization, False, False))
        if name == "join_run":
            self.set_authorized(True)
            metas.insert(1, AccountMeta(Pubkey(bytes.fromhex(arguments.pop("p2p_key"))), True, False))
            metas.append(AccountMeta(self.authorization, False, False))
        data = _discriminate(name) + ENCODERS[name](**arguments)
        error = self._send([Instruction(self.program_id, data, metas)], actor, name)
        return None if error is None else ErrorCode(error).name

    def _send(self, instructions: list[Instruction], payer: Keypair, name: str = "") -> int | None:
        """Custom error code of the last instruction, or None. Signatures are empty: nobody checks."""
        message = Message([set_compute_unit_limit(1_400_000), *instructions], payer.pubkey())
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self.svm.send_transaction(Transaction.populate(message, signatures))
        if isinstance(result, TransactionMetadata):
            self.units[name] = max(self.units.get(name, 0), result.compute_units_consumed())
            self.logs = tuple(result.logs())
            return None
        error = result.err()
        code = getattr(getattr(error, "err", None), "code", None)
        assert isinstance(code, int), f"{name}: {error} {result.meta().logs()}"
        check_documented(instructions[-1], "coordinator", ErrorCode(code).name)
        return code


def _discriminate(name: str) -> bytes:
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]
