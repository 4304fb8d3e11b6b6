"""Arguments that make each coordinator instruction dear in a given account. See worst_states.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cost_search import Knobs, Setting
from owner_events import MAX_U64, get_base
from rulebook_driver import get_hint, get_p2p_key
from worst_states import find_index

from psyche_py.coordinator.duties import Duty, compute_duties, is_tie_breaker
from psyche_py.coordinator.layout import Record
from psyche_py.coordinator.model import Metadata, Progress
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.views import get_current_round

Arguments = dict[str, Any]
NEWCOMER, STRANGER = 256, 257
"""Wallets without an entry; the newcomer wants one."""
EVERY_OTHER = 0x5555555555555555
AUTHORIZATIONS = ("the last of 256 delegates", "nobody of 256 delegates", "everybody", "expired")
CALL_KNOBS: dict[str, Knobs] = {
    "join_run": {"joiner": ("new", "known"), "p2p_key": ("own", "new"), "authorization": AUTHORIZATIONS},
    "witness": {"said": ("all", "none", "alternating")},
    "health_check": {"target": (254, 255, 0, 1)},
    "checkpoint": {"kind": (2, 4)},
    "set_paused": {"paused": (True, False)},
    "vote": {"is_guilty": (True, False)},
    "remove_unauthorized": {"authorization": AUTHORIZATIONS},
}
CALL_STARTS: dict[str, tuple[Setting, ...]] = {
    "join_run": ({"joiner": "new", "num_clients": 255, "active": "none"}, {"joiner": "known"}),
    "health_check": ({"participants": "none"},),
    "verdict": ({"disputes": "settled"},),
    "vote": ({"disputes": "judged"},),
    "record_claim": ({"disputes": "judged"},),
    "remove_unauthorized": ({"authorization": "nobody of 256 delegates"}, {"authorization": "expired"}),
}
"""Where the search begins for instructions that the first choices would refuse."""


def find_sender(s: Setting) -> int:
    """Entry, and wallet, of the client that sends."""
    return int(min(s["sender"], s["num_entries"] - 1))


def _as_client(record: Record, s: Setting) -> Arguments:
    return {"client": find_sender(s)}


def _join(record: Record, s: Setting) -> Arguments:
    """A wallet that is known, or one that takes the place of the only one that nobody misses: the last."""
    client = find_sender(s)
    if s["joiner"] == "new":
        client, last = NEWCOMER, record["entries"][255]
        last["active"], last["earned"], last["claimed"] = 1, 0, 0
    key = get_p2p_key(client, 1 if s["p2p_key"] == "new" else 0)
    return {
        "client": client,
        "p2p_key": key.hex(),
        "address_hint": get_hint(9000).hex(),
        "authorization": 0,
        "bond": 0,
    }


def _witness(record: Record, s: Setting) -> Arguments:
    said = {"all": MAX_U64, "none": 0, "alternating": EVERY_OTHER}[s["said"]]
    is_first = not s["height"] or s["previous_apply_only"]
    possible = [int(word) for word in record["epoch_state"]["rounds"][0]["healthy"]]
    return {
        **_as_client(record, s),
        "index": find_index(s),
        "step": int(record["epoch_state"]["rounds"][s["head"]]["step"]),
        "participants": [0] * 4 if is_first else [said & word for word in possible],
        "broadcast_bloom": [MAX_U64] * 16,
        "broadcast_merkle": "ff" * 32,
        "state_digest": "ff" * 32,
    }


def _checkpoint(record: Record, s: Setting) -> Arguments:
    texts = {"repo": "r" * 128, "revision": "v" * 64}
    return {**_as_client(record, s), "kind": s["kind"], **texts}


def _update(record: Record, s: Setting) -> Arguments:
    """Every part at once, each of them different; more than fits into a transaction."""
    base = get_base()
    parts = {
        "metadata": Metadata(name="n" * 64, description="d" * 280, num_parameters=1),
        "config": replace(base.config, total_steps=1003),
        "model": replace(base.model, checkpoint_repo="r" * 128, data_path="d" * 128),
        "progress": Progress(step=5, epoch=1, epoch_start_data_index=1),
    }
    return {name: part.to_bytes().hex() for name, part in parts.items()}


def _record_claim(record: Record, s: Setting) -> Arguments:
    user = find_sender(s)
    record["entries"][user]["earned"], record["entries"][user]["slashed"] = MAX_U64, 0
    return {"user": user, "points": MAX_U64}


def _settle_debt(record: Record, s: Setting) -> Arguments:
    user = find_sender(s)
    record["entries"][user]["earned"], record["entries"][user]["slashed"] = 0, MAX_U64
    return {"user": user, "points": MAX_U64}


NUM_SEEDS = 400
"""Of that many one draws the sender, or the instruction is refused."""


def _verdict(record: Record, s: Setting) -> Arguments:
    """The sender is drawn as a verifier; what is in the account's places may be in the way."""
    current, index = get_current_round(record), find_index(s)
    account = CoordinatorAccount(record)
    duties: list[Duty] = []
    for seed in range(NUM_SEEDS):
        current["random_seed"] = seed
        account = CoordinatorAccount(record)
        duties = [duty for duty in compute_duties(account, s["height"]) if duty.verifier == index]
        if duties or not s["height"] or not s["verification_percent"]:
            break
    return {
        **_as_client(record, s),
        "index": index,
        "trainer": duties[0].trainer if duties else 0,
        "height": max(s["height"] - 1, 0),
        "reason": 1,
        "evidence_hash": "ff" * 32,
    }


def _vote(record: Record, s: Setting) -> Arguments:
    """The sender is drawn as a tie-breaker of the last dispute, and decides it where eight have voted."""
    current, index = get_current_round(record), find_index(s)
    for seed in range(NUM_SEEDS):
        current["random_seed"] = seed
        account = CoordinatorAccount(record)
        last = account.disputes[-1] if account.disputes else None
        if last is None or last.judge_height != s["height"] or is_tie_breaker(account, last, index):
            break
    evidence = record["disputes"][-1]["evidence_hash"].tobytes().hex()
    return {**_as_client(record, s), "index": index, "evidence_hash": evidence, "is_guilty": s["is_guilty"]}


def _migrate(record: Record, s: Setting) -> Arguments:
    record["version"] = 1
    return {"client": STRANGER}


ARGUMENTS: dict[str, Callable[[Record, Setting], Arguments]] = {
    "tick": lambda record, s: {},
    "join_run": _join,
    "leave_run": _as_client,
    "warmup_witness": lambda record, s: {**_as_client(record, s), "index": find_index(s)},
    "witness": _witness,
    "health_check": lambda record, s: {**_as_client(record, s), "index": s["target"]},
    "checkpoint": _checkpoint,
    "update": _update,
    "update_client_version": lambda record, s: {"client_version": "v" * 96},
    "set_future_epoch_rates": lambda record, s: {
        "earning_rate_total_shared": 5,
        "slashing_rate_per_client": MAX_U64,
    },
    "set_paused": lambda record, s: {"paused": s["paused"]},
    "free_coordinator": lambda record, s: {},
    "record_claim": _record_claim,
    "settle_debt": _settle_debt,
    "announce": lambda record, s: {**_as_client(record, s), "address_hint": get_hint(9000).hex()},
    "verdict": _verdict,
    "vote": _vote,
    "remove_unauthorized": lambda record, s: {
        "client": STRANGER,
        "entry": s["num_entries"] - 1,
        "authorization": 0,
    },
    "migrate": _migrate,
}
