"""Drives the rule book through whole histories; histories.py makes random ones that reach every state.

An event is (name, arguments), the arguments being JSON values, so that the same history can be replayed on
the program and stored in vectors/. Clients are small numbers; their keys follow from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from history_accounts import Authorization, Bond, get_authorization_address

from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.bloom import Bloom
from psyche_py.coordinator.committee import (
    WITNESS_SALT,
    compute_elected,
    compute_role_seed,
    compute_shuffled_index,
    get_num_elected,
)
from psyche_py.coordinator.config import RunConfig, load_run_config
from psyche_py.coordinator.layout import (
    ClientState,
    RunState,
    make_record,
    set_bitmap,
    set_bytes,
)
from psyche_py.coordinator.state import AccountVersionError, CoordinatorAccount, Round, read_account
from psyche_py.coordinator.transition import CoordinatorError
from psyche_py.sim.rule_calls import START, START_SLOT, RuleCalls

Event = tuple[str, dict[str, Any]]
REPO = Path(__file__).resolve().parents[2]
RUN = Path(__file__).with_name("rulebook_run.toml")
OWNER_EVENTS = (
    "set_paused",
    "update",
    "update_client_version",
    "set_future_epoch_rates",
    "free_coordinator",
    "record_claim",
    "settle_debt",
)
"""Sent by the run's main authority; with ``client`` among the arguments, by that client instead."""
ROUND_STATES = (RunState.RoundTrain, RunState.RoundWitness)


def get_signer(client: int) -> bytes:
    """A client's wallet, where no real keypair is needed."""
    return hashlib.sha256(f"wallet {client}".encode()).digest()


def get_p2p_key(client: int, version: int = 0) -> bytes:
    """A client's mesh key; other versions stand for changed keys."""
    return hashlib.sha256(f"p2p {client} {version}".encode()).digest()


def get_hint(port: int, kind: int = 1) -> bytes:
    """Address hint of 127.0.0.1."""
    return (bytes([kind, 0]) + port.to_bytes(2, "little") + bytes([127, 0, 0, 1])).ljust(64, b"\0")


def get_slot_hash(slot: int) -> bytes:
    """The newest slot hash that a test's chain shows at ``slot``."""
    return hashlib.sha256(f"slot {slot}".encode()).digest()


def make_run_config(**changes: Any) -> RunConfig:
    """rulebook_run.toml with quick times; ``changes`` replace keys of [config]."""
    text = RUN.read_text()
    values = {
        "warmup_time": 20,
        "cooldown_time": 5,
        "epoch_time": 100,
        "max_round_train_time": 10,
        "round_witness_time": 3,
        "waiting_for_members_extra_time": 2,
        "init_min_clients": 2,
        "min_clients": 1,
        "witness_nodes": 0,
        "max_witness_contradictions": 16,
        "global_batch_size_start": 5,
        "global_batch_size_end": 17,
        "global_batch_size_warmup_tokens": 20_000,
        "cold_start_warmup_steps": 1,
        "total_steps": 500,
        **changes,
    }
    lines = []
    for line in text.splitlines():
        key = line.split(" = ")[0]
        lines.append(f"{key} = {values.pop(key)}" if key in values else line)
    assert not values, values
    return load_run_config("\n".join(lines))


