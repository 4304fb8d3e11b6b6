"""Plays a rule-book history on the coordinator program in LiteSVM, without any of our chain code.

Instructions are encoded by hand from the contract's argument lists, so that this is a second opinion on the
IDL and on psyche_py.chain as well. Signatures are not checked here (the guards' tests do that), and no
transaction asks for compute units: everything must fit what a plain transaction gets.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from documented_errors import check_documented
from history_accounts import Authorization, Bond, get_authorization_address, get_bond_address
from rulebook_driver import OWNER_EVENTS, START, get_slot_hash
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

from psyche_py.coordinator.layout import ACCOUNT_SIZE, compute_account_discriminator
from psyche_py.coordinator.pda import ANYBODY, JOIN_SCOPE, get_instance_seeds

PACKAGE = Path(__file__).resolve().parents[2] / "psyche_py" / "chain"
SBPF_VERSION = int(os.environ.get("PSYCHE_SBPF_VERSION", "0"))
"""Format of the programs under test; `make test-newest` runs these tests in both."""
PROGRAM = PACKAGE / "programs" / ("v3" if SBPF_VERSION == 3 else "") / "coordinator.so"
SYSTEM = Pubkey.default()
REQUEST_UNITS = 150
"""What an instruction of the compute budget program costs itself."""
OWNER, RUN = 1_000_000, 1_000_001
"""Numbers of the owner's wallet and of the account's key."""
FUNDS, NOTHING = Account(10**15, b"", SYSTEM), Account(0, b"", SYSTEM)


@cache
def read_idl(name: str) -> Any:
    """A program's IDL."""
    return json.loads((PACKAGE / "idl" / f"{name}.json").read_text())


def read_program_id(name: str) -> Pubkey:
    """A program's id, from its IDL."""
    return Pubkey.from_string(read_idl(name)["metadata"]["address"])


@cache
def get_error_names(name: str) -> dict[int, str]:
    """Error names of a program by code, from its IDL."""
    return {error["code"]: error["name"] for error in read_idl(name)["errors"]}


def get_instruction_names(name: str) -> set[str]:
    """A program's instructions, from its IDL, as they are written in the crate."""
    names = [instruction["name"] for instruction in read_idl(name)["instructions"]]
    return {re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), camel) for camel in names}


def get_keypair(client: int) -> Keypair:
    """A client's wallet."""
    return Keypair.from_seed(hashlib.sha256(f"keypair {client}".encode()).digest())


@cache
def get_wallet(client: int) -> Pubkey:
    """The public half of a client's wallet."""
    return get_keypair(client).pubkey()


def get_program_signer(client: int) -> bytes:
    """The same as 32 bytes."""
    return bytes(get_wallet(client))


