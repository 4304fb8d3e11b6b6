"""Authorizations that end by themselves, and accounts from before there were expiries."""

from __future__ import annotations

from typing import Any

import pytest
from programs_harness import ANYBODY, ProgramChain, RunHarness, make_config, make_model, refused
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from psyche_py.chain.accounts import Authorization
from psyche_py.chain.anchor import get_program
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.chain.port import AccountInfo


@pytest.fixture
def run() -> RunHarness:
    """A run that waits for members and that nobody has been let into."""
    run = RunHarness(ProgramChain())
    run.create()
    run.update(config=make_config().to_bytes())
    run.update(model=make_model().to_bytes())
    run.own("set_paused", paused=False)
    return run


def set_expiry(chain: ProgramChain, grantor: Keypair, address: Pubkey, expires: int, **args: Any) -> None:
    """The grantor's instruction; ``lamports`` are sent to the account before it."""
    accounts = {"grantor": grantor.pubkey(), "authorization": address}
    lamports = args.pop("lamports", 0)
    params = TransferParams(from_pubkey=grantor.pubkey(), to_pubkey=address, lamports=lamports)
    values = {"active": True, "expires_unix_timestamp": expires, **args}
    update = get_program("authorizer").encode("authorization_grantor_update", accounts, values)
    chain.send([transfer(params), update] if lamports else [update], [grantor])


def name_delegates(chain: ProgramChain, grantee: Keypair, address: Pubkey, added: list[Pubkey]) -> None:
    accounts = {
        "payer": grantee.pubkey(),
        "grantee": grantee.pubkey(),
        "authorization": address,
        "system_program": SYSTEM_PROGRAM,
    }
    args = {"delegates_clear": False, "delegates_added": added}
    chain.send([get_program("authorizer").encode("authorization_grantee_update", accounts, args)], [grantee])


def age(chain: ProgramChain, address: Pubkey) -> None:
    """Make it what the program wrote before there were expiries, with the rent of then."""
    data = bytes(chain.svm.get_account(address).data)[:-8]
    rent = chain.svm.minimum_balance_for_rent_exemption(len(data))
    owner = get_program("authorizer").program_id
    chain.svm.set_account(address, Account(rent, data, owner))


def read(chain: ProgramChain, address: Pubkey) -> Authorization:
    account = chain.svm.get_account(address)
    return Authorization.decode(AccountInfo(address, account.lamports, account.owner, account.data, 0))


@pytest.mark.parametrize("whose", ["everybody's", "the user's", "a delegate's"])
def test_it_counts_until_the_second_before_its_expiry(run: RunHarness, whose: str) -> None:
    chain, user = run.chain, run.chain.make_wallet("user")
    grantee = {"everybody's": ANYBODY, "the user's": user.pubkey()}.get(
        whose, chain.make_wallet("x").pubkey()
    )
    address = chain.authorize(run.owner, grantee, expires=chain.now + 1000)
    if whose == "a delegate's":
        name_delegates(chain, chain.make_wallet("x"), address, [user.pubkey()])
        assert read(chain, address).expires_unix_timestamp == chain.now + 1000
    chain.advance(999)
    run.join(user, authorization=address)
    assert len(run.account.entries) == 1
    for seconds in (1, 1, 10**9):
        chain.advance(seconds)
        with refused("NotAuthorized"):
            run.join(user, authorization=address)


def test_the_grantor_can_move_it(run: RunHarness) -> None:
    chain, user = run.chain, run.chain.make_wallet("user")
    address = chain.authorize(run.owner, ANYBODY, expires=chain.now)
    with refused("NotAuthorized"):
        run.join(user)
    set_expiry(chain, run.owner, address, chain.now + 1)
    run.join(user)
    set_expiry(chain, run.owner, address, chain.now)
    with refused("NotAuthorized"):
        run.join(user)
    set_expiry(chain, run.owner, address, 0)
    chain.advance(10**9)
    run.join(user)


def test_both_ends_of_the_number(run: RunHarness) -> None:
    address = run.chain.authorize(run.owner, ANYBODY)
    for expires in (-1, -(2**63)):
        with refused("InvalidExpiry"):
            set_expiry(run.chain, run.owner, address, expires)
    set_expiry(run.chain, run.owner, address, 2**63 - 1)
    run.join(run.chain.make_wallet("user"))
    set_expiry(run.chain, run.owner, address, 1)
    with refused("NotAuthorized"):
        run.join(run.chain.make_wallet("user"))


def test_only_the_grantor_moves_it(run: RunHarness) -> None:
    grantee = run.chain.make_wallet("grantee")
    address = run.chain.authorize(run.owner, grantee.pubkey(), expires=run.chain.now + 5)
    with refused("WrongAuthority"):
        set_expiry(run.chain, grantee, address, 0)
    name_delegates(run.chain, grantee, address, [grantee.pubkey()] * 3)
    assert read(run.chain, address).expires_unix_timestamp == run.chain.now + 5


def test_an_expired_one_that_is_switched_off_and_on_stays_expired(run: RunHarness) -> None:
    chain = run.chain
    address = chain.authorize(run.owner, ANYBODY, expires=chain.now)
    for active in (False, True):
        set_expiry(chain, run.owner, address, chain.now, active=active)
        with refused("NotAuthorized"):
            run.join(chain.make_wallet("user"))