class AccessError(Exception):
    """A refusal that is not the rule book's: accounts and signers are the program's to check."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass
class Driver(RuleCalls):
    """The rule book with a clock. ``apply`` returns the name of the error, or None."""

    account: CoordinatorAccount
    now: int = START
    slot: int = START_SLOT
    get_signer: Callable[[int], bytes] = get_signer
    log: list[Event] = field(default_factory=list)
    is_closed: bool = False
    old: bytes | None = None
    """The account's bytes while it is of an older version, which ``account`` cannot be."""
    authorizations: dict[int, Authorization] = field(default_factory=lambda: {0: Authorization()})
    bonds: dict[int, Bond] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """The account's bytes; none once it is closed."""
        return b"" if self.is_closed else self.old or self.account.to_bytes()

    @property
    def seed(self) -> int:
        """Seed of a tick right now."""
        return rules.compute_seed(self.now, self.slot, get_slot_hash(self.slot))

    def apply(self, name: str, **arguments: Any) -> str | None:
        """Make an event happen. A refused event leaves the account as it is."""
        self.log.append((name, arguments))
        if name == "advance":
            self.now += arguments["seconds"]
            self.slot += arguments["slots"]
            return None
        if name == "authorize":
            number = arguments["authorization"]
            self.authorizations[number] = Authorization(
                **{k: v for k, v in arguments.items() if k != "authorization"}
            )
            return None
        if name == "bond":
            self.bonds[arguments["bond"]] = Bond(**{k: v for k, v in arguments.items() if k != "bond"})
            return None
        before, arguments = self.account, dict(arguments)
        old = before.to_bytes()
        try:
            self._check_access(name, arguments)
            self.account = getattr(self, f"_{name}")(**arguments)
        except AccessError as error:
            return error.name
        except CoordinatorError as error:
            assert before.to_bytes() == old
            return error.code.name
        return None

    def _check_access(self, name: str, arguments: dict[str, Any]) -> None:
        """What the program checks of accounts and signers before any rule. Raises AccessError."""
        if name in ("init_coordinator", "plant"):
            return
        if arguments.pop("is_unsigned", False):
            raise AccessError("NotSigner")
        if self.is_closed:
            raise AccessError("WrongOwner")
        if name in OWNER_EVENTS and arguments.pop("client", None) is not None:
            raise AccessError("WrongAuthority")
        if self.old is not None and name != "migrate":
            raise AccessError("WrongVersion")

    def _init_coordinator(self, run_id: str, client_version: str) -> CoordinatorAccount:
        account = rules.process_init(run_id, "")
        if not self.is_closed:
            raise AccessError("AlreadyInitialized")
        account = rules.process_init(run_id, client_version)
        self.is_closed = False
        return account

    def _free_coordinator(self) -> CoordinatorAccount:
        if not self.account.is_halted:
            raise AccessError("CloseCoordinatorNotHalted")
        self.is_closed = True
        return self.account

    def _plant(self, offset: int, data: str) -> CoordinatorAccount:
        """Not an instruction: bytes put into the account, for states that play would take years to reach."""
        if self.is_closed:
            return self.account
        old, new = self.data, bytes.fromhex(data)
        planted = old[:offset] + new + old[offset + len(new) :]
        try:
            account = read_account(planted)
        except AccountVersionError:
            self.old = planted
            return self.account
        self.old = None
        return account

    def _migrate(self, client: int) -> CoordinatorAccount:
        account = rules.process_migrate(self.data)
        self.old = None
        return account

    def is_authorized(self, signer: bytes, authorization: int) -> bool:
        """What the authorization's account says now."""
        found = self.authorizations.get(authorization)
        if found is None or not found.active or 0 < found.expires <= self.now:
            return False
        named = [*found.delegates] if found.grantee is None else [found.grantee, *found.delegates]
        return found.grantee is None or signer in map(self.get_signer, named)

    @property
    def _time(self) -> dict[str, int]:
        return {"now": self.now, "seed": self.seed}

    def _join_run(
        self,
        client: int,
        p2p_key: str,
        address_hint: str,
        authorization: int = 0,
        bond: int | None = None,
    ) -> CoordinatorAccount:
        signer = self.get_signer(client)
        if not self.is_authorized(signer, authorization):
            raise AccessError("NotAuthorized")
        return rules.process_join(
            self.account,
            signer=signer,
            p2p_key=bytes.fromhex(p2p_key),
            address_hint=bytes.fromhex(address_hint),
            authorization=get_authorization_address(authorization),
            bond=self._get_bonded(client, bond),
            **self._time,
        )

    def _get_bonded(self, client: int, number: int | None) -> int:
        """What the program accepts of a bond's account as this client's."""
        bond = None if number is None else self.bonds.get(number)
        is_good = bond is not None and bond.flaw is None and bond.user == client
        return bond.amount if bond is not None and is_good else 0

    def _announce(self, client: int, address_hint: str) -> CoordinatorAccount:
        signer = self.get_signer(client)
        return rules.process_announce(self.account, signer=signer, address_hint=bytes.fromhex(address_hint))

    def _remove_unauthorized(self, client: int, entry: int, authorization: int) -> CoordinatorAccount:
        account = self.account
        is_known = entry < int(account.record["num_entries"])
        signer = account.record["entries"][entry]["signer"].tobytes() if is_known else b""
        return rules.process_remove_unauthorized(
            account,
            entry=entry,
            authorization=get_authorization_address(authorization),
            is_valid=is_known and self.is_authorized(signer, authorization),
            **self._time,
        )

    def _record_claim(self, user: int, points: int) -> CoordinatorAccount:
        return rules.process_record_claim(self.account, user=self.get_signer(user), points=points)

    def _leave_run(self, client: int) -> CoordinatorAccount:
        return rules.process_leave(self.account, signer=self.get_signer(client), **self._time)

    def _checkpoint(self, client: int, kind: int, repo: str, revision: str) -> CoordinatorAccount:
        return rules.process_checkpoint(
            self.account,
            signer=self.get_signer(client),
            kind=kind,
            repo=repo.encode().ljust(128, b"\0"),
            revision=revision.encode().ljust(64, b"\0"),
            **self._time,
        )

    def _update_client_version(self, client_version: str) -> CoordinatorAccount:
        return rules.process_update_client_version(self.account, client_version)

    # ---- for scripts --------------------------------------------------------------------------------

    def ok(self, name: str, **arguments: Any) -> None:
        """An event that must be accepted."""
        error = self.apply(name, **arguments)
        assert error is None, f"{name}: {error}"

    def wait(self, seconds: int) -> None:
        """Let time pass without a tick."""
        self.ok("advance", seconds=seconds, slots=2 * seconds)

    def tick_at_deadline(self) -> None:
        """Wait for the next deadline and tick; the deadline must be exact."""
        deadline = rules.compute_next_deadline(self.account)
        assert deadline is not None
        assert deadline == self.account.run_state_start or not rules.is_tick_due(self.account, deadline - 1)
        self.wait(max(deadline - self.now, 0))
        assert rules.is_tick_due(self.account, self.now)
        self.ok("tick")

    def join(self, *clients: int) -> None:
        """Clients enter for the next epoch."""
        for client in clients:
            self.ok("join_run", **make_join(client))

    def warm_up(self, clients: range | list[int]) -> None:
        """Start an epoch of these clients and have all of them report ready."""
        self.join(*clients)
        self.tick_at_deadline()
        assert self.account.run_state is RunState.Warmup
        for client in clients:
            index = self.account.find_epoch_client(self.get_signer(client))
            assert index is not None
            self.ok("warmup_witness", client=client, index=index)
        assert self.account.run_state is RunState.RoundTrain

    def attest(self, clients: list[int], missing: int = 0) -> None:
        """These clients attest, if elected, everybody of the previous round but the bits in ``missing``."""
        for client in clients:
            arguments = make_witness(self, client, missing=missing)
            if arguments is not None and self.account.run_state in ROUND_STATES:
                self.ok("witness", **arguments)


