"""The three programs in LiteSVM, driven through their IDLs, for the tests of the programs themselves.

``ProgramChain`` is the chain: clock, wallets, sending. ``RunHarness`` is one run owned by one wallet, with a
method for each thing that people do to it. Unlike program_driver.py this goes through psyche_py.chain.anchor,
so that the IDL is tested as well.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from documented_errors import check_documented
from solders.clock import Clock
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, create_account
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from psyche_py.chain.anchor import find_program, get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_program
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization, find_instance
from psyche_py.coordinator.layout import (
    ACCOUNT_SIZE,
    Architecture,
    CheckpointKind,
    DataLocationKind,
    DataType,
    LrScheduleKind,
    OptimizerKind,
    RunState,
)
from psyche_py.coordinator.model import CoordinatorConfig, Model
from psyche_py.coordinator.state import CoordinatorAccount, EpochClient, read_account

START = 1_700_000_000
SBPF_VERSION = int(os.environ.get("PSYCHE_SBPF_VERSION", "0"))
"""Format of the programs under test; `make test-newest` runs these tests in both."""
ANYBODY = Pubkey.default()
NO_HINT = bytes(64)


class Refused(Exception):
    """A program refused an instruction with a custom error; anything else fails the test at once."""

    def __init__(self, name: str, logs: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.logs = logs


@contextmanager
def refused(name: str) -> Iterator[None]:
    """The block must be refused with the error of this name."""
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.name == name, caught.value.logs


class ProgramChain:
    """LiteSVM with our programs, a clock that only moves when told, and funded wallets."""

    def __init__(self) -> None:
        builder: Any = LiteSVM()
        self.svm: Any = builder.with_blockhash_check(False).with_transaction_history(0)
        for name in PROGRAM_NAMES:
            self.svm.add_program(get_program_id(name), read_program(name, SBPF_VERSION))
        self.now, self.slot = START, 100
        self.units = 0
        """Compute units of the newest transaction."""
        self.logs: tuple[str, ...] = ()
        """Its log."""
        self._set_clock()

    def _set_clock(self) -> None:
        self.svm.set_clock(Clock(self.slot, 0, 0, 1, self.now))
        self.svm.set_slot_hashes([(self.slot, Hash(self.get_slot_hash()))])

    def get_slot_hash(self) -> bytes:
        """The newest entry of the SlotHashes sysvar."""
        return hashlib.sha256(f"slot {self.slot}".encode()).digest()

    def advance(self, seconds: int) -> None:
        """Let time pass."""
        self.now += seconds
        self.slot += max(1, 2 * seconds)
        self._set_clock()

    def make_wallet(self, name: str) -> Keypair:
        """A funded wallet that follows from its name."""
        wallet = Keypair.from_seed(hashlib.sha256(name.encode()).digest())
        if not self.svm.get_balance(wallet.pubkey()):
            self.svm.airdrop(wallet.pubkey(), 10**11)
        return wallet

    def send(self, instructions: Sequence[Instruction], signers: Sequence[Keypair]) -> None:
        """Send a transaction that the first signer pays for. Raises Refused."""
        budgeted = [set_compute_unit_limit(1_400_000), *instructions]
        message = Message(budgeted, signers[0].pubkey())
        result = self.svm.send_transaction(Transaction(list(signers), message, Hash.default()))
        if not isinstance(result, FailedTransactionMetadata):
            self.units = result.compute_units_consumed()
            self.logs = tuple(result.logs())
            return
        logs = result.meta().logs()
        code = getattr(getattr(result.err(), "err", None), "code", None)
        failed = [line.split()[1] for line in logs if " failed: " in line]
        program = find_program(failed[0]) if failed else None
        if code is None or program is None:
            pytest.fail(f"{result.err()} {logs}")
        name = program.errors[code].name
        check_documented(budgeted[result.err().index], program.name, name)
        raise Refused(name, logs)

    def get_data(self, pubkey: Pubkey) -> bytes | None:
        """An account's data; None when there is no account."""
        account = self.svm.get_account(pubkey)
        return None if account is None or not account.lamports else bytes(account.data)

    def make_account(self, payer: Keypair, new: Keypair, space: int, owner: Pubkey) -> Instruction:
        """System create_account, exempt from rent."""
        return create_account(
            CreateAccountParams(
                from_pubkey=payer.pubkey(),
                to_pubkey=new.pubkey(),
                lamports=self.svm.minimum_balance_for_rent_exemption(space),
                space=space,
                owner=owner,
            )
        )

    def authorize(
        self, grantor: Keypair, grantee: Pubkey, *, active: bool = True, expires: int = 0
    ) -> Pubkey:
        """An authorization to join runs of ``grantor``; returns its address."""
        authorizer = get_program("authorizer")
        address = find_authorization(grantor.pubkey(), grantee)
        accounts = {"grantor": grantor.pubkey(), "authorization": address}
        create = authorizer.encode(
            "authorization_create",
            {**accounts, "payer": grantor.pubkey(), "system_program": SYSTEM_PROGRAM},
            {"grantee": grantee, "scope": b"CoordinatorJoinRun"},
        )
        args = {"active": active, "expires_unix_timestamp": expires}
        update = authorizer.encode("authorization_grantor_update", accounts, args)
        self.send([create, update], [grantor])
        return address


