"""Collateral of Token-2022: what leaves balances alone is taken, everything else is refused by name.

The mints and token accounts are made by the real Token-2022 program.
"""

from __future__ import annotations

import pytest
from programs_harness import ProgramChain, refused
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from token_2022 import (
    CPI_GUARD,
    EXTENSIONS,
    MEMO_TRANSFER,
    NEWER_EXTENSIONS,
    encode_metadata,
    encode_switch_on,
    write_extended_mint,
)
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.anchor import get_program
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_token_account

TAKEN = ("MetadataPointer", "GroupPointer", "GroupMemberPointer")
REFUSED = {name: f"Mint{name}" for name in EXTENSIONS if name not in TAKEN}


def make_treasury(*extensions: str) -> Treasury:
    """A run to be paid in a new Token-2022 mint."""
    chain = ProgramChain()
    owner = chain.make_wallet("owner")
    mint = TokenMint(chain, owner, token_program=TOKEN_2022_PROGRAM, extensions=extensions)
    return Treasury(chain, mint=mint)


def pay_out(treasury: Treasury) -> None:
    """A whole paid epoch, every point claimed."""
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(100)
    for wallet in treasury.wallets:
        account = treasury.mint.make_account(wallet)
        treasury.create_participant(wallet)
        treasury.claim(wallet, 50)
        assert treasury.mint.get_amount(account) == 50
    assert treasury.mint.get_amount(treasury.vault) == 0


@pytest.mark.parametrize("extension", REFUSED)
def test_extensions_that_touch_balances_are_refused_by_name(extension: str) -> None:
    treasury = make_treasury(extension)
    with refused(REFUSED[extension]):
        treasury.create()
    assert treasury.chain.get_data(treasury.run) is None
    assert treasury.chain.get_data(treasury.vault) is None


@pytest.mark.parametrize("extension", REFUSED)
def test_a_harmless_extension_before_it_hides_nothing(extension: str) -> None:
    treasury = make_treasury("MetadataPointer", extension)
    with refused(REFUSED[extension]):
        treasury.create()


@pytest.mark.parametrize(
    ("number", "size", "name"),
    [
        *((number, size, f"Mint{name}") for name, (number, size) in NEWER_EXTENSIONS.items()),
        (28, 32, "TokenExtensionUnknown"),
        (999, 0, "TokenExtensionUnknown"),
    ],
)
def test_extensions_newer_than_this_chain_are_refused_by_name(number: int, size: int, name: str) -> None:
    """The bytes of the mint are written here, since LiteSVM's Token-2022 is too old to make it."""
    treasury = make_treasury()
    mint = treasury.chain.svm.get_account(treasury.mint.address)
    data = write_extended_mint(bytes(mint.data), number, size)
    treasury.chain.svm.set_account(treasury.mint.address, type(mint)(10**9, data, TOKEN_2022_PROGRAM))
    with refused(name):
        treasury.create()


def test_every_refusal_is_tried() -> None:
    """A refusal in the program without a mint here would be a promise nobody checked."""
    names = {
        error.name for error in get_program("treasurer").errors.values() if error.name.startswith("Mint")
    }
    assert names == {*REFUSED.values(), *(f"Mint{name}" for name in NEWER_EXTENSIONS)}


def test_a_plain_mint_of_token_2022_pays() -> None:
    pay_out(make_treasury())


def test_pointers_pay() -> None:
    pay_out(make_treasury(*TAKEN))


def test_metadata_in_the_mint_pays() -> None:
    treasury = make_treasury("MetadataPointer")
    chain, owner = treasury.chain, treasury.owner
    rent = TransferParams(from_pubkey=owner.pubkey(), to_pubkey=treasury.mint.address, lamports=10**8)
    metadata = encode_metadata(treasury.mint.address, owner.pubkey(), "Psyche points")
    chain.send([transfer(rent), metadata], [owner])
    data = chain.get_data(treasury.mint.address)
    assert data is not None
    assert b"Psyche points" in data
    pay_out(treasury)


@pytest.fixture
def paid() -> Treasury:
    """One epoch is over, 50 points each; the vault of a Token-2022 mint holds 100."""
    treasury = make_treasury()
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(100)
    for wallet in treasury.wallets:
        treasury.mint.make_account(wallet)
        treasury.create_participant(wallet)
    return treasury


def test_an_account_that_wants_memos_is_refused_by_name(paid: Treasury) -> None:
    user = paid.wallets[0]
    account = paid.mint.find_account(user.pubkey())
    on = encode_switch_on(account, user.pubkey(), MEMO_TRANSFER)
    paid.chain.send(on, [user])
    with refused("TokenAccountMemoRequired"):
        paid.claim(user, 50)
    off = type(on[1])(TOKEN_2022_PROGRAM, bytes([30, 1]), on[1].accounts)
    paid.chain.send([off], [user])
    paid.claim(user, 50)
    assert paid.mint.get_amount(account) == 50


def test_a_cpi_guard_does_not_keep_money_out(paid: Treasury) -> None:
    user = paid.wallets[0]
    account = paid.mint.find_account(user.pubkey())
    paid.chain.send(encode_switch_on(account, user.pubkey(), CPI_GUARD), [user])
    paid.claim(user, 50)
    assert paid.mint.get_amount(account) == 50


@pytest.mark.parametrize("whose", ["user", "vault"])
def test_a_frozen_account_is_refused_by_name(paid: Treasury, whose: str) -> None:
    user = paid.wallets[0]
    paid.mint.freeze(paid.vault if whose == "vault" else paid.mint.find_account(user.pubkey()))
    with refused("TokenAccountFrozen"):
        paid.claim(user, 50)


def test_the_token_program_must_be_the_mints(paid: Treasury) -> None:
    with refused("WrongProgram"):
        paid.claim(paid.wallets[0], 50, token_program=TOKEN_PROGRAM)
    fresh = Treasury(paid.chain, "fresh", mint=paid.mint)
    with refused("WrongProgram"):
        fresh.create(token_program=TOKEN_PROGRAM)


def test_what_looks_like_a_mint_is_none(paid: Treasury) -> None:
    fresh = Treasury(paid.chain, "fresh", mint=paid.mint)
    with refused("WrongAccount"):
        fresh.create(collateral_mint=paid.vault)
    fake = Pubkey.new_unique()
    genuine = paid.chain.svm.get_account(paid.mint.address)
    paid.chain.svm.set_account(fake, type(genuine)(genuine.lamports, genuine.data, paid.owner.pubkey()))
    with refused("WrongOwner"):
        fresh.create(collateral_mint=fake)


def test_an_account_of_the_same_bytes_at_the_other_program_is_another(paid: Treasury) -> None:
    """The associated address holds the token program's id, so two vaults of one mint cannot be mixed up."""
    other = find_token_account(paid.run, paid.mint.address, TOKEN_PROGRAM)
    assert other != paid.vault
    vault = paid.chain.svm.get_account(paid.vault)
    data = bytes(vault.data)[:165]
    paid.chain.svm.set_account(other, type(vault)(vault.lamports, data, TOKEN_PROGRAM))
    with refused("WrongAccount"):
        paid.claim(paid.wallets[0], 50, run_collateral=other)