def _option(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    return b"\0" if value is None else b"\1" + encode(value)


def _string(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def _discriminate(name: str) -> bytes:
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]


ENCODERS: dict[str, Callable[..., bytes]] = {
    "tick": lambda: b"",
    "join_run": lambda address_hint: bytes.fromhex(address_hint),
    "leave_run": lambda: b"",
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
    "free_coordinator": lambda: b"",
    "record_claim": lambda user, points: get_program_signer(user) + _u64(points),
    "settle_debt": lambda user, points: get_program_signer(user) + _u64(points),
    "announce": lambda address_hint: bytes.fromhex(address_hint),
    "verdict": lambda index, trainer, height, reason, evidence_hash: (
        struct.pack("<HHIB", index, trainer, height, reason) + bytes.fromhex(evidence_hash)
    ),
    "vote": lambda index, evidence_hash, is_guilty: (
        struct.pack("<H", index) + bytes.fromhex(evidence_hash) + bytes([is_guilty])
    ),
    "remove_unauthorized": lambda entry: struct.pack("<H", entry),
    "migrate": lambda: b"",
}
DISCRIMINATORS = {name: _discriminate(name) for name in (*ENCODERS, "init_coordinator")}


def install_shipped(svm: Any, program_id: Pubkey) -> None:
    """The program that the package ships."""
    svm.add_program(program_id, PROGRAM.read_bytes())


class ProgramDriver:
    """One run on the program. ``apply`` mirrors Driver.apply and returns the error's name, or None."""

    def __init__(
        self,
        num_wallets: int = 257,
        install: Callable[[Any, Pubkey], None] | None = None,
        *,
        unit_limit: int | None = None,
    ) -> None:
        """``install(svm, program_id)`` puts the coordinator in place; the shipped one unless given.

        ``unit_limit`` is asked for with each transaction; None leaves it at what everybody gets.
        """
        builder: Any = LiteSVM()
        self.svm: Any = builder.with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        self.program_id = read_program_id("coordinator")
        (install or install_shipped)(self.svm, self.program_id)
        for client in (OWNER, *range(num_wallets)):
            self.svm.set_account(get_wallet(client), FUNDS)
        self.run = get_wallet(RUN)
        self.rent: int = self.svm.minimum_balance_for_rent_exemption(ACCOUNT_SIZE)
        self.units: dict[str, int] = {}
        """The dearest accepted transaction of each kind."""
        self.request = [] if unit_limit is None else [set_compute_unit_limit(unit_limit)]
        self.logs: list[str] = []
        """What the newest transaction logged."""
        self.instance = SYSTEM
        self.authorizations: set[int] = set()
        self.bonds: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """As if nothing had happened: a new run "run" at the start time."""
        for address in {self.instance, self.run} - {SYSTEM}:
            self.svm.set_account(address, NOTHING)
        for number in self.authorizations - {0}:
            self.svm.set_account(Pubkey(get_authorization_address(number)), NOTHING)
        for number in self.bonds:
            self.svm.set_account(Pubkey(get_bond_address(number)), NOTHING)
        self.authorizations, self.bonds = set(), set()
        self._authorize(0)
        self.now, self.slot = START, 10
        self._set_clock()
        assert self.apply("init_coordinator", run_id="run", client_version="test") is None

    def _set_clock(self) -> None:
        self.svm.set_clock(Clock(self.slot, 0, 0, 1, self.now))
        self.svm.set_slot_hashes([(self.slot, Hash(get_slot_hash(self.slot)))])

    def _authorize(self, authorization: int, **arguments: Any) -> None:
        """Put an authorization in place as the authorizer program would write it."""
        given = Authorization(**arguments)
        grantee = ANYBODY if given.grantee is None else get_program_signer(given.grantee)
        delegates = list(map(get_program_signer, given.delegates))
        self.put_authorization(authorization, grantee, delegates, active=given.active, expires=given.expires)

    def put_authorization(
        self, authorization: int, grantee: bytes, delegates: list[bytes], *, active: bool, expires: int
    ) -> None:
        """The same, by keys."""
        data = (
            compute_account_discriminator("Authorization")
            + b"\xff"
            + get_program_signer(OWNER)
            + grantee
            + struct.pack("<I", len(JOIN_SCOPE))
            + JOIN_SCOPE
            + struct.pack("<?I", active, len(delegates))
            + b"".join(delegates)
            + struct.pack("<qq", START, expires)
        )
        self.authorizations.add(authorization)
        address = Pubkey(get_authorization_address(authorization))
        self.svm.set_account(address, Account(10**9, data, read_program_id("authorizer")))

    def _bond(self, bond: int, **arguments: Any) -> None:
        """Put a bond in place as the treasurer would write it, or with a flaw."""
        given = Bond(**arguments)
        keys = {"run": get_wallet(OWNER), "user": get_wallet(given.user), "account": self.run}
        if given.flaw in keys:
            keys[given.flaw] = SYSTEM
        data = compute_account_discriminator("Participant" if given.flaw == "kind" else "Bond") + b"\xff"
        data += b"".join(map(bytes, keys.values())) + _u64(given.amount)
        data = data[: -1 if given.flaw == "short" else None]
        owner = read_program_id("coordinator" if given.flaw == "owner" else "treasurer")
        self.bonds.add(bond)
        self.svm.set_account(Pubkey(get_bond_address(bond)), Account(10**9, data, owner))

    def read(self) -> bytes:
        """The account's bytes; none once it is closed."""
        account = self.svm.get_account(self.run)
        return b"" if account is None else bytes(account.data)

    def apply(self, name: str, **arguments: Any) -> str | None:
        """Send the event as an instruction of its actor."""
        self.logs = []
        if name == "advance":
            self.now += arguments["seconds"]
            self.slot += arguments["slots"]
            self._set_clock()
            return None
        if name == "plant":
            return self._plant(**arguments)
        if name == "authorize":
            return self._authorize(**arguments)
        if name == "bond":
            return self._bond(**arguments)
        if name == "init_coordinator":
            return self._init_coordinator(**arguments)
        client = arguments.pop("client", OWNER if name in OWNER_EVENTS else 0)
        actor = get_wallet(client)
        metas = [
            AccountMeta(actor, True, False),
            AccountMeta(self.instance, False, False),
            AccountMeta(self.run, False, True),
        ]
        if name == "join_run":
            p2p_key = Pubkey(bytes.fromhex(arguments.pop("p2p_key")))
            metas.insert(1, AccountMeta(p2p_key, not arguments.pop("is_unsigned", False), False))
        if name in ("join_run", "remove_unauthorized"):
            address = get_authorization_address(arguments.pop("authorization", 0))
            metas.append(AccountMeta(Pubkey(address), False, False))
        if (bond := arguments.pop("bond", None)) is not None:
            metas.append(AccountMeta(Pubkey(get_bond_address(bond)), False, False))
        if name == "free_coordinator":
            metas = [
                metas[0],
                AccountMeta(actor, False, True),
                AccountMeta(self.instance, False, True),
                metas[2],
            ]
        data = DISCRIMINATORS[name] + ENCODERS[name](**arguments)
        return self._send([Instruction(self.program_id, data, metas)], actor, name)

    def _init_coordinator(self, run_id: str, client_version: str) -> str | None:
        owner = get_wallet(OWNER)
        instance = self._find_instance(run_id)
        data = (
            DISCRIMINATORS["init_coordinator"] + bytes(owner) * 2 + _string(run_id) + _string(client_version)
        )
        metas = [
            AccountMeta(owner, True, True),
            AccountMeta(instance, False, True),
            AccountMeta(self.run, True, True),
            AccountMeta(SYSTEM, False, False),
        ]
        instructions = [Instruction(self.program_id, data, metas)]
        if not self.read():
            create = CreateAccountParams(
                from_pubkey=owner,
                to_pubkey=self.run,
                lamports=self.rent,
                space=ACCOUNT_SIZE,
                owner=self.program_id,
            )
            instructions.insert(0, create_account(create))
        error = self._send(instructions, owner, "init_coordinator")
        if error is None:
            self.instance = instance
        return error

    def _find_instance(self, run_id: str) -> Pubkey:
        if len(run_id.encode()) > 32:  # no seed is longer, so there is no such address
            return self.instance
        return Pubkey.find_program_address(get_instance_seeds(run_id), self.program_id)[0]

    def put(self, data: bytes) -> None:
        """Give the account other bytes."""
        self.svm.set_account(self.run, Account(self.rent, data, self.program_id))

    def _plant(self, offset: int, data: str) -> None:
        old, new = self.svm.get_account(self.run), bytes.fromhex(data)
        if old is not None and old.data:
            self.put(bytes(old.data[:offset]) + new + bytes(old.data[offset + len(new) :]))

    def _send(self, instructions: list[Instruction], payer: Pubkey, name: str) -> str | None:
        """Name of the last instruction's custom error, or None."""
        message = Message([*self.request, *instructions], payer)
        signatures = [Signature.default()] * message.header.num_required_signatures
        result = self.svm.send_transaction(Transaction.populate(message, signatures))
        if isinstance(result, TransactionMetadata):
            units = result.compute_units_consumed() - REQUEST_UNITS * len(self.request)
            self.units[name] = max(self.units.get(name, 0), units)
            self.logs = result.logs()
            return None
        error = result.err()
        code = getattr(getattr(error, "err", None), "code", None)
        assert isinstance(code, int), f"{name}: {error} {result.meta().logs()}"
        error_name = get_error_names("coordinator")[code]
        check_documented(instructions[-1], "coordinator", error_name)
        return error_name
