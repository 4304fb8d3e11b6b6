"""What a run's owner does in a random history, what strangers try in the owner's place, and planted state."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from typing import Any

from rulebook_driver import OWNER_EVENTS, Driver, Event, make_run_config

from psyche_py.coordinator.config import RunConfig
from psyche_py.coordinator.layout import (
    COORDINATOR_ACCOUNT,
    CheckpointKind,
    ClientState,
    DataLocationKind,
    RunState,
)
from psyche_py.coordinator.model import Metadata, Progress

MAX_U16, MAX_U32, MAX_U64 = 2**16 - 1, 2**32 - 1, 2**64 - 1
RATES = (0, 1, 7, 997, 10**12, 2**63 + 1, MAX_U64)
SOURCES = (CheckpointKind.Hub, CheckpointKind.Gcs, CheckpointKind.Local, CheckpointKind.Config)


@lru_cache(maxsize=1)
def get_base() -> RunConfig:
    """rulebook_run.toml with quick times, read once."""
    return make_run_config()


def find_offset(*path: str | int) -> int:
    """Offset of a field of the account: names, and indices into arrays."""
    dtype, offset = COORDINATOR_ACCOUNT, 0
    for part in path:
        if isinstance(part, int):
            assert dtype.subdtype is not None
            dtype = dtype.subdtype[0]
            offset += part * dtype.itemsize
        else:
            assert dtype.fields is not None
            dtype, within = dtype.fields[part][:2]
            offset += within
    return offset


def make_plant(value: int, size: int, *path: str | int) -> Event:
    """Write ``value`` (``size`` bytes) into a field, for state that play would take years to reach."""
    return "plant", {"offset": find_offset(*path), "data": value.to_bytes(size, "little").hex()}


class OwnerEvents:
    """Makes the owner's events; a few of them are sent by a client instead, and must be refused."""

    def __init__(self, driver: Driver, rng: random.Random, num_clients: int, *, is_extreme: bool) -> None:
        self.driver = driver
        self.rng = rng
        self.num_clients = num_clients
        self.is_extreme = is_extreme

    def make_event(self) -> Event:
        """Anything, at any time."""
        makers = [self._make_pause] * 4 + [self._make_rates, self._make_metadata, self._make_version]
        makers += [self._make_progress, self.make_config, self.make_model]
        makers += [self._make_claim] * 3 + [self._make_authorize] * 3 + [self._make_settlement]
        if self.is_extreme:
            makers += [self._make_plant] * 2 + [self._make_free, self.make_init]
        name, arguments = self.rng.choice(makers)()
        if name in OWNER_EVENTS and self.rng.random() < 0.1:
            arguments["client"] = self.rng.randrange(self.num_clients)
        return name, arguments

    def make_halted_event(self) -> Event:
        """What lets a halted run go on."""
        if self.driver.account.run_state is RunState.Finished:
            return self._make_free() if self.rng.random() < 0.6 else self._make_metadata()
        roll = self.rng.random()
        if roll < 0.3:
            return self.make_config()
        if roll < 0.55:
            return self.make_model()
        if roll < 0.65:
            return self._make_rates()
        if roll < 0.7:
            return self._make_progress()
        return "set_paused", {"paused": False}

    def _make_free(self) -> Event:
        return "free_coordinator", {}

    def make_init(self) -> Event:
        """Begin anew, under another name if the account was closed; refused while the run exists."""
        run_id = self.rng.choice(["run", "run", "é" * 16, "r" * 33, "", "a\0b"])
        version = self.rng.choice(["test", "test", "", "v" * 97])
        return "init_coordinator", {"run_id": run_id, "client_version": version}

    def _make_pause(self) -> Event:
        is_paused = self.driver.account.run_state is RunState.Paused
        return "set_paused", {"paused": not is_paused and self.rng.random() < 0.7}

    def _make_rates(self) -> Event:
        choices = (None, *RATES) if self.is_extreme else (None, 0, 1, 997, 10**12)
        return "set_future_epoch_rates", {
            "earning_rate_total_shared": self.rng.choice(choices),
            "slashing_rate_per_client": self.rng.choice(choices),
        }

    def _make_metadata(self) -> Event:
        metadata = Metadata(name=f"run {self.rng.randrange(3)}", num_parameters=self.rng.choice([0, MAX_U64]))
        return "update", {"metadata": metadata.to_bytes().hex()}

    def _make_version(self) -> Event:
        versions = ["", "0.1.0", "é" * 48, "v" * 97]
        return "update_client_version", {"client_version": self.rng.choice(versions)}

    def _make_progress(self) -> Event:
        rng, account = self.rng, self.driver.account
        step = rng.choice([0, 1, account.step, max(account.config.total_steps - rng.randrange(6), 0)])
        index = rng.choice([account.epoch_start_data_index, 12_345, 2**62, 2**62 + 1])
        last = [MAX_U16 - 1, MAX_U16] if self.is_extreme else [1000]
        epoch = rng.choice([account.epoch, account.epoch, *last])
        return "update", {"progress": Progress(step, epoch, index).to_bytes().hex()}

    def make_config(self) -> Event:
        """A config that starts epochs of this many clients, or one at the edge of the rules."""
        rng = self.rng
        config = replace(get_base().config, **self._draw_config())
        data = bytearray(config.to_bytes())
        if rng.random() < 0.15:  # reserved bytes may take anything, everything else is a rule's
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        parts = {"config": bytes(data).hex()}
        if rng.random() < 0.3:
            parts |= self.make_model()[1]
        return "update", parts

    def _draw_config(self) -> dict[str, int]:
        rng = self.rng
        at_most = min(self.num_clients, 256)
        init = max(1, at_most - rng.choice([0, 0, 1, at_most // 2]))
        least = rng.choice([1, 1, 2, max(init - 1, 1), init])
        changes = {
            "init_min_clients": init,
            "min_clients": least,
            "witness_nodes": rng.choice([0, 0, 1, least, least + 1]),
            "epoch_time": rng.choice([30, 60, 100]),
            "total_steps": rng.choice([3, 4, 12, 60, 500, 500]),
            "max_witness_contradictions": rng.choice([0, 1, 3, 16, MAX_U16]),
            "verification_percent": rng.choice([0, 0, 1, 20, 50, 50]),
            "num_tie_breakers": rng.choice([1, 2, 3, 9]),
            "max_refusals": rng.choice([0, 1, 3, 255]),
            "required_bond": rng.choice([0, 0, 0, 0, 0, 0, 1, 10**6]),
        }
        if self.is_extreme and rng.random() < 0.25:
            changes |= rng.choice(EDGES)
        return changes

    def make_model(self) -> Event:
        """A model from one of the sources, sometimes broken."""
        rng = self.rng
        kind = rng.choice([*SOURCES, CheckpointKind.P2P, CheckpointKind.Dummy][: rng.choice([4, 4, 4, 6])])
        changes: dict[str, Any] = {"checkpoint_kind": kind}
        changes["checkpoint_origin"] = kind if rng.random() < 0.9 else CheckpointKind.Hub
        changes["cold_start_warmup_steps"] = rng.choice([0, 1, 3, 8])
        if rng.random() < 0.2:
            changes |= rng.choice(MODEL_EDGES)
        data = bytearray(replace(get_base().model, **changes).to_bytes())
        if rng.random() < 0.15:
            data[rng.choice([rng.randrange(20), rng.randrange(len(data))])] ^= 1 << rng.randrange(8)
        return "update", {"model": bytes(data).hex()}

    def _make_claim(self) -> Event:
        """The owner has paid somebody: all there was, less, or more than that."""
        rng = self.rng
        user = rng.choice(self._find_earners() or [rng.randrange(self.num_clients + 1)])
        number = self.driver.account.find_entry(self.driver.get_signer(user))
        claimable = 0 if number is None else self.driver.account.entries[number].claimable
        points = rng.choice([0, 1, claimable, claimable, claimable // 2, claimable + 1, MAX_U64])
        return "record_claim", {"user": user, "points": min(points, MAX_U64)}

    def _make_settlement(self) -> Event:
        """A bond has paid somebody's debt: all of it, less, or more than it is."""
        rng, entries = self.rng, self.driver.account.entries
        in_debt = {entry.signer: entry.debt for entry in entries if entry.debt}
        users = [user for user in range(self.num_clients) if self.driver.get_signer(user) in in_debt]
        user = rng.choice(users) if users else rng.randrange(self.num_clients + 1)
        debt = in_debt.get(self.driver.get_signer(user), 0)
        points = rng.choice([0, 1, debt, debt, debt // 2, debt + 1, MAX_U64])
        return "settle_debt", {"user": user, "points": min(points, MAX_U64)}

    def _find_earners(self) -> list[int]:
        """Wallets with points to claim, most of the time."""
        if self.rng.random() < 0.3:
            return []
        owed = {entry.signer for entry in self.driver.account.entries if entry.claimable}
        return [user for user in range(self.num_clients) if self.driver.get_signer(user) in owed]

    def open_run(self) -> Event:
        """The join authority lets everybody in again."""
        return "authorize", {
            "authorization": 0,
            "grantee": None,
            "active": True,
            "expires": 0,
            "delegates": [],
        }

    def _make_authorize(self) -> Event:
        """The join authority makes an authorization, switches it off, lets it expire, or closes it."""
        rng = self.rng
        anybody = rng.randrange(self.num_clients + 1)
        return "authorize", {
            "authorization": rng.choice([0, 1, 2]),
            "grantee": rng.choice([None, None, anybody]),
            "active": rng.random() < 0.7,
            "expires": rng.choice([0, 0, self.driver.now - 1, self.driver.now, self.driver.now + 20]),
            "delegates": rng.sample(range(self.num_clients + 1), rng.choice([0, 0, 1, 2])),
        }

    def _make_downgrade(self) -> Event:
        """The account as version 1 left it, but for what version 2 added, which `migrate` need not trust."""
        return make_plant(self.rng.choice([1, 1, 1, 0, 3]), 8, "version")

    def _make_plant(self) -> Event:
        """Verdicts, points and counters that play does not reach in an hour."""
        rng, account = self.rng, self.driver.account
        entry = rng.randrange(max(int(account.record["num_entries"]), 1))
        index = rng.randrange(max(int(account.record["epoch_state"]["num_clients"]), 1))
        points = rng.choice([0, 5, 10**9, MAX_U64 - 1, MAX_U64])
        if rng.random() < 0.2:
            return self._make_downgrade()
        client = ("epoch_state", "clients", index)
        rounds = rng.choice([0, 1, 1000, 2**31])
        return rng.choice(
            [
                make_plant(points, 8, "entries", entry, "slashed"),
                make_plant(points, 8, "entries", entry, "earned"),
                make_plant(points, 8, "entries", entry, "claimed"),
                make_plant(256, 2, "num_entries"),
                make_plant(rng.choice([1, 16, MAX_U16]), 2, *client, "contradictions"),
                make_plant(MAX_U16, 2, *client, "silent_rounds"),
                make_plant(255, 1, *client, "refusals"),
                make_plant(rounds, 4, *client, "attested_rounds"),
                make_plant(rng.choice(list(ClientState)), 1, *client, "state"),
                make_plant(rng.choice([MAX_U64, MAX_U64 - 2]), 8, "nonce"),
                make_plant(rng.getrandbits(32), 4, rng.choice(["model_step", "older_step"])),
                make_plant(rng.getrandbits(1), 8, "epoch_state", "older_digests"),
                make_plant(0, 16, "epoch_state", "older_digests"),
            ]
        )


EDGES: tuple[dict[str, int], ...] = (
    {"epoch_time": MAX_U64},
    {"epoch_time": MAX_U64, "warmup_time": MAX_U64 - 1},
    {"epoch_time": MAX_U64, "max_round_train_time": MAX_U64 - 1},
    {"epoch_time": 1, "warmup_time": 0, "max_round_train_time": 1},
    {"warmup_time": 0},
    {"round_witness_time": MAX_U64},
    {"cooldown_time": MAX_U64},
    {"total_steps": MAX_U32},
    {"global_batch_size_start": MAX_U16, "global_batch_size_end": MAX_U16},
    {
        "global_batch_size_start": 1,
        "global_batch_size_end": MAX_U16,
        "global_batch_size_warmup_tokens": MAX_U64,
    },
    {"global_batch_size_warmup_tokens": 1},
    {"waiting_for_members_extra_time": 255},
    {"witness_nodes": 33},
    {"init_min_clients": 257},
    {"verification_percent": 51},
    {"verification_percent": 1, "verified_tiles": 0},
    {"verification_percent": 1, "verified_tiles": 1024},
    {"verification_percent": 1, "verified_tiles": 1025},
    {"verification_percent": 1, "num_tie_breakers": 0},
    {"verification_percent": 1, "num_tie_breakers": 10},
    {"verification_percent": 0, "num_tie_breakers": 10, "verified_tiles": 0},
    {"required_bond": MAX_U64},
)
MODEL_EDGES: tuple[dict[str, Any], ...] = (
    {"max_seq_len": MAX_U32},
    {"max_seq_len": 0},
    {"cold_start_warmup_steps": MAX_U32},
    {"checkpoint_repo": "r" * 128},
    {"checkpoint_repo": ""},
    {"data_path": ""},
    {"data_path": "", "data_location_kind": DataLocationKind.Dummy},
    {"quantize_1bit": False},
    {"data_token_size": 3},
)
