"""Airdrops of Token-2022 mints: paid where balances are left alone, refused by name otherwise."""

from __future__ import annotations

import pytest
from airdrop_harness import AirdropHarness
from programs_harness import ProgramChain, refused
from solders.pubkey import Pubkey
from token_2022 import (
    CPI_GUARD,
    EXTENSIONS,
    MEMO_TRANSFER,
    NEWER_EXTENSIONS,
    encode_switch_on,
    write_extended_mint,
)
from token_harness import TokenMint

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_token_account

TAKEN = ("MetadataPointer", "GroupPointer", "GroupMemberPointer")
REFUSED = {name: f"Mint{name}" for name in EXTENSIONS if name not in TAKEN}


def make_drop(*extensions: str) -> AirdropHarness:
    """An airdrop, not yet created, of a new Token-2022 mint."""
    chain = ProgramChain()
    authority = chain.make_wallet("authority")
    mint = TokenMint(chain, authority, token_program=TOKEN_2022_PROGRAM, extensions=extensions)
    return AirdropHarness(chain, mint=mint)


@pytest.fixture
def drop() -> AirdropHarness:
    """Of a plain Token-2022 mint, open, everything vested."""
    drop = make_drop()
    drop.open()
    drop.make_collateral(drop.authority)
    drop.chain.advance(100)
    return drop


@pytest.mark.parametrize("extensions", [(), TAKEN])
def test_lines_are_paid_and_the_rest_withdrawn(extensions: tuple[str, ...]) -> None:
    drop = make_drop(*extensions)
    drop.open(amount=2100)
    own = drop.make_collateral(drop.authority)
    drop.chain.advance(100)
    for line in drop.lines:
        drop.redeem(line, line.amount)
    drop.withdraw(60)
    assert [drop.get_paid(wallet) for wallet in drop.wallets] == [1000, 500, 540]
    assert (drop.get_amount(own), drop.get_amount()) == (60, 0)


@pytest.mark.parametrize("extension", REFUSED)
def test_extensions_that_touch_balances_are_refused_by_name(extension: str) -> None:
    drop = make_drop("MetadataPointer", extension)
    with refused(REFUSED[extension]):
        drop.create()
    assert drop.chain.get_data(drop.address) is None
    assert drop.chain.get_data(drop.vault) is None


@pytest.mark.parametrize("name", NEWER_EXTENSIONS)
def test_a_mint_that_gets_an_extension_later_pays_no_more(drop: AirdropHarness, name: str) -> None:
    """Each payment looks at the mint anew. Its bytes are written here: Token-2022 is too old to make them."""
    account = drop.chain.svm.get_account(drop.mint)
    data = write_extended_mint(bytes(account.data), *NEWER_EXTENSIONS[name])
    drop.chain.svm.set_account(drop.mint, type(account)(10**9, data, TOKEN_2022_PROGRAM))
    with refused(f"Mint{name}"):
        drop.redeem(drop.lines[1], 1)
    with refused(f"Mint{name}"):
        drop.withdraw(1)


def test_token_programs_do_not_mix(drop: AirdropHarness) -> None:
    line = drop.lines[1]
    with refused("WrongProgram"):
        drop.redeem(line, 1, token_program=TOKEN_PROGRAM)
    with refused("WrongProgram"):
        drop.withdraw(1, token_program=TOKEN_PROGRAM)
    with refused("WrongProgram"):
        drop.create_id(9, token_program=TOKEN_PROGRAM)
    with refused("WrongAccount"):
        drop.create_id(9, airdrop_collateral=find_token_account(drop.address, drop.mint, TOKEN_PROGRAM))


def test_a_claimer_that_wants_memos_is_told_so(drop: AirdropHarness) -> None:
    wallet = drop.wallets[1]
    account = drop.token.find_account(wallet.pubkey())
    drop.chain.send(encode_switch_on(account, wallet.pubkey(), MEMO_TRANSFER), [wallet])
    with refused("TokenAccountMemoRequired"):
        drop.redeem(drop.lines[1], 1)
    assert drop.get_claimed(drop.lines[1]) == 0


def test_a_cpi_guard_does_not_keep_money_out(drop: AirdropHarness) -> None:
    wallet = drop.wallets[1]
    account = drop.token.find_account(wallet.pubkey())
    drop.chain.send(encode_switch_on(account, wallet.pubkey(), CPI_GUARD), [wallet])
    drop.redeem(drop.lines[1], 500)
    assert drop.get_paid(wallet) == 500


@pytest.mark.parametrize("whose", ["claimer", "vault"])
def test_frozen_accounts_are_refused_by_name(drop: AirdropHarness, whose: str) -> None:
    account: Pubkey = drop.vault if whose == "vault" else drop.token.find_account(drop.wallets[1].pubkey())
    drop.token.freeze(account)
    with refused("TokenAccountFrozen"):
        drop.redeem(drop.lines[1], 1)
