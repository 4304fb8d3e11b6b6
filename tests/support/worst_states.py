"""Coordinator accounts at full size, built from knobs that a search may turn to find what costs most.

A knob is a name and its choices; a setting has one choice for each. The states are what years of play and
256 clients could leave behind, lies included, so a maximum over them bounds what anybody can ever meet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from history_accounts import get_authorization_address
from owner_events import MAX_U16, MAX_U32, MAX_U64, get_base
from program_driver import get_program_signer
from rulebook_driver import START, get_p2p_key

from psyche_py.coordinator.layout import (
    GUILTY_BIT,
    MAX_CLIENTS,
    MAX_TIE_BREAKER_SEATS,
    MAX_WITNESSES,
    CheckpointKind,
    ClientState,
    DisputeState,
    Record,
    RunState,
    get_bit_indices,
    get_bitmap,
    make_record,
    set_bitmap,
    set_bytes,
)
from psyche_py.coordinator.views import get_current_round

Setting = dict[str, Any]
Knobs = dict[str, tuple[Any, ...]]
NOW = START + 10**6
ALL = 2**MAX_CLIENTS - 1
ODD = int("55" * 32, 16)
NEXT_ACTIVE = 7

STATES = (RunState.RoundTrain, RunState.RoundWitness, RunState.Warmup, RunState.Cooldown)
STATES += (RunState.WaitingForMembers, RunState.Paused, RunState.Uninitialized, RunState.Finished)
STATE_KNOBS: Knobs = {
    "run_state": STATES,
    "is_timed_out": (True, False),
    "num_entries": (256, 255),
    "num_clients": (256, 255, 33, 1),
    "is_reversed": (False, True),
    "client_states": ("healthy", "dropped", "alternating", "half", "last healthy", "ejected", "random"),
    "round_healthy": ("all", "all but one", "alternating", "random", "33"),
    "num_witnesses": (31, 32, 30, 21, 0),
    "previous_witnesses": (32, 31, 21, 0),
    "participants": ("all", "none", "alternating", "random", "each misses one", "two camps"),
    "height": (3, 2, 1, 0, 1000),
    "head": (0, 3),
    "first_round": (0, 1),
    "previous_apply_only": (0, 1),
    "last_step": (0, 1, MAX_U32),
    "pending_pause": (0, 1),
    "step": (9, 4, 1000),
    "epoch_time": (10**9, 50),
    "witness_nodes": (0, 32, 31, 1),
    "min_clients": (1, 256),
    "max_witness_contradictions": (0, 16, MAX_U16),
    "contradictions": (0, 16, MAX_U16),
    "silent_rounds": (0, MAX_U16),
    "attested": ("random", "zero", "one", "equal", "rising", "falling", "large", "few"),
    "rate": (2**63 + 12_345, MAX_U64, 255, 1, 0, 10**12 + 7),
    "earned": (0, MAX_U64, 1),
    "slashed": (0, MAX_U64),
    "active": ("all", "none", "alternating"),
    "disputes": ("waiting", "expiring", "judged", "settled", "none"),
    "votes": (8, 0),
    "reason": (1, 2),
    "verification_percent": (50, 1, 0),
    "seats": (11, 0),
    "required_bond": (1, 0),
    "last_epoch": (MAX_U16, 0),
    "checkpoint_kind": (CheckpointKind.P2P, CheckpointKind.P2PGcs, CheckpointKind.Hub, CheckpointKind.Gcs),
    "warmup_ready": ("all but the sender", "all", "none"),
    "warmup_tokens": (MAX_U64, 0, 7),
    "data_index": (2**62, 0),
    "keys": ("alike", "usual"),
    "slot": tuple(range(10, 30)),
}

STARTS: tuple[Setting, ...] = (
    {"run_state": RunState.RoundWitness, "num_witnesses": 32},
    {"run_state": RunState.RoundWitness, "num_witnesses": 32, "disputes": "expiring", "height": 1000},
    {"run_state": RunState.RoundTrain, "disputes": "judged", "is_timed_out": False},
    {"run_state": RunState.RoundWitness, "num_witnesses": 31},
    {"run_state": RunState.RoundTrain, "num_witnesses": 31},
    {"run_state": RunState.Warmup},
    {"run_state": RunState.Cooldown},
    {"run_state": RunState.WaitingForMembers},
    {"run_state": RunState.Paused},
)
"""The transitions, where time or the last witness makes them."""


def make_account(setting: Setting) -> Record:
    """The account's record; ``setting`` has a choice for every knob of STATE_KNOBS and ``sender``."""
    record, rng = make_record(), random.Random(1)
    _fill_head(record, setting)
    _fill_entries(record, setting)
    _fill_clients(record, setting, rng)
    _fill_rounds(record, setting, rng)
    fill_disputes(record, setting)
    return record


