"""Numbers at both ends of their range, in every argument and in what the accounts may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from attack_arithmetic import set_field, set_points
from attack_baselines import BASELINES, get_owner_accounts
from attack_chain import AttackChain, replace_data
from attack_oracle import judge, judge_and_keep
from attack_scenes import Scene, get_scene
from programs_harness import RunHarness, make_p2p_key

from psyche_py.chain.anchor import get_program
from psyche_py.chain.pda import find_instance, find_token_account, find_treasurer_run
from psyche_py.coordinator.layout import COORDINATOR_ACCOUNT

MAX_U64 = 2**64 - 1
ENDS_U64 = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, MAX_U64 - 1, MAX_U64)


def list_ends(kind: np.dtype[Any]) -> list[int]:
    """Values of an integer field at which sums and products leave their range."""
    most = int(np.iinfo(kind).max)
    return sorted({0, 1, 2, most // 2, most // 2 + 1, most - 2, most - 1, most})


def list_numbers(part: str) -> Iterator[tuple[str, list[Any]]]:
    """Fields of a part of the account that are numbers, and values to try."""
    fields = COORDINATOR_ACCOUNT[part].fields
    assert fields is not None
    for name, (kind, *_) in fields.items():
        if kind.kind == "u" and not kind.shape:
            yield name, list_ends(kind)
        elif kind.kind == "f":
            yield name, [0.0, -0.0, -1.0, 1e-45, 3e38, np.inf, -np.inf, np.nan]


FIELDS = [(part, field) for part in ("config", "progress", "model") for field, _ in list_numbers(part)]


@pytest.mark.parametrize(("part", "field"), FIELDS, ids=[".".join(path) for path in FIELDS])
def test_the_owners_numbers_at_both_ends(part: str, field: str) -> None:
    """Whatever number the owner sets is refused, or the run lives with it as the rule book says."""
    scene = get_scene("paused")
    chain, run = scene.chain, scene.run
    for value in dict(list_numbers(part))[field]:
        data = set_field(chain.get_state(run.address).data, part, field, value=value)
        _, offset, *_ = COORDINATOR_ACCOUNT.fields[part]  # type: ignore[index]
        raw = data[offset : offset + COORDINATOR_ACCOUNT[part].itemsize]
        update = replace_data(BASELINES["coordinator", "update"].build(scene), encode_update(part, raw))
        with chain.undone(run.address):
            what = f"{part}.{field} {value}"
            if judge_and_keep(chain, what, update).error is None:
                live(scene, what)


def encode_update(part: str, raw: bytes) -> bytes:
    """An update's data with one part, of any bytes: a codec refuses some numbers before the program does."""
    parts = ("metadata", "config", "model", "progress")
    return compute_discriminator("update") + b"".join(
        b"\1" + raw if part == name else b"\0" for name in parts
    )


def compute_discriminator(name: str) -> bytes:
    """What an instruction's data begins with."""
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]


def live(scene: Scene, what: str) -> None:
    """Resume, join, warm up, train, attest, cool down, with more time than any usual timer between."""
    chain, run = scene.chain, scene.run
    resume = get_program("coordinator").encode("set_paused", get_owner_accounts(scene), {"paused": False})
    if judge_and_keep(chain, what, resume).error is not None:
        return
    for wallet in run.wallets:
        judge_and_keep(
            chain, what, run.encode("join_run", wallet, p2p=make_p2p_key(wallet), address_hint=bytes(64))
        )
    for seconds in (0, 4, 31, 21, 6, 21, 6, 21, 6, 11):
        chain.advance(seconds)
        judge_and_keep(chain, what, run.encode("tick", scene.thief))
        attest(run, chain, what)


def attest(run: RunHarness, chain: AttackChain, what: str) -> None:
    """The first elected witness says what it saw."""
    elected = run.get_elected()
    if elected:
        witness = run.encode("witness", run.get_wallet(elected[0]), **run.make_witness(elected[0]))
        judge_and_keep(chain, what, witness)


@pytest.mark.parametrize("rate", ENDS_U64)
@pytest.mark.parametrize("earned", [0, 1, 2**63, MAX_U64 - 1, MAX_U64])
def test_points_never_wrap(rate: int, earned: int) -> None:
    """Settling an epoch at any rate, for clients that have anything up to the most."""
    scene = get_scene("cooldown")
    chain, run = scene.chain, scene.run
    data = set_field(
        chain.get_state(run.address).data, "current_rates", "earning_rate_total_shared", value=rate
    )
    for entry in range(3):
        data = set_field(data, "entries", entry, "earned", value=earned)
    with chain.undone(run.address), chain.altered(run.address, data=data):
        chain.advance(10)
        outcome = judge_and_keep(chain, f"settling {rate} on {earned}", run.encode("tick", scene.thief))
        assert outcome.error is None
        totals = [entry.earned for entry in run.account.entries]
        assert all(total >= earned for total in totals[:3])
        if earned + rate <= MAX_U64:
            assert sum(totals) == 3 * earned + rate


