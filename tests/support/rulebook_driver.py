"""Drives the rule book through whole histories: scripted ones, and random ones that reach every state.

An event is (name, arguments), the arguments being JSON values, so that the same history can be replayed on
the program and stored in vectors/. Clients are small numbers; their keys follow from them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    CheckpointKind,
    ClientState,
    RunState,
    make_record,
    set_bitmap,
    set_bytes,
)
from psyche_py.coordinator.model import Metadata, Progress
from psyche_py.coordinator.state import CoordinatorAccount, Round
from psyche_py.coordinator.transition import CoordinatorError

Event = tuple[str, dict[str, Any]]
REPO = Path(__file__).resolve().parents[2]
START = 1_700_000_000
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
    """configs/tiny-cpu.toml with quick times; ``changes`` replace keys of [config]."""
    text = (REPO / "configs" / "tiny-cpu.toml").read_text()
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


@dataclass
class Driver:
    """The rule book with a clock. ``apply`` returns the name of the error, or None."""

    account: CoordinatorAccount
    now: int = START
    slot: int = 10
    get_signer: Callable[[int], bytes] = get_signer
    authorization: bytes = bytes(32)
    log: list[Event] = field(default_factory=list)

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
        before = self.account.to_bytes()
        try:
            self.account = getattr(self, f"_{name}")(**arguments)
        except CoordinatorError as error:
            assert self.account.to_bytes() == before
            return error.code.name
        return None

    @property
    def _time(self) -> dict[str, int]:
        return {"now": self.now, "seed": self.seed}

    def _tick(self) -> CoordinatorAccount:
        return rules.process_tick(self.account, **self._time)

    def _join_run(self, client: int, p2p_key: str, address_hint: str) -> CoordinatorAccount:
        return rules.process_join(
            self.account,
            signer=self.get_signer(client),
            p2p_key=bytes.fromhex(p2p_key),
            address_hint=bytes.fromhex(address_hint),
            authorization=self.authorization,
            **self._time,
        )

    def _leave_run(self, client: int) -> CoordinatorAccount:
        return rules.process_leave(self.account, signer=self.get_signer(client), **self._time)

    def _remove_unauthorized(self, client: int, entry: int, is_valid: bool) -> CoordinatorAccount:
        return rules.process_remove_unauthorized(
            self.account, entry=entry, authorization=self.authorization, is_valid=is_valid, **self._time
        )

    def _record_claim(self, user: int, points: int) -> CoordinatorAccount:
        return rules.process_record_claim(self.account, user=self.get_signer(user), points=points)

    def _warmup_witness(self, client: int, index: int) -> CoordinatorAccount:
        signer = self.get_signer(client)
        return rules.process_warmup_witness(self.account, signer=signer, index=index, **self._time)

    def _witness(self, client: int, **arguments: Any) -> CoordinatorAccount:
        for key in ("broadcast_merkle", "state_digest"):
            arguments[key] = bytes.fromhex(arguments[key])
        return rules.process_witness(self.account, signer=self.get_signer(client), **arguments, **self._time)

    def _health_check(self, client: int, index: int) -> CoordinatorAccount:
        signer = self.get_signer(client)
        return rules.process_health_check(self.account, signer=signer, index=index, **self._time)

    def _checkpoint(self, client: int, kind: int, repo: str, revision: str) -> CoordinatorAccount:
        return rules.process_checkpoint(
            self.account,
            signer=self.get_signer(client),
            kind=kind,
            repo=repo.encode().ljust(128, b"\0"),
            revision=revision.encode().ljust(64, b"\0"),
            **self._time,
        )

    def _set_paused(self, paused: bool) -> CoordinatorAccount:
        return rules.process_set_paused(self.account, paused, **self._time)

    def _update(self, **parts: str) -> CoordinatorAccount:
        return rules.process_update(
            self.account, **{name: bytes.fromhex(value) for name, value in parts.items()}
        )

    def _update_client_version(self, client_version: str) -> CoordinatorAccount:
        return rules.process_update_client_version(self.account, client_version)

    def _set_future_epoch_rates(self, **rates: int | None) -> CoordinatorAccount:
        return rules.process_set_future_epoch_rates(self.account, **rates)

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
    if index is None or index not in current.elected_indices:
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


# ---- random histories -------------------------------------------------------------------------------------


def generate_events(driver: Driver, rng: random.Random, num: int, num_clients: int) -> Iterator[Event]:
    """Yield ``num`` events that fit the driver's present state, mostly sensible, some wrong.

    The caller applies each to ``driver`` before asking for the next.
    """
    for _ in range(num):
        state = driver.account.run_state
        roll = rng.random()
        if roll < 0.22:
            yield _make_advance(driver, rng)
        elif roll < 0.42:
            yield "tick", {}
        elif roll < 0.47:
            yield _make_owner_event(driver, rng)
        elif roll < 0.53:
            yield _make_odd_event(driver, rng, num_clients)
        elif state in ROUND_STATES:
            yield _make_round_event(driver, rng, num_clients)
        elif state is RunState.Warmup:
            yield _make_warmup_witness(driver, rng, num_clients)
        elif state in (RunState.Uninitialized, RunState.Paused):
            yield _make_halted_event(driver, rng)
        else:
            yield "join_run", make_join(rng.randrange(num_clients))


def _make_advance(driver: Driver, rng: random.Random) -> Event:
    deadline = rules.compute_next_deadline(driver.account)
    seconds = rng.choice([0, 1, 1, 2, 3])
    if deadline is not None and deadline > driver.now and rng.random() < 0.5:
        seconds = deadline - driver.now - rng.choice([0, 0, 1])
    return "advance", {"seconds": seconds, "slots": rng.choice([1, 2, 5])}


def _make_owner_event(driver: Driver, rng: random.Random) -> Event:
    name = rng.choice(["set_paused", "set_paused", "rates", "update", "metadata", "version", "progress"])
    if name == "set_paused":
        return name, {"paused": driver.account.run_state is not RunState.Paused and rng.random() < 0.6}
    if name == "rates":
        rates = {
            "earning_rate_total_shared": rng.choice([None, 0, 1, 997, 10**12]),
            "slashing_rate_per_client": rng.choice([None, 3]),
        }
        return "set_future_epoch_rates", rates
    if name == "metadata":
        return "update", {"metadata": Metadata(name=f"run {rng.randrange(3)}").to_bytes().hex()}
    if name == "version":
        return "update_client_version", {"client_version": rng.choice(["", "0.1.0", "é" * 48, "v" * 97])}
    if name == "progress":
        step = rng.choice([0, 1, driver.account.step])
        index = rng.choice([driver.account.epoch_start_data_index, 12_345, 2**62, 2**62 + 1])
        progress = Progress(step, driver.account.epoch, index)
        return "update", {"progress": progress.to_bytes().hex()}
    return _make_config_update(rng)


def _make_config_update(rng: random.Random) -> Event:
    changes: dict[str, int] = {"min_clients": rng.choice([1, 1, 2])}
    changes["witness_nodes"] = rng.choice([0, changes["min_clients"]])
    changes["max_witness_contradictions"] = rng.choice([0, 1, 16])
    changes["epoch_time"] = rng.choice([30, 60, 100])
    changes["total_steps"] = rng.choice([12, 60, 500, 500])
    run_config = make_run_config(**changes)
    config, model = bytearray(run_config.config.to_bytes()), bytearray(run_config.model.to_bytes())
    if rng.random() < 0.3:  # break a byte somewhere; reserved bytes and texts may take anything
        part = rng.choice([config, model])
        part[rng.randrange(20 if part is model else 64)] ^= 1 << rng.randrange(8)
    parts = {"config": bytes(config).hex(), "model": bytes(model).hex()}
    if rng.random() < 0.3:
        del parts[rng.choice(list(parts))]
    return "update", parts


def _make_halted_event(driver: Driver, rng: random.Random) -> Event:
    if rng.random() < 0.5:
        return _make_config_update(rng)
    return "set_paused", {"paused": False}


def _make_warmup_witness(driver: Driver, rng: random.Random, num_clients: int) -> Event:
    client = rng.randrange(num_clients)
    index = driver.account.find_epoch_client(driver.get_signer(client))
    if index is None or rng.random() < 0.05:
        index = rng.choice([0, 1, 255, 256, 65535])
    return "warmup_witness", {"client": client, "index": index}


def _make_round_event(driver: Driver, rng: random.Random, num_clients: int) -> Event:
    client = rng.randrange(num_clients)
    if rng.random() < 0.12:
        return "health_check", {"client": client, "index": rng.randrange(num_clients + 1)}
    missing = 1 << rng.randrange(num_clients) if rng.random() < 0.25 else 0
    arguments = make_witness(driver, client, missing=missing)
    if arguments is None:
        return "witness", _make_witness_of_nobody(client)
    if rng.random() < 0.15:
        key = rng.choice(["index", "step", "participants"])
        if key == "participants":
            arguments[key][rng.randrange(4)] ^= 1 << rng.randrange(64)
        else:
            arguments[key] = rng.choice([0, 1, 2, 255, 256, 65535])
    return "witness", arguments


def _make_witness_of_nobody(client: int) -> dict[str, Any]:
    return {
        "client": client,
        "index": client,
        "step": 1,
        "participants": [0] * 4,
        "broadcast_bloom": [0] * 16,
        "broadcast_merkle": bytes(32).hex(),
        "state_digest": bytes(32).hex(),
    }


def _make_odd_event(driver: Driver, rng: random.Random, num_clients: int) -> Event:
    client = rng.randrange(num_clients + 1)  # the last one never joins by itself
    name = rng.choice(
        [
            "leave_run",
            "join_run",
            "checkpoint",
            "checkpoint",
            "health_check",
            "witness",
            "warm",
            "claim",
            "remove",
        ]
    )
    if name == "claim":
        earned = [0, *(entry.earned for entry in driver.account.entries)]
        points = rng.choice([0, 1, *earned, *(value + 1 for value in earned), 2**64 - 1])
        return "record_claim", {"user": client, "points": points}
    if name == "remove":
        return "remove_unauthorized", {
            "client": client,
            "entry": rng.choice([rng.randrange(num_clients), 255, 256, 65535]),
            "is_valid": rng.random() < 0.5,
        }
    if name == "leave_run":
        return name, {"client": client}
    if name == "join_run":
        return name, make_join(client, rng.randrange(2), rng.choice([0, 1, 2, 3, 4]))
    if name == "checkpoint":
        kind = rng.choice([CheckpointKind.Hub, CheckpointKind.Gcs, CheckpointKind.Local, 0, 7, 200])
        repo = rng.choice(["", "someone/model", "r" * 128])
        return name, {"client": client, "kind": int(kind), "repo": repo, "revision": rng.choice(["", "abc"])}
    if name == "health_check":
        return name, {"client": client, "index": rng.choice([0, 1, 255, 65535])}
    if name == "witness":
        return name, _make_witness_of_nobody(client)
    return "warmup_witness", {"client": client, "index": rng.randrange(num_clients)}


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