def _fill_head(record: Record, s: Setting) -> None:
    base = get_base()
    config = replace(
        base.config,
        epoch_time=s["epoch_time"],
        init_min_clients=256,
        min_clients=s["min_clients"],
        witness_nodes=min(s["witness_nodes"], s["min_clients"]) if s["witness_nodes"] else 0,
        total_steps=1002,
        global_batch_size_start=1,
        global_batch_size_end=MAX_U16,
        global_batch_size_warmup_tokens=s["warmup_tokens"],
        max_witness_contradictions=s["max_witness_contradictions"],
        verification_percent=s["verification_percent"],
        max_refusals=0,
        required_bond=s["required_bond"],
    )
    model = replace(base.model, checkpoint_kind=s["checkpoint_kind"], max_seq_len=MAX_U32)
    record["config"], record["model"] = config.to_record(), model.to_record()
    set_bytes(record, "run_id", b"run".ljust(32, b"\0"))
    record["nonce"] = 1
    record["run_state"] = s["run_state"]
    record["pending_pause"] = s["pending_pause"]
    record["run_state_start_unix_timestamp"] = NOW - 1000 if s["is_timed_out"] else NOW
    record["progress"]["step"], record["progress"]["epoch_start_data_index"] = s["step"], s["data_index"]
    record["next_active"] = NEXT_ACTIVE
    for rates in ("current_rates", "future_rates"):
        record[rates]["earning_rate_total_shared"] = s["rate"]
        record[rates]["slashing_rate_per_client"] = MAX_U64


