"""The dearest call of each instruction of the treasurer program.

256 entries that are owed something, the payee last among them and its key like the others' but for a byte;
mints of either token program; addresses that are hard to derive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from bump_search import find_worst_number, find_worst_wallet, make_run_id
from programs_harness import ProgramChain, make_config, make_model
from recording_svm import TOKENS, RecordingSvm, merge_worst
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from token_harness import TokenMint
from treasury_harness import Treasury
from worst_states import make_alike

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import find_participant
from psyche_py.chain.treasury import WITHDRAW_DELAY_SECONDS
from psyche_py.coordinator.layout import MAX_CLIENTS, Record, RunState, set_bytes
from psyche_py.coordinator.model import Metadata, Progress
from psyche_py.coordinator.pda import (
    compute_treasurer_index,
    get_bond_seeds,
    get_instance_seeds,
    get_participant_seeds,
    get_treasurer_run_seeds,
)

OWED = 3


@cache
def find_worst_run_id() -> str:
    """One whose instance and treasurer run are both hard to derive."""
    treasurer, coordinator = get_program_id("treasurer"), get_program_id("coordinator")
    number = find_worst_number(
        lambda number: [
            (get_instance_seeds(make_run_id(number)), coordinator),
            (get_treasurer_run_seeds(compute_treasurer_index(make_run_id(number))), treasurer),
        ]
    )
    return make_run_id(number)


def find_treasurer_costs() -> dict[str, int]:
    """Compute units by instruction."""
    worst: dict[str, int] = {}
    for program, extensions in TOKENS:
        chain = ProgramChain()
        chain.svm = RecordingSvm(chain.svm)
        owner = chain.make_wallet("owner")
        mint = TokenMint(chain, owner, token_program=program, extensions=extensions)
        _play(Treasury(chain, find_worst_run_id(), mint=mint))
        merge_worst(worst, chain.svm.worst["treasurer"])
    return worst


def _play(treasury: Treasury) -> None:
    """Every instruction once or more, on a full account."""
    chain, user_program = treasury.chain, get_program_id("treasurer")
    treasury.create(client_version="v" * 96)
    run = bytes(treasury.run)
    payee = find_worst_wallet(lambda key: [(get_participant_seeds(run, key), user_program)])
    chain.svm.airdrop(payee.pubkey(), 10**12)
    _change_everything(treasury)
    treasury.open_funded(is_created=True)
    _fill(treasury, payee)
    treasury.fund(10**6)
    for wallet in (payee, treasury.owner):
        treasury.mint.make_account(wallet)
    treasury.create_participant(payee)
    _age_participant(chain, find_participant(treasury.run, payee.pubkey()))
    treasury.migrate_participant(payee.pubkey(), payee)
    treasury.claim(payee, 1)
    _pause_warmup(treasury)
    treasury.change(paused=False)
    bonded = _play_bond(treasury)
    treasury.finish()
    chain.advance(WITHDRAW_DELAY_SECONDS)
    treasury.withdraw(1)
    for number in range(MAX_CLIENTS):
        treasury.set_entry(number, earned=0)
    treasury.withdraw(treasury.mint.get_amount(treasury.vault))
    treasury.close()
    treasury.return_bond(bonded)


def _play_bond(treasury: Treasury) -> Keypair:
    """A bond that is hard to derive; its user, the last of 256 entries, is in no epoch, of 256 clients."""
    run, program = bytes(treasury.run), get_program_id("treasurer")
    user = find_worst_wallet(lambda key: [(get_bond_seeds(run, key), program)])
    treasury.chain.svm.airdrop(user.pubkey(), 10**12)
    treasury.mint.fund(treasury.mint.make_account(user), 100)
    treasury.post_bond(user, 10)
    treasury.post_bond(user, 10)

    def owe(record: Record) -> None:
        record["entries"]["signer"] = make_alike(bytes(user.pubkey()), MAX_CLIENTS)
        last = record["entries"][MAX_CLIENTS - 1]
        set_bytes(last, "signer", bytes(user.pubkey()))
        last["earned"], last["slashed"], last["active"] = 0, OWED, 0
        record["run_state"] = RunState.RoundTrain
        record["epoch_state"]["num_clients"] = MAX_CLIENTS
        record["epoch_state"]["clients"]["entry"] = 0

    def end_epoch(record: Record) -> None:
        record["run_state"] = RunState.WaitingForMembers

    _edit(treasury, owe)
    treasury.slash_bond(user.pubkey(), treasury.owner)
    treasury.return_bond(user)
    _edit(treasury, end_epoch)
    treasury.post_bond(user, 5)
    return user


def _change_everything(treasury: Treasury) -> None:
    """All that run_update can pass on at once in a halted run; more than fits into a transaction."""
    treasury.change(
        metadata=Metadata(name="n" * 64, description="d" * 280).to_bytes(),
        config=make_config(total_steps=999).to_bytes(),
        model=make_model(checkpoint_repo="r" * 128, data_path="d" * 128).to_bytes(),
        progress=Progress(step=2, epoch=1, epoch_start_data_index=1).to_bytes(),
        epoch_earning_rate_total_shared=1,
        epoch_slashing_rate_per_client=1,
        client_version="w" * 96,
    )


def _edit(treasury: Treasury, change: Callable[[Record], None]) -> None:
    """Write into the coordinator account behind the programs' back."""
    svm, record = treasury.chain.svm, treasury.account.copy().record
    change(record)
    old = svm.get_account(treasury.address)
    svm.set_account(treasury.address, Account(old.lamports, record.tobytes(), old.owner))


def _fill(treasury: Treasury, payee: Keypair) -> None:
    """256 entries that have earned; the payee's is the last."""

    def fill(record: Record) -> None:
        record["num_entries"] = MAX_CLIENTS
        record["entries"]["earned"] = OWED
        record["entries"]["signer"] = make_alike(bytes(payee.pubkey()), MAX_CLIENTS)
        set_bytes(record["entries"][MAX_CLIENTS - 1], "signer", bytes(payee.pubkey()))

    _edit(treasury, fill)


def _age_participant(chain: ProgramChain, address: Pubkey) -> None:
    """The record as version 1 wrote it: shorter, with one point claimed."""
    record = chain.svm.get_account(address)
    aged = bytes(record.data)[:9] + (1).to_bytes(8, "little") * 2
    chain.svm.set_account(address, Account(10**6, aged, record.owner))


def _pause_warmup(treasury: Treasury) -> None:
    """A pause in a warm-up withdraws 256 clients at once."""

    def start(record: Record) -> None:
        record["run_state"] = RunState.Warmup
        record["epoch_state"]["num_clients"] = MAX_CLIENTS
        record["epoch_state"]["clients"]["entry"] = range(MAX_CLIENTS)

    _edit(treasury, start)
    metadata = Metadata(name="m" * 64, description="d" * 280).to_bytes()
    rates = {"epoch_earning_rate_total_shared": 2, "epoch_slashing_rate_per_client": 2}
    treasury.change(metadata=metadata, **rates, paused=True)