def make_driver(run_config: RunConfig | None = None, *, rate: int = 1000, **changes: Any) -> Driver:
    """A run of the tiny configuration, configured and resumed: WaitingForMembers."""
    run_config = run_config or make_run_config(**changes)
    driver = Driver(rules.process_init("run", "test"))
    driver.ok("update", config=run_config.config.to_bytes().hex(), model=run_config.model.to_bytes().hex())
    driver.ok("set_future_epoch_rates", earning_rate_total_shared=rate, slashing_rate_per_client=7)
    driver.ok("set_paused", paused=False)
    return driver


def make_join(client: int, version: int = 0, kind: int = 1) -> dict[str, Any]:
    """Arguments of join_run."""
    hint = get_hint(9000 + client, kind)
    return {"client": client, "p2p_key": get_p2p_key(client, version).hex(), "address_hint": hint.hex()}


def make_witness(driver: Driver, client: int, *, missing: int = 0) -> dict[str, Any] | None:
    """Arguments of an elected client's witness; None when it is not elected."""
    account = driver.account
    index = account.find_epoch_client(driver.get_signer(client))
    current, previous = account.current_round, account.previous_round
    if index is None or not current.elected >> index & 1:
        return None
    seen = previous.healthy & ~missing if previous is not None and not previous.apply_only else 0
    bloom = Bloom(current.random_seed)
    for number in range(seen.bit_count()):
        bloom.add(hashlib.sha256(bytes([current.height, number])).digest())
    return {
        "client": client,
        "index": index,
        "step": current.step,
        "participants": [seen >> 64 * i & (2**64 - 1) for i in range(4)],
        "broadcast_bloom": list(bloom.words),
        "broadcast_merkle": hashlib.sha256(b"merkle").hexdigest(),
        "state_digest": hashlib.sha256(f"state {account.step}".encode()).hexdigest(),
    }


def make_round_account(
    healthy: Collection[int], *, seed: int = 0, batch_size: int = 0, data_index: int = 0, **changes: Any
) -> CoordinatorAccount:
    """An account in the first round of an epoch, with these epoch clients Healthy out of 256."""
    record = make_record()
    record["config"] = make_run_config(**changes).config.to_record()
    record["run_state"], record["num_entries"] = RunState.RoundTrain, 256
    for client in range(256):
        set_bytes(record["entries"][client], "signer", get_signer(client))
    epoch = record["epoch_state"]
    epoch["num_clients"] = 256
    epoch["clients"]["entry"] = range(256)
    epoch["clients"]["state"] = ClientState.Withdrawn
    epoch["clients"]["state"][list(healthy)] = ClientState.Healthy
    current = epoch["rounds"][0]
    bits = sum(1 << index for index in healthy)
    set_bitmap(current, "healthy", bits)
    current["clients_len"], current["random_seed"] = bits.bit_count(), seed
    current["batch_size"], current["data_index"] = batch_size, data_index
    account = CoordinatorAccount(record)
    num_elected = get_num_elected(account, Round(current))
    set_bitmap(current, "elected", compute_elected(bits, num_elected, seed))
    return CoordinatorAccount(record)


def compute_witness_positions(round_: Round) -> list[int]:
    """Where the shuffle puts each Healthy client of a round, by the definition."""
    seed = compute_role_seed(round_.random_seed, WITNESS_SALT)
    num = round_.clients_len
    return [compute_shuffled_index(rank, num, seed) for rank in range(num)]


def count_healthy(account: CoordinatorAccount) -> int:
    """Healthy clients, counted the slow way."""
    return sum(client.state is ClientState.Healthy for client in account.epoch_clients)
