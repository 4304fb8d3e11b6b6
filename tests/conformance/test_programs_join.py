"""Who may join a run, and the life of an authorization."""

from __future__ import annotations

from typing import Any

import pytest
from programs_harness import (
    ANYBODY,
    NO_HINT,
    ProgramChain,
    RunHarness,
    make_config,
    make_model,
    make_p2p_key,
    refused,
)
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization
from psyche_py.coordinator.layout import RunState

SCOPE = b"CoordinatorJoinRun"
THIRTY_DAYS = 30 * 24 * 3600


@pytest.fixture
def chain() -> ProgramChain:
    return ProgramChain()


@pytest.fixture
def run(chain: ProgramChain) -> RunHarness:
    """A run that waits for members and that nobody has been let into."""
    run = RunHarness(chain)
    run.create()
    run.update(config=make_config().to_bytes())
    run.update(model=make_model().to_bytes())
    run.own("set_paused", paused=False)
    return run


def call(
    chain: ProgramChain, name: str, signers: list[Keypair], accounts: dict[str, Pubkey], **args: Any
) -> None:
    """An instruction of the authorizer; signers by role come first to last."""
    chain.send([get_program("authorizer").encode(name, accounts, args)], signers)


def update_delegates(
    chain: ProgramChain, grantee: Keypair, address: Pubkey, added: list[Pubkey], *, clear: bool = False
) -> None:
    """The grantee's instruction, paid by itself."""
    accounts = {
        "payer": grantee.pubkey(),
        "grantee": grantee.pubkey(),
        "authorization": address,
        "system_program": SYSTEM_PROGRAM,
    }
    args = {"delegates_clear": clear, "delegates_added": added}
    call(chain, "authorization_grantee_update", [grantee], accounts, **args)


def close(chain: ProgramChain, grantor: Keypair, address: Pubkey, spill: Pubkey | None = None) -> None:
    accounts = {
        "grantor": grantor.pubkey(),
        "spill": spill or grantor.pubkey(),
        "authorization": address,
    }
    call(chain, "authorization_close", [grantor], accounts)


def read(chain: ProgramChain, address: Pubkey) -> dict[str, Any]:
    data = chain.get_data(address)
    assert data is not None
    return get_program("authorizer").decode_account("Authorization", data)


# ---- joining ----------------------------------------------------------------------------------------------


def test_anybody_may_join_when_everybody_is_authorized(run: RunHarness) -> None:
    user = run.chain.make_wallet("user")
    run.chain.authorize(run.owner, ANYBODY)
    hint = bytes([1, 0, 0x1F, 0x90, 127, 0, 0, 1]).ljust(64, b"\0")
    run.join(user, address_hint=hint)
    (entry,) = run.account.entries
    assert (entry.signer, entry.p2p_key) == (bytes(user.pubkey()), bytes(make_p2p_key(user).pubkey()))
    assert entry.authorization == bytes(run.authorization)[:24]
    assert (entry.address_hint, entry.active) == (hint, run.account.next_active)
    before = run.account
    run.join(user, address_hint=hint)
    assert run.account == before, "joining twice changes nothing"


def test_a_named_user_may_join_and_nobody_else(run: RunHarness) -> None:
    user, other = run.chain.make_wallet("user"), run.chain.make_wallet("other")
    address = run.chain.authorize(run.owner, user.pubkey())
    with refused("NotAuthorized"):
        run.join(other, authorization=address)
    run.join(user, authorization=address)


def test_a_delegate_may_join(run: RunHarness) -> None:
    user, delegate = run.chain.make_wallet("user"), run.chain.make_wallet("delegate")
    address = run.chain.authorize(run.owner, user.pubkey())
    with refused("NotAuthorized"):
        run.join(delegate, authorization=address)
    update_delegates(run.chain, user, address, [run.owner.pubkey(), delegate.pubkey()])
    run.join(delegate, authorization=address)
    update_delegates(run.chain, user, address, [], clear=True)
    with refused("NotAuthorized"):
        run.join(delegate, authorization=address)