def make_config(**changes: int) -> CoordinatorConfig:
    """Short round numbers, so that a test can count seconds."""
    values = {
        "warmup_time": 30,
        "cooldown_time": 10,
        "max_round_train_time": 20,
        "round_witness_time": 5,
        "epoch_time": 100,
        "total_steps": 1000,
        "init_min_clients": 2,
        "min_clients": 2,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "waiting_for_members_extra_time": 3,
    }
    return CoordinatorConfig(**{**values, **changes})


def make_model(**changes: Any) -> Model:
    """A model that passes every check."""
    values: dict[str, Any] = {
        "architecture": Architecture.HfLlama,
        "data_type": DataType.Pretraining,
        "checkpoint_kind": CheckpointKind.Hub,
        "checkpoint_origin": CheckpointKind.Hub,
        "data_location_kind": DataLocationKind.Local,
        "lr_schedule_kind": LrScheduleKind.Constant,
        "optimizer_kind": OptimizerKind.Distro,
        "max_seq_len": 128,
        "checkpoint_repo": "someone/model",
        "data_path": "data",
        "lr_base": 4e-4,
        # as in runs made before there was a choice, whose bytes are in vectors/
        "step_levels": 0,
        "lr_outside_momentum": False,
        "vocab_lr_scale": 0.0,
    }
    return Model(**{**values, **changes})


def make_p2p_key(user: Keypair, version: int = 0) -> Keypair:
    """A p2p key that follows from a wallet; other versions stand for changed keys."""
    return Keypair.from_seed(hashlib.sha256(bytes(user.pubkey()) + bytes([version])).digest())


