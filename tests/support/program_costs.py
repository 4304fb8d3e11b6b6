"""What the programs cost at their worst: for the benchmark that prints it and the test that holds it."""

from __future__ import annotations

from collections.abc import Callable

from authorizer_costs import find_authorizer_costs
from coordinator_costs import CoordinatorMeter
from distributor_costs import find_distributor_costs
from mining_pool_costs import find_mining_pool_costs
from program_driver import get_keypair
from recording_svm import get_instruction_names
from solders.hash import Hash
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from treasurer_costs import find_treasurer_costs
from worst_calls import ARGUMENTS

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, read_program
from psyche_py.chain.port import MAX_TRANSACTION_BYTES
from psyche_py.chain.transaction import add_budget, sign
from psyche_py.coordinator.layout import ACCOUNT_SIZE

Costs = dict[str, dict[str, int]]
UNIT_LIMIT = 200_000
"""Compute units that an instruction gets when a transaction does not ask for more."""
RENT_LAMPORTS_PER_BYTE = 6960
"""Two years at 3480 lamports a byte and year, which makes an account exempt (Solana's genesis rent)."""
ACCOUNT_OVERHEAD_BYTES = 128
LAMPORTS_PER_SOL = 10**9


def find_coordinator_costs(budget: int, progress: Callable[[str], None]) -> dict[str, int]:
    """The dearest call of every instruction of the coordinator that a search of this length finds."""
    meter, units = CoordinatorMeter(), {}
    for name in ARGUMENTS:
        worst = meter.search(name, budget)
        units[name] = worst.units
        progress(f"coordinator.{name}: {worst.units:,} units")
    return units | {"init_coordinator": meter.measure_init()}


def find_all_costs(budget: int, progress: Callable[[str], None] = lambda line: None) -> Costs:
    """Compute units by program and instruction."""
    return {
        "coordinator": find_coordinator_costs(budget, progress),
        "authorizer": find_authorizer_costs(),
        "treasurer": find_treasurer_costs(),
        "distributor": find_distributor_costs(),
        "mining_pool": find_mining_pool_costs(min(budget, 500)),
    }


def find_missing(costs: Costs) -> list[tuple[str, str]]:
    """Instructions that no cost was found for."""
    known = get_instruction_names().values()
    return [(program, name) for program, name in known if not costs.get(program, {}).get(name)]


def get_program_sizes() -> dict[str, int]:
    """Bytes of each compiled program."""
    return {name: len(read_program(name)) for name in PROGRAM_NAMES}


def compute_rent_sol(num_bytes: int) -> float:
    """What keeps an account of this size alive, and comes back when it is closed."""
    return (num_bytes + ACCOUNT_OVERHEAD_BYTES) * RENT_LAMPORTS_PER_BYTE / LAMPORTS_PER_SOL


def get_account_sizes() -> dict[str, int]:
    """Bytes of the accounts that people pay for."""
    programs = {f"program {name}": size for name, size in get_program_sizes().items()}
    return {"coordinator account": ACCOUNT_SIZE, **programs}


def get_transaction_sizes() -> dict[str, int]:
    """Bytes of the transactions that keep a run going, each with compute limit and priority fee."""
    wallet, p2p = get_keypair(0), get_keypair(1)
    run = {"instance": Pubkey([1] * 32), "coordinator_account": Pubkey([2] * 32)}
    user = {"user": wallet.pubkey(), **run}
    witness = {
        "index": 65535,
        "step": 1,
        "participants": [2**64 - 1] * 4,
        "broadcast_bloom": [2**64 - 1] * 16,
        "broadcast_merkle": bytes(32),
        "state_digest": bytes(32),
        "metadata": bytes(16),
    }
    join = {**user, "p2p": p2p.pubkey(), "authorization": Pubkey([3] * 32)}
    checkpoint = {"kind": 2, "repo": bytes(128), "revision": bytes(64)}
    encode = get_program("coordinator").encode
    calls: dict[str, Instruction] = {
        "witness": encode("witness", user, witness),
        "join_run": encode("join_run", join, {"address_hint": bytes(64)}),
        "checkpoint": encode("checkpoint", user, checkpoint),
        "tick": encode("tick", user, {}),
    }
    sizes = {}
    for name, call in calls.items():
        budget = add_budget([call], compute_units=1_400_000, micro_lamports_per_unit=2**64 - 1)
        signers = [wallet, p2p] if name == "join_run" else [wallet]
        sizes[name] = len(bytes(sign(budget, signers, Hash.default())))
    return sizes


MAX_PACKET_BYTES = MAX_TRANSACTION_BYTES