def test_an_inactive_authorization_does_not_count(run: RunHarness) -> None:
    address = run.chain.authorize(run.owner, ANYBODY, active=False)
    with refused("NotAuthorized"):
        run.join(run.chain.make_wallet("user"), authorization=address)


def test_somebody_elses_authorization_does_not_count(run: RunHarness) -> None:
    user = run.chain.make_wallet("user")
    with refused("NotAuthorized"):
        run.join(user, authorization=run.chain.authorize(user, user.pubkey()))


def test_an_authorization_of_another_scope_does_not_count(run: RunHarness) -> None:
    owner = run.owner.pubkey()
    address = find_authorization(owner, ANYBODY, b"Other")
    accounts = {"payer": owner, "grantor": owner, "authorization": address, "system_program": SYSTEM_PROGRAM}
    call(run.chain, "authorization_create", [run.owner], accounts, grantee=ANYBODY, scope=b"Other")
    accounts = {"grantor": owner, "authorization": address}
    call(
        run.chain,
        "authorization_grantor_update",
        [run.owner],
        accounts,
        active=True,
        expires_unix_timestamp=0,
    )
    with refused("NotAuthorized"):
        run.join(run.chain.make_wallet("user"), authorization=address)


def test_bytes_that_look_like_an_authorization_do_not_count(run: RunHarness) -> None:
    genuine = run.chain.svm.get_account(run.chain.authorize(run.owner, ANYBODY))
    fake = Pubkey.new_unique()
    for owner in (SYSTEM_PROGRAM, get_program_id("coordinator")):
        run.chain.svm.set_account(fake, type(genuine)(genuine.lamports, genuine.data, owner))
        with refused("NotAuthorized"):
            run.join(run.chain.make_wallet("user"), authorization=fake)


def test_keys_may_not_change_while_in_an_epoch(run: RunHarness) -> None:
    run.chain.authorize(run.owner, ANYBODY)
    run.wallets = [run.chain.make_wallet(f"client {i}") for i in range(3)]
    run.join_all()
    first, second = (make_p2p_key(run.wallets[0], version) for version in (1, 2))
    run.join(run.wallets[0], p2p=first)
    run.start_training()
    with refused("ClientKeysInUse"):
        run.join(run.wallets[0], p2p=second)
    run.join(run.wallets[0], p2p=first, address_hint=bytes([2]).ljust(64, b"\0"))
    with refused("InvalidAddressHint"):
        run.join(run.wallets[0], p2p=first, address_hint=bytes([4]).ljust(64, b"\0"))
    run.act("leave_run", run.wallets[1])
    run.join(run.wallets[1], p2p=second)


def test_a_p2p_key_names_one_client(run: RunHarness) -> None:
    run.chain.authorize(run.owner, ANYBODY)
    first, second = run.chain.make_wallet("first"), run.chain.make_wallet("second")
    run.join(first)
    with refused("P2pKeyInUse"):
        run.join(second, p2p=make_p2p_key(first))
    run.join(second)
    with refused("P2pKeyInUse"):
        run.join(second, p2p=make_p2p_key(first))
    run.join(first, p2p=make_p2p_key(first, 1))
    run.join(second, p2p=make_p2p_key(first))


def test_a_p2p_key_must_sign(run: RunHarness) -> None:
    run.chain.authorize(run.owner, ANYBODY)
    user = run.chain.make_wallet("user")
    join = run.encode("join_run", user, p2p=make_p2p_key(user), address_hint=NO_HINT)
    unsigned = [AccountMeta(meta.pubkey, i == 0, meta.is_writable) for i, meta in enumerate(join.accounts)]
    with refused("NotSigner"):
        run.chain.send([Instruction(join.program_id, bytes(join.data), unsigned)], [user])


