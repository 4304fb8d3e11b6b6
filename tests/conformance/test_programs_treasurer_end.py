"""The end of a run that pays: what the owner may take, when, and what stays for those who earned it."""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, RunHarness, refused
from solders.keypair import Keypair
from solders.system_program import TransferParams, transfer
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_participant
from psyche_py.chain.treasury import WITHDRAW_DELAY_SECONDS
from psyche_py.coordinator.layout import RunState

DELAY = WITHDRAW_DELAY_SECONDS
"""The client's copy of the program's number: the tests below find a second more or less."""


def make_paid(token_program: str = "spl-token") -> Treasury:
    """One epoch is over, 50 points each; the vault holds 130, and everybody has a token account."""
    chain = ProgramChain()
    program = {"spl-token": TOKEN_PROGRAM, "token-2022": TOKEN_2022_PROGRAM}[token_program]
    mint = TokenMint(chain, chain.make_wallet("owner"), token_program=program)
    treasury = Treasury(chain, mint=mint)
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(130)
    mint.make_account(treasury.owner)
    for wallet in treasury.wallets:
        mint.make_account(wallet)
        treasury.create_participant(wallet)
    return treasury


@pytest.fixture(params=["spl-token", "token-2022"])
def paid(request: pytest.FixtureRequest) -> Treasury:
    return make_paid(request.param)


@pytest.fixture
def over() -> Treasury:
    """Finished just now; 100 points can be claimed, 30 base units are nobody's."""
    treasury = make_paid()
    treasury.finish()
    return treasury


def get_amount(treasury: Treasury, wallet: Keypair) -> int:
    return treasury.mint.get_amount(treasury.mint.find_account(wallet.pubkey()))


# ---- withdrawing ------------------------------------------------------------------------------------------


def test_the_owner_takes_only_what_nobody_has_earned(paid: Treasury) -> None:
    first, second = paid.wallets
    paid.claim(first, 10)
    paid.finish()
    paid.chain.advance(DELAY)
    with refused("CollateralIsPromised"):
        paid.withdraw(31)
    paid.withdraw(30)
    with refused("CollateralIsPromised"):
        paid.withdraw(1)
    assert get_amount(paid, paid.owner) == 30
    paid.chain.advance(10 * 365 * 24 * 3600)
    paid.claim(first, 40)
    paid.claim(second, 50)
    assert [get_amount(paid, wallet) for wallet in paid.wallets] == [50, 50]
    assert paid.mint.get_amount(paid.vault) == 0


@pytest.mark.parametrize("amount", [1, 30, 31, 100, 130, 2**64 - 1])
def test_the_owner_takes_nothing_before_the_delay_is_over(over: Treasury, amount: int) -> None:
    for seconds in (0, 1, DELAY - 2):
        over.chain.advance(seconds)
        with refused("WithdrawDelayNotOver"):
            over.withdraw(amount)
    over.chain.advance(1)
    if amount > 30:
        with refused("CollateralIsPromised"):
            over.withdraw(amount)
    else:
        over.withdraw(amount)
        assert get_amount(over, over.owner) == amount


def test_the_owner_takes_nothing_while_the_run_can_go_on() -> None:
    treasury = make_paid()
    for state in (RunState.WaitingForMembers, RunState.Paused):
        if state is RunState.Paused:
            treasury.change(paused=True)
        assert treasury.state is state
        treasury.chain.advance(10 * DELAY)
        with refused("RunNotFinished"):
            treasury.withdraw(1)


def test_nothing_makes_the_delay_shorter_or_the_end_undone(over: Treasury) -> None:
    since = over.account.record["run_state_start_unix_timestamp"]
    over.chain.advance(1000)
    with refused("CannotResume"):
        over.change(paused=False)
    with refused("Halted"):
        over.change(paused=True)
    with refused("UpdateConfigFinished"):
        over.change(progress=bytes(16))
    with refused("Halted"):
        over.tick(5)
    assert over.account.record["run_state_start_unix_timestamp"] == since


def test_a_vault_that_holds_less_than_is_owed_gives_the_owner_nothing(over: Treasury) -> None:
    over.set_entry(0, earned=10**6)
    over.chain.advance(DELAY)
    with refused("CollateralIsPromised"):
        over.withdraw(1)


def test_promises_beyond_all_numbers_are_no_overflow(over: Treasury) -> None:
    over.set_entry(0, earned=2**64 - 1)
    over.set_entry(1, earned=2**64 - 1)
    over.chain.advance(DELAY)
    with refused("CollateralIsPromised"):
        over.withdraw(1)
    over.claim(over.wallets[0], 2**64 - 1)
    assert get_amount(over, over.wallets[0]) == 130