class RunHarness:
    """One run, owned by the wallet "owner" without the treasurer, joined through "everybody may"."""

    def __init__(self, chain: ProgramChain, run_id: str = "run") -> None:
        self.chain = chain
        self.run_id = run_id
        self.owner = chain.make_wallet("owner")
        self.account_key = Keypair.from_seed(hashlib.sha256(f"account {run_id}".encode()).digest())
        self.address = self.account_key.pubkey()
        self.instance = find_instance(run_id)
        self.authorization = find_authorization(self.owner.pubkey(), ANYBODY)
        self.wallets: list[Keypair] = []

    # ---- owner --------------------------------------------------------------------------------------------

    def create(self, **changes: Any) -> None:
        """Allocate and initialise the account; ``changes`` replace arguments or the account's ``space``."""
        space = changes.pop("space", ACCOUNT_SIZE)
        owner = changes.pop("program", get_program_id("coordinator"))
        allocate = self.chain.make_account(self.owner, self.account_key, space, owner)
        args = {
            "main_authority": self.owner.pubkey(),
            "join_authority": self.owner.pubkey(),
            "run_id": self.run_id,
            "client_version": "test",
            **changes,
        }
        init = get_program("coordinator").encode(
            "init_coordinator",
            {
                "payer": self.owner.pubkey(),
                "instance": self.instance,
                "coordinator_account": self.address,
                "system_program": SYSTEM_PROGRAM,
            },
            args,
        )
        self.chain.send([allocate, init], [self.owner, self.account_key])

    def own(self, name: str, signer: Keypair | None = None, **args: Any) -> None:
        """An owner's instruction."""
        signer = signer or self.owner
        accounts = {
            "authority": signer.pubkey(),
            "instance": self.instance,
            "coordinator_account": self.address,
        }
        if name == "free_coordinator":
            accounts["spill"] = self.owner.pubkey()
        self.chain.send([get_program("coordinator").encode(name, accounts, args)], [signer])

    def update(self, **parts: bytes | None) -> None:
        """The update instruction; parts left out are absent."""
        args: dict[str, Any] = dict.fromkeys(("metadata", "config", "model", "progress"))
        self.own("update", **{**args, **parts})

    def open(self, num_clients: int, *, rate: int = 0, **config: int) -> None:
        """Create, configure, resume, and let ``num_clients`` wallets join."""
        self.create()
        self.update(config=make_config(**config).to_bytes())
        self.update(model=make_model().to_bytes())
        self.own("set_future_epoch_rates", earning_rate_total_shared=rate, slashing_rate_per_client=None)
        self.own("set_paused", paused=False)
        if self.chain.get_data(self.authorization) is None:
            self.chain.authorize(self.owner, ANYBODY)
        self.wallets = [self.chain.make_wallet(f"client {i}") for i in range(num_clients)]
        self.join_all()

    # ---- clients ------------------------------------------------------------------------------------------

    def encode(self, name: str, user: Keypair, **args: Any) -> Instruction:
        """An instruction that anybody may send; join_run and remove_unauthorized name further accounts."""
        accounts = {
            "user": user.pubkey(),
            "instance": self.instance,
            "coordinator_account": self.address,
        }
        if name in ("join_run", "remove_unauthorized"):
            accounts["authorization"] = args.pop("authorization", self.authorization)
        if name == "join_run":
            accounts["p2p"] = args.pop("p2p").pubkey()
            if "bond" in args:
                accounts["bond"] = args.pop("bond")
        return get_program("coordinator").encode(name, accounts, args)

    def act(self, name: str, user: Keypair, **args: Any) -> None:
        """Send it."""
        more = [args["p2p"]] if "p2p" in args else []
        self.chain.send([self.encode(name, user, **args)], [user, *more])

    def join(self, user: Keypair, *, p2p: Keypair | None = None, **args: Any) -> None:
        """Join, with a p2p key that follows from the wallet unless one is given."""
        self.act("join_run", user, p2p=p2p or make_p2p_key(user), **{"address_hint": NO_HINT, **args})

    def join_all(self) -> None:
        """Every wallet enters for the next epoch."""
        for wallet in self.wallets:
            self.join(wallet)

    def tick(self, seconds: int = 0) -> None:
        """Let time pass, then tick."""
        self.chain.advance(seconds)
        self.act("tick", self.owner)

    def start_training(self) -> None:
        """From WaitingForMembers to the first round, every client ready."""
        self.tick(4)
        account = self.account
        assert account.run_state is RunState.Warmup
        for client in account.epoch_clients:
            self.act("warmup_witness", self.get_wallet(client), index=client.index)
        assert self.state is RunState.RoundTrain

    def get_wallet(self, client: EpochClient) -> Keypair:
        """The wallet of an epoch client."""
        return next(wallet for wallet in self.wallets if bytes(wallet.pubkey()) == client.signer)

    def find_client(self, wallet: Keypair) -> EpochClient:
        """The epoch client of a wallet."""
        index = self.account.find_epoch_client(bytes(wallet.pubkey()))
        assert index is not None
        return self.account.epoch_clients[index]

    def get_elected(self) -> list[EpochClient]:
        """Elected witnesses of the current round."""
        account = self.account
        return [account.epoch_clients[index] for index in account.current_round.elected_indices]

    def make_witness(
        self, client: EpochClient, seen: Sequence[int] | None = None, **args: Any
    ) -> dict[str, Any]:
        """Arguments of a right witness of ``client`` that saw the epoch clients ``seen`` (None: all)."""
        account = self.account
        previous = account.previous_round
        bits = 0
        if previous is not None and not previous.apply_only:
            indices = previous.healthy_indices if seen is None else seen
            bits = sum(1 << index for index in indices)
        values: dict[str, Any] = {
            "index": client.index,
            "step": account.step,
            "participants": list(struct.unpack("<4Q", bits.to_bytes(32, "little"))),
            "broadcast_bloom": [0] * 16,
            "broadcast_merkle": bytes(32),
            "state_digest": bytes(32),
            "metadata": struct.pack("<4f", 1.0, 2.0, 3.0, 4.0),
        }
        return {**values, **args}

    def witness(self, client: EpochClient, seen: Sequence[int] | None = None, **args: Any) -> None:
        """Send a witness."""
        self.act("witness", self.get_wallet(client), **self.make_witness(client, seen, **args))

    def play_round(self, seen: Sequence[int] | None = None) -> None:
        """Every elected witness that is still Healthy attests; at least a second passes."""
        self.chain.advance(1)
        for client in self.get_elected():
            if self.account.epoch_clients[client.index].state == 0:
                self.witness(client, seen)

    @property
    def account(self) -> CoordinatorAccount:
        """The account as it is now."""
        data = self.chain.get_data(self.address)
        assert data is not None
        return read_account(data)

    @property
    def state(self) -> RunState:
        """The run state as it is now."""
        return self.account.run_state