SUMS = [
    (0, 0, 0), (50, 0, 0), (50, 50, 0), (50, 0, 50), (50, 60, 0), (50, 30, 30), (50, 0, 60),
    (0, 1, 0), (0, 0, 1),
    (MAX_U64, 0, 0), (MAX_U64, MAX_U64, 0), (MAX_U64, 0, MAX_U64), (0, MAX_U64, 0), (0, MAX_U64, MAX_U64),
    (MAX_U64, 1, 1), (2**63, 2**63, 2**63), (1, MAX_U64, 1), (1, 1, MAX_U64),
]  # fmt: skip
"""Points earned, slashed and claimed."""


@pytest.mark.parametrize("sums", SUMS)
def test_recorded_claims_never_exceed_what_is_left(sums: tuple[int, int, int]) -> None:
    scene = get_scene("paid")
    chain, run = scene.chain, scene.run
    user = run.wallets[0].pubkey()
    data = set_points(chain.get_state(run.address).data, run, user, sums)
    left = max(sums[0] - sums[1] - sums[2], 0)
    with chain.altered(run.address, data=data):
        for points in sorted({*ENDS_U64, left, min(left + 1, MAX_U64), max(left - 1, 0), 50, 51}):
            arguments = {"user": user, "points": points}
            claim = get_program("coordinator").encode("record_claim", get_owner_accounts(scene), arguments)
            outcome = judge(chain, f"recording {points} of {sums}", claim)
            assert outcome.error == (None if points <= left else "ClaimExceedsEarned")


@pytest.mark.parametrize("now", [-(2**63), -1, 0, 1, 2**31, 2**32, 2**62, 2**63 - 1])
@pytest.mark.parametrize("state", ["waiting", "warmup", "training", "witnessing", "cooldown"])
def test_the_clock_at_both_ends(state: str, now: int) -> None:
    scene = get_scene(state)
    chain, run = scene.chain, scene.run
    with chain.undone(run.address):
        chain.set_now(now)
        for _ in range(3):
            judge_and_keep(chain, f"tick at {now}", run.encode("tick", scene.thief))
        judge(chain, f"leaving at {now}", run.encode("leave_run", run.wallets[0]))
        for base in BASELINES.values():
            if base.program == "authorizer" and base.state == "waiting" and state == "waiting":
                judge(chain, f"{base.name} at {now}", base.build(scene))


def test_counters_at_their_ends() -> None:
    """Counters that only grow: the nonce wraps, those of a client stop."""
    scene = get_scene("training")
    chain, run = scene.chain, scene.run
    base = chain.get_state(run.address).data
    client = ("epoch_state", "clients", 0)
    paths: list[tuple[str | int, ...]] = [("nonce",), ("progress", "epoch"), ("next_active",)]
    paths += [(*client, "contradictions"), (*client, "silent_rounds")]
    for path in paths:
        kind = np.frombuffer(base, dtype=COORDINATOR_ACCOUNT)[0]
        for step in path[:-1]:
            kind = kind[step]
        most = int(np.iinfo(kind[path[-1]].dtype).max)
        if path == ("next_active",):
            most -= 1000  # it grows by one an epoch, from one: its end is beyond reach
        for value in (most - 1, most):
            with (
                chain.undone(run.address),
                chain.altered(run.address, data=set_field(base, *path, value=value)),
            ):
                what = f"{path[-1]} at {value}"
                attest(run, chain, what)
                for seconds in (21, 6, 21, 6, 11):
                    chain.advance(seconds)
                    judge_and_keep(chain, what, run.encode("tick", scene.thief))


def test_every_index_of_a_treasurer_run() -> None:
    """The index chooses the address and nothing else."""
    scene = get_scene("waiting")
    call_accounts = scene.funded.get_create_accounts()
    for index in ENDS_U64:
        fund = find_treasurer_run(index)
        accounts = {
            **call_accounts,
            "run": fund,
            "run_collateral": find_token_account(fund, scene.funded.mint.pubkey()),
            "coordinator_instance": find_instance("fresh"),
            "coordinator_account": scene.fresh.pubkey(),
        }
        arguments = {**scene.funded.get_create_args(), "index": index, "run_id": "fresh"}
        create = get_program("treasurer").encode("run_create", accounts, arguments)
        assert judge(scene.chain, f"run {index}", create).error is None
        arguments["index"] = (index + 1) % 2**64
        create = get_program("treasurer").encode("run_create", accounts, arguments)
        scene.chain.attack(f"run {index} by another index", "WrongPda", create)