def test_slashed_points_are_nobodys(over: Treasury) -> None:
    over.set_entry(0, slashed=60)
    over.chain.advance(DELAY)
    with refused("CollateralIsPromised"):
        over.withdraw(81)
    over.withdraw(80)


def test_only_the_owner_withdraws_and_only_from_the_runs_vault(over: Treasury) -> None:
    chain, thief = over.chain, over.chain.make_wallet("thief")
    over.mint.make_account(thief)
    chain.advance(DELAY)
    with refused("WrongAuthority"):
        over.withdraw(1, signer=thief)
    with refused("WrongAuthority"):
        over.withdraw(1, signer=over.wallets[0])
    owned = over.encode_withdraw(over.owner, 1)
    unsigned = [type(meta)(meta.pubkey, False, meta.is_writable) for meta in owned.accounts]
    with refused("NotSigner"):
        chain.send([type(owned)(owned.program_id, bytes(owned.data), unsigned)], [thief])

    other = Treasury(chain, "other", mint=over.mint)
    other.create()
    other.fund(500)
    rich = RunHarness(chain, "rich")
    rich.create()
    for swap in (
        {"run_collateral": other.vault},
        {"coordinator_account": other.address},
        {"coordinator_account": rich.address},
        {"authority_collateral": over.vault},
        {"collateral_mint": TokenMint(chain, over.owner, "another").address},
        {"authority_collateral": TokenMint(chain, over.owner, "another").make_account(over.owner)},
    ):
        with refused("WrongAccount"):
            over.withdraw(1, **swap)
    with refused("WrongProgram"):
        over.withdraw(1, token_program=TOKEN_2022_PROGRAM)
    with refused("InvalidParameter"):
        over.withdraw(0)
    assert other.mint.get_amount(other.vault) == 500


def test_a_run_of_a_stranger_opens_no_vault(over: Treasury) -> None:
    """The thief owns a finished run of its own and puts the victim's vault or account beside it."""
    chain, thief = over.chain, over.chain.make_wallet("thief")
    mine = Treasury(chain, "mine", mint=over.mint)
    mine.create(main_authority=thief.pubkey())
    over.mint.make_account(thief)
    chain.advance(DELAY)
    with refused("WrongAccount"):
        mine.withdraw(1, signer=thief, run_collateral=over.vault)
    with refused("WrongAccount"):
        mine.withdraw(1, signer=thief, run_collateral=over.vault, coordinator_account=over.address)


# ---- closing ----------------------------------------------------------------------------------------------


def test_closing_returns_every_lamport(paid: Treasury) -> None:
    chain = paid.chain
    for wallet in paid.wallets:
        paid.claim(wallet, 50)
    paid.finish()
    chain.advance(DELAY)
    paid.withdraw(30)
    parts = (paid.run, paid.vault, paid.instance, paid.address)
    before = sum(chain.svm.get_balance(key) for key in (*parts, paid.owner.pubkey()))
    paid.close()
    assert chain.svm.get_balance(paid.owner.pubkey()) == before - 5000
    assert [chain.get_data(key) for key in parts] == [None] * 4


def test_closing_needs_the_end_no_promise_and_an_empty_vault(over: Treasury) -> None:
    with refused("PointsNotClaimed"):
        over.close()
    over.chain.advance(DELAY)
    over.withdraw(30)
    with refused("PointsNotClaimed"):
        over.close()
    first, second = over.wallets
    over.claim(first, 50)
    over.claim(second, 49)
    with refused("PointsNotClaimed"):
        over.close()
    over.claim(second, 1)
    over.fund(1)
    with refused("VaultNotEmpty"):
        over.close()
    over.chain.send([over.encode_withdraw(over.owner, 1), over.encode_close(over.owner)], [over.owner])
    assert over.chain.get_data(over.run) is None


def test_a_run_that_is_not_finished_is_not_closed() -> None:
    treasury = Treasury(ProgramChain())
    treasury.open_funded()
    treasury.join_all()
    with refused("RunNotFinished"):
        treasury.close()
    treasury.change(paused=True)
    with refused("RunNotFinished"):
        treasury.close()
    treasury.change(paused=False)
    treasury.finish()
    with refused("WrongAuthority"):
        treasury.close(signer=treasury.wallets[0])
    treasury.close()