def test_who_is_not_authorized_any_more_is_out_of_the_next_epoch(run: RunHarness) -> None:
    """Revoking works from the next epoch on, also for who has joined it already."""
    run.chain.authorize(run.owner, ANYBODY)
    run.wallets = [run.chain.make_wallet(f"client {i}") for i in range(3)]
    personal = run.chain.authorize(run.owner, run.wallets[0].pubkey())
    run.join(run.wallets[0], authorization=personal)
    run.join(run.wallets[1])
    run.join(run.wallets[2])
    stranger = run.chain.make_wallet("stranger")
    with refused("AuthorizationStillValid"):
        run.act("remove_unauthorized", stranger, entry=0, authorization=personal)
    with refused("WrongAccount"):
        run.act("remove_unauthorized", stranger, entry=1, authorization=personal)
    with refused("SignerNotAClient"):
        run.act("remove_unauthorized", stranger, entry=3, authorization=personal)
    accounts = {"grantor": run.owner.pubkey(), "authorization": personal}
    off = {"active": False, "expires_unix_timestamp": 0}
    call(run.chain, "authorization_grantor_update", [run.owner], accounts, **off)
    run.act("remove_unauthorized", stranger, entry=0, authorization=personal)
    run.tick(4)
    assert [client.entry for client in run.account.epoch_clients] == [1, 2]


def test_a_full_run_takes_a_newcomer_in_the_place_of_one_that_nobody_misses(run: RunHarness) -> None:
    run.chain.authorize(run.owner, ANYBODY)
    others = [run.chain.make_wallet(f"client {i}") for i in range(256)]
    for wallet in others:
        run.join(wallet)
    assert not run.account.has_room
    newcomer = run.chain.make_wallet("newcomer")
    with refused("ClientsFull"):
        run.join(newcomer)
    run.act("leave_run", others[6])
    assert run.account.has_room
    run.join(newcomer)
    assert run.account.find_entry(bytes(newcomer.pubkey())) == 6
    assert run.account.find_entry(bytes(others[6].pubkey())) is None
    with refused("ClientsFull"):
        run.join(others[6])


def test_a_client_that_joins_too_late_waits_for_the_next_epoch(run: RunHarness) -> None:
    run.chain.authorize(run.owner, ANYBODY)
    run.wallets = [run.chain.make_wallet(f"client {i}") for i in range(2)]
    run.join_all()
    run.start_training()
    late = run.chain.make_wallet("late")
    run.join(late)
    assert run.account.find_epoch_client(bytes(late.pubkey())) is None
    assert run.account.entries[2].active == run.account.next_active
    assert run.state is RunState.RoundTrain


# ---- authorizations ---------------------------------------------------------------------------------------


def test_authorization_life_cycle(chain: ProgramChain) -> None:
    grantor, grantee = chain.make_wallet("grantor"), chain.make_wallet("grantee")
    address = find_authorization(grantor.pubkey(), grantee.pubkey())
    accounts = {
        "payer": grantee.pubkey(),
        "grantor": grantor.pubkey(),
        "authorization": address,
        "system_program": SYSTEM_PROGRAM,
    }
    args = {"grantee": grantee.pubkey(), "scope": SCOPE}
    call(chain, "authorization_create", [grantee, grantor], accounts, **args)
    with refused("AlreadyInitialized"):
        call(chain, "authorization_create", [grantee, grantor], accounts, **args)
    assert read(chain, address) == {
        "bump": Pubkey.find_program_address(
            [b"Authorization", bytes(grantor.pubkey()), bytes(grantee.pubkey()), SCOPE],
            get_program_id("authorizer"),
        )[1],
        "grantor": grantor.pubkey(),
        "grantee": grantee.pubkey(),
        "scope": SCOPE,
        "active": False,
        "delegates": [],
        "grantor_update_unix_timestamp": chain.now,
        "expires_unix_timestamp": 0,
    }
    chain.advance(10)
    own = {"grantor": grantor.pubkey(), "authorization": address}
    call(chain, "authorization_grantor_update", [grantor], own, active=True, expires_unix_timestamp=0)
    assert read(chain, address)["grantor_update_unix_timestamp"] == chain.now
    with refused("AuthorizationActiveIsTrue"):
        close(chain, grantor, address)
    call(chain, "authorization_grantor_update", [grantor], own, active=False, expires_unix_timestamp=0)
    close(chain, grantor, address)
    assert chain.get_data(address) is None