def test_who_joined_with_an_expired_one_is_not_in_the_next_epoch(run: RunHarness) -> None:
    chain, stranger = run.chain, run.chain.make_wallet("stranger")
    run.wallets = [chain.make_wallet(f"client {i}") for i in range(3)]
    short = chain.authorize(run.owner, run.wallets[0].pubkey(), expires=chain.now + 3)
    chain.authorize(run.owner, ANYBODY)
    run.join(run.wallets[0], authorization=short)
    for wallet in run.wallets[1:]:
        run.join(wallet)
    chain.advance(2)
    with refused("AuthorizationStillValid"):
        run.act("remove_unauthorized", stranger, entry=0, authorization=short)
    chain.advance(1)
    run.act("remove_unauthorized", stranger, entry=0, authorization=short)
    run.tick(1)
    assert [client.entry for client in run.account.epoch_clients] == [1, 2]


def test_who_joined_with_a_closed_one_is_not_in_the_next_epoch(run: RunHarness) -> None:
    chain, user = run.chain, run.chain.make_wallet("user")
    address = chain.authorize(run.owner, user.pubkey())
    run.join(user, authorization=address)
    set_expiry(chain, run.owner, address, 0, active=False)
    accounts = {"grantor": run.owner.pubkey(), "spill": run.owner.pubkey(), "authorization": address}
    chain.send([get_program("authorizer").encode("authorization_close", accounts, {})], [run.owner])
    run.act("remove_unauthorized", user, entry=0, authorization=address)
    assert run.account.entries[0].active == 0


# ---- accounts from before there were expiries -----------------------------------------------------------


def test_an_older_account_stays_valid_and_never_expires(run: RunHarness) -> None:
    chain, user = run.chain, run.chain.make_wallet("user")
    address = chain.authorize(run.owner, ANYBODY)
    age(chain, address)
    assert read(chain, address).expires_unix_timestamp == 0
    chain.advance(10**9)
    run.join(user)
    set_expiry(chain, run.owner, address, 0, active=False)
    with refused("NotAuthorized"):
        run.join(user)
    assert not read(chain, address).active
    set_expiry(chain, run.owner, address, 0)
    run.join(user)


def test_an_older_account_with_delegates_stays_valid(run: RunHarness) -> None:
    chain, grantee = run.chain, run.chain.make_wallet("grantee")
    address = chain.authorize(run.owner, grantee.pubkey())
    delegates = [chain.make_wallet(name).pubkey() for name in ("a", "b")]
    name_delegates(chain, grantee, address, delegates)
    age(chain, address)
    run.join(chain.make_wallet("b"), authorization=address)
    assert list(read(chain, address).delegates) == delegates


def test_an_older_account_gets_an_expiry_when_its_rent_is_sent(run: RunHarness) -> None:
    chain = run.chain
    address = chain.authorize(run.owner, ANYBODY)
    age(chain, address)
    before = read(chain, address)
    with refused("ExpiryNeedsRent"):
        set_expiry(chain, run.owner, address, chain.now + 7)
    rents = [chain.svm.minimum_balance_for_rent_exemption(size) for size in (0, 8)]
    with refused("ExpiryNeedsRent"):
        set_expiry(chain, run.owner, address, chain.now + 7, lamports=rents[1] - rents[0] - 1)
    set_expiry(chain, run.owner, address, chain.now + 7, lamports=rents[1] - rents[0])
    after = read(chain, address)
    assert after.expires_unix_timestamp == chain.now + 7
    assert (after.grantee, after.delegates, after.scope) == (before.grantee, before.delegates, before.scope)
    chain.advance(7)
    with refused("NotAuthorized"):
        run.join(chain.make_wallet("user"))


def test_naming_delegates_brings_an_older_account_up_to_date(run: RunHarness) -> None:
    chain, grantee = run.chain, run.chain.make_wallet("grantee")
    address = chain.authorize(run.owner, grantee.pubkey())
    age(chain, address)
    updated = read(chain, address).grantor_update_unix_timestamp
    chain.advance(5)
    name_delegates(chain, grantee, address, [chain.make_wallet("a").pubkey()])
    data = chain.get_data(address)
    assert data is not None
    assert not Authorization.lacks_expiry(data)
    after = read(chain, address)
    assert (after.expires_unix_timestamp, after.grantor_update_unix_timestamp) == (0, updated)
    run.join(chain.make_wallet("a"), authorization=address)


@pytest.mark.parametrize("cut", [1, 7, 9, 16, 20])
def test_a_length_between_the_layouts_is_neither(run: RunHarness, cut: int) -> None:
    chain = run.chain
    address = chain.authorize(run.owner, ANYBODY)
    account = chain.svm.get_account(address)
    data = bytes(account.data)[:-cut]
    chain.svm.set_account(address, Account(account.lamports, data, account.owner))
    with refused("NotAuthorized"):
        run.join(chain.make_wallet("user"))
    with refused("WrongVersion"):
        set_expiry(chain, run.owner, address, 0)