def _make_column(make: Callable[[int], bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(map(make, range(MAX_CLIENTS))), np.uint8).reshape(MAX_CLIENTS, -1)


def make_alike(key: bytes, num: int) -> npt.NDArray[np.uint8]:
    """Keys that differ from ``key`` in the last byte only."""
    keys = np.tile(np.frombuffer(key, np.uint8), (num, 1))
    keys[:, 31] ^= 1 + (np.arange(num) % 255).astype(np.uint8)
    return keys


SIGNERS, P2P_KEYS = _make_column(get_program_signer), _make_column(get_p2p_key)


def _fill_entries(record: Record, s: Setting) -> None:
    record["num_entries"] = s["num_entries"]
    entries = record["entries"]
    entries["signer"], entries["p2p_key"] = SIGNERS, P2P_KEYS
    if s["keys"] == "alike":  # keys that take longest to tell from the sender's
        sender = min(s["sender"], s["num_entries"] - 1)
        for name, known in (("signer", SIGNERS[sender]), ("p2p_key", P2P_KEYS[sender])):
            entries[name] = make_alike(known.tobytes(), MAX_CLIENTS)
            entries[name][sender] = known
    entries["authorization"] = np.frombuffer(get_authorization_address(0)[:24], np.uint8)
    entries["earned"], entries["slashed"], entries["last_epoch"] = s["earned"], s["slashed"], s["last_epoch"]
    numbers = np.arange(MAX_CLIENTS)
    pattern = {"all": numbers >= 0, "none": numbers < 0, "alternating": numbers % 2 == 0}[s["active"]]
    entries["active"] = np.where(pattern, NEXT_ACTIVE, 1)


def _fill_clients(record: Record, s: Setting, rng: random.Random) -> None:
    epoch, num, numbers = (
        record["epoch_state"],
        min(s["num_clients"], s["num_entries"]),
        np.arange(MAX_CLIENTS),
    )
    epoch["num_clients"] = num
    clients = epoch["clients"]
    clients["entry"][:num] = numbers[:num][::-1] if s["is_reversed"] else numbers[:num]
    dropped, ejected = int(ClientState.Dropped), int(ClientState.Ejected)
    clients["state"] = {
        "healthy": numbers * 0,
        "dropped": numbers * 0 + dropped,
        "alternating": numbers % 2 * dropped,
        "half": np.where(numbers < 128, dropped, 0),
        "last healthy": np.where(numbers < num - 1, dropped, 0),
        "ejected": numbers * 0 + ejected,
        "random": np.array([rng.randrange(4) for _ in numbers]),
    }[s["client_states"]]
    randoms = np.array([rng.randrange(2**24) for _ in numbers])
    clients["attested_rounds"] = {
        "random": randoms,
        "zero": numbers * 0,
        "one": numbers * 0 + 1,
        "equal": numbers * 0 + 1_000_003,
        "rising": numbers * 65_537 + 1,
        "falling": (MAX_CLIENTS - numbers) * 65_537,
        "large": randoms + 2**31,
        "few": np.where(numbers % 17 == 0, randoms, 0),
    }[s["attested"]]
    clients["contradictions"], clients["silent_rounds"] = s["contradictions"], s["silent_rounds"]
    epoch["first_round"], epoch["last_step"] = s["first_round"], s["last_step"]
    epoch["start_timestamp"] = NOW - 100
    ready = {"all": ALL, "none": 0, "all but the sender": ALL & ~(1 << find_index(s))}[s["warmup_ready"]]
    set_bitmap(epoch, "warmup_ready", ready)


def find_index(s: Setting) -> int:
    """Epoch client index of the sender."""
    num = min(s["num_clients"], s["num_entries"])
    sender = min(s["sender"], num - 1)
    return num - 1 - sender if s["is_reversed"] else sender


def _make_healthy(s: Setting, rng: random.Random) -> int:
    num = min(s["num_clients"], s["num_entries"])
    bits = {
        "all": ALL,
        "all but one": ALL & ~2,
        "alternating": ODD,
        "random": rng.getrandbits(MAX_CLIENTS),
        "33": 2**33 - 1,
    }[s["round_healthy"]]
    return (bits & (2**num - 1)) | 1 << find_index(s)


def _fill_rounds(record: Record, s: Setting, rng: random.Random) -> None:
    epoch = record["epoch_state"]
    epoch["rounds_head"] = s["head"]
    healthy = _make_healthy(s, rng)
    for back in range(4):
        round_ = epoch["rounds"][(s["head"] - back) % 4]
        round_["height"] = max(s["height"] - back, 0)
        round_["clients_len"] = healthy.bit_count()
        set_bitmap(round_, "healthy", healthy)
        round_["data_index"], round_["batch_size"] = s["data_index"], MAX_U16
        round_["apply_only"] = s["previous_apply_only"]
        round_["tie_breaker_tasks"] = s["seats"]
        _fill_witnesses(round_, s, healthy, s["num_witnesses"] if back == 0 else s["previous_witnesses"], rng)


def fill_disputes(record: Record, s: Setting) -> None:
    """As many as there is room for, the sender being a party of none."""
    num, sender = min(s["num_clients"], s["num_entries"]), find_index(s)
    if s["disputes"] == "none" or num < MAX_TIE_BREAKER_SEATS + 2:
        return
    others = [index for index in range(num) if index != sender]
    for slot, d in enumerate(record["disputes"]):
        set_bytes(d, "evidence_hash", bytes([slot + 1] * 32))
        d["accuser"], d["trainer"] = others[-1], others[-2]
        d["state"] = DisputeState.Undecided if s["disputes"] == "settled" else DisputeState.Open
        d["reason"], d["tie_breakers"], d["num_votes"] = s["reason"], 9, s["votes"]
        # five on one side, three on the other: one more decides
        d["votes"][:8] = [index | (GUILTY_BIT if place < 5 else 0) for place, index in enumerate(others[:8])]
        judged = {"expiring": s["height"] - 3, "judged": s["height"]}.get(s["disputes"], 0)
        d["judge_height"] = max(judged, 0)


def _fill_witnesses(round_: Record, s: Setting, healthy: int, num: int, rng: random.Random) -> None:
    """Elected are the sender and the last of the Healthy; the stored ones are the others."""
    num_elected = min(s["witness_nodes"] or MAX_WITNESSES, healthy.bit_count())
    others = [index for index in get_bit_indices(healthy)[::-1] if index != find_index(s)]
    elected = [find_index(s), *others][:num_elected]
    set_bitmap(round_, "elected", sum(1 << index for index in elected))
    num = min(num, len(elected))
    stored = (elected[1:] + elected[:1])[:num]
    round_["num_witnesses"] = num
    round_["witnesses"]["index"][:num] = stored
    for place in range(num):
        set_bitmap(round_["witnesses"][place], "participants", _make_participants(s, place, rng) & healthy)


def _make_participants(s: Setting, place: int, rng: random.Random) -> int:
    return {
        "all": ALL,
        "none": 0,
        "alternating": ODD,
        "random": rng.getrandbits(MAX_CLIENTS),
        "each misses one": ALL & ~(1 << place * 7),
        "two camps": ODD if place % 2 else ALL ^ ODD,
    }[s["participants"]]


def find_elected(record: Record) -> tuple[int, ...]:
    """Elected witnesses of the current round."""
    return get_bit_indices(get_bitmap(get_current_round(record)["elected"]))