def test_delegates_are_protected_for_thirty_days(chain: ProgramChain) -> None:
    grantor, grantee = chain.make_wallet("grantor"), chain.make_wallet("grantee")
    address = chain.authorize(grantor, grantee.pubkey(), active=False)
    update_delegates(chain, grantee, address, [grantor.pubkey()])
    chain.advance(THIRTY_DAYS - 1)
    with refused("AuthorizationClosingConditionsNotReachedYet"):
        close(chain, grantor, address)
    chain.advance(1)
    before = chain.svm.get_balance(grantor.pubkey()) + chain.svm.get_balance(address)
    close(chain, grantor, address)
    assert chain.svm.get_balance(grantor.pubkey()) == before - 5000


def test_delegates_are_kept_in_order_and_paid_for(chain: ProgramChain) -> None:
    grantor, grantee = chain.make_wallet("grantor"), chain.make_wallet("grantee")
    address = chain.authorize(grantor, grantee.pubkey())
    keys = [Pubkey.new_unique() for _ in range(25)]
    updated = read(chain, address)["grantor_update_unix_timestamp"]
    chain.advance(5)
    update_delegates(chain, grantee, address, keys[:20])
    update_delegates(chain, grantee, address, keys[20:])
    fields = read(chain, address)
    assert fields["delegates"] == keys
    assert (fields["active"], fields["grantor_update_unix_timestamp"]) == (True, updated)
    data = chain.get_data(address)
    assert data is not None
    rent = chain.svm.minimum_balance_for_rent_exemption(len(data))
    assert chain.svm.get_balance(address) >= rent
    update_delegates(chain, grantee, address, keys[3:5], clear=True)
    assert read(chain, address)["delegates"] == keys[3:5]


def test_there_is_a_limit_to_delegates_and_scopes(chain: ProgramChain) -> None:
    grantor, grantee = chain.make_wallet("grantor"), chain.make_wallet("grantee")
    address = chain.authorize(grantor, grantee.pubkey())
    for _ in range(12):
        update_delegates(chain, grantee, address, [grantor.pubkey()] * 20)
    update_delegates(chain, grantee, address, [grantor.pubkey()] * 16)
    with refused("TooManyDelegates"):
        update_delegates(chain, grantee, address, [grantor.pubkey()])
    owner = grantor.pubkey()
    accounts = {"payer": owner, "grantor": owner, "authorization": address, "system_program": SYSTEM_PROGRAM}
    with refused("ScopeTooLong"):
        call(chain, "authorization_create", [grantor], accounts, grantee=ANYBODY, scope=bytes(33))


def test_only_grantor_and_grantee_may_change_an_authorization(chain: ProgramChain) -> None:
    grantor, grantee, thief = (chain.make_wallet(name) for name in ("grantor", "grantee", "thief"))
    address = chain.authorize(grantor, grantee.pubkey(), active=False)
    with refused("WrongAuthority"):
        accounts = {"grantor": thief.pubkey(), "authorization": address}
        call(chain, "authorization_grantor_update", [thief], accounts, active=True, expires_unix_timestamp=0)
    with refused("WrongAuthority"):
        update_delegates(chain, thief, address, [thief.pubkey()])
    with refused("WrongAuthority"):
        close(chain, thief, address)
    with refused("WrongPda"):
        accounts = {
            "payer": thief.pubkey(),
            "grantor": thief.pubkey(),
            "authorization": find_authorization(grantor.pubkey(), thief.pubkey()),
            "system_program": SYSTEM_PROGRAM,
        }
        call(chain, "authorization_create", [thief], accounts, grantee=thief.pubkey(), scope=SCOPE)
    with refused("WrongAccount"):
        close(chain, grantor, address, spill=address)


def test_lamports_at_the_address_do_not_block_it(chain: ProgramChain) -> None:
    grantor = chain.make_wallet("grantor")
    address = find_authorization(grantor.pubkey(), ANYBODY)
    chain.svm.airdrop(address, 1_000_000)
    chain.authorize(grantor, ANYBODY)
    assert read(chain, address)["active"]