def test_closing_takes_the_runs_own_accounts_only(over: Treasury) -> None:
    chain = over.chain
    for wallet in over.wallets:
        over.claim(wallet, 50)
    chain.advance(DELAY)
    over.withdraw(30)
    other = Treasury(chain, "other", mint=over.mint)
    other.create()
    for swap in (
        {"run_collateral": other.vault},
        {"coordinator_account": other.address},
        {"coordinator_instance": other.instance},
        {"spill": over.run},
        {"spill": over.address},
        {"spill": over.instance},
    ):
        with refused("WrongAccount"):
            over.close(**swap)
    with refused("WrongProgram"):
        over.close(coordinator_program=get_program_id("authorizer"))
    with refused("WrongProgram"):
        over.close(token_program=TOKEN_2022_PROGRAM)
    over.close()


def test_a_closed_run_is_not_revived_by_lamports(over: Treasury) -> None:
    """Closing and paying into the empty addresses in one transaction leaves nothing that the programs own."""
    chain, owner = over.chain, over.owner
    for wallet in over.wallets:
        over.claim(wallet, 50)
    chain.advance(DELAY)
    over.withdraw(30)
    revive = [
        transfer(TransferParams(from_pubkey=owner.pubkey(), to_pubkey=key, lamports=10**8))
        for key in (over.run, over.instance, over.address)
    ]
    chain.send([over.encode_close(owner), *revive], [owner])
    for key in (over.run, over.instance, over.address):
        account = chain.svm.get_account(key)
        assert (account.owner, bytes(account.data)) == (SYSTEM_PROGRAM, b"")
    with refused("WrongOwner"):
        over.change(paused=False)
    with refused("WrongOwner"):
        over.claim(over.wallets[0], 1)


def test_a_run_made_again_owes_nothing_to_old_records(over: Treasury) -> None:
    chain = over.chain
    for wallet in over.wallets:
        over.claim(wallet, 50)
    chain.advance(DELAY)
    over.withdraw(30)
    over.close()
    again = Treasury(chain, mint=over.mint)
    again.account_key = Keypair.from_seed(bytes([3] * 32))
    again.address = again.account_key.pubkey()
    again.create()
    again.fund(100)
    with refused("InsufficientPoints"):
        again.claim(over.wallets[0], 1)


# ---- records from before the coordinator knew what was claimed ---------------------------------------------


def age(treasury: Treasury, wallet: Keypair, claimed: int) -> None:
    """Make a record what the first version left after ``claimed`` points were paid."""
    address = find_participant(treasury.run, wallet.pubkey())
    account = treasury.chain.svm.get_account(address)
    data = bytes(account.data)[:9] + 2 * claimed.to_bytes(8, "little")
    rent = treasury.chain.svm.minimum_balance_for_rent_exemption(len(data))
    treasury.chain.svm.set_account(address, type(account)(rent, data, account.owner))


def test_an_older_record_pays_nothing_twice(paid: Treasury) -> None:
    first, second = paid.wallets
    age(paid, first, 30)
    with refused("WrongVersion"):
        paid.claim(first, 1)
    paid.migrate_participant(first.pubkey(), payer=second)
    assert paid.get_claimed(0) == 30
    with refused("InsufficientPoints"):
        paid.claim(first, 21)
    paid.claim(first, 20)
    record = paid.get_participant(first.pubkey())
    assert (record["claimed_earned_points"], record["version"]) == (50, 2)
    for wallet in paid.wallets:
        with refused("NothingToMigrate"):
            paid.migrate_participant(wallet.pubkey(), payer=second)


def test_an_older_record_of_slashed_points_is_brought_up_to_date(paid: Treasury) -> None:
    first = paid.wallets[0]
    age(paid, first, 40)
    paid.set_entry(0, slashed=20)
    paid.migrate_participant(first.pubkey(), payer=first)
    assert paid.get_claimed(0) == 30
    with refused("InsufficientPoints"):
        paid.claim(first, 1)


def test_nobody_brings_another_record_into_an_entry(paid: Treasury) -> None:
    first, second = paid.wallets
    age(paid, first, 30)
    with refused("WrongPda"):
        paid.migrate_participant(
            second.pubkey(), second, participant=find_participant(paid.run, first.pubkey())
        )
    other = Treasury(paid.chain, "other", mint=paid.mint)
    other.create()
    with refused("WrongPda"):
        paid.migrate_participant(first.pubkey(), second, run=other.run)
    with refused("WrongAccount"):
        paid.migrate_participant(first.pubkey(), second, coordinator_account=other.address)
    with refused("WrongProgram"):
        paid.migrate_participant(first.pubkey(), second, coordinator_program=get_program_id("authorizer"))
    assert paid.get_claimed(1) == 0
