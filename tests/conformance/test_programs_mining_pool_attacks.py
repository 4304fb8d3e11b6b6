"""Attacks on the mining pool: whatever account, signer or byte is wrong, nothing moves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from mining_pool_harness import PROGRAMS, PoolHarness
from programs_harness import ProgramChain, Refused, refused
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_lender, find_token_account


class Attacked(PoolHarness):
    """Two lenders, 300 and 100; the vault still holds 200; a thief with token accounts and a record."""

    def __init__(self, *, enabled: bool = True) -> None:
        super().__init__(ProgramChain())
        self.tokens.open(self.authority.pubkey(), self.collateral)
        self.create()
        self.update(max_deposit=1000)
        self.first, self.second = self.make_lender("first", 1000), self.make_lender("second", 1000)
        self.deposit(self.first, 300)
        self.deposit(self.second, 100)
        self.extract(200)
        self.thief = self.make_lender("thief", 1000)
        if enabled:
            self.enable()
            self.repay(1000)

    def make_other(self) -> PoolHarness:
        """Another pool, the thief's own, as rich and enabled."""
        other = PoolHarness(self.chain, 2)
        other.authority = self.thief
        other.tokens.open(self.thief.pubkey(), other.collateral)
        other.create()
        other.update(max_deposit=1000)
        other.make_lender("thief", 1000)
        other.deposit(self.thief, 1000)
        other.enable()
        other.repay(1000)
        return other

    def observe(self) -> tuple[Any, ...]:
        """Everything that an attack could want to change."""
        keys = [self.address, self.vault, self.redeemable_vault]
        keys += [find_lender(self.address, user.pubkey()) for user in (self.first, self.second)]
        return tuple(self.chain.get_data(key) for key in keys)


@pytest.fixture
def pool() -> Attacked:
    return Attacked()


@pytest.fixture
def open_pool() -> Attacked:
    """Before claiming is enabled."""
    return Attacked(enabled=False)


def send(pool: Attacked, instruction: Instruction, signer: Keypair) -> None:
    pool.chain.send([instruction], [signer])


# ---- signers and authorities --------------------------------------------------------------------------


def test_only_the_authority_rules(open_pool: Attacked) -> None:
    thief = open_pool.thief
    for act in (
        lambda: open_pool.update(signer=thief),
        lambda: open_pool.update(freeze=False, signer=thief),
        lambda: open_pool.extract(1, signer=thief),
        lambda: open_pool.enable(signer=thief),
    ):
        with refused("WrongAuthority"):
            act()


@pytest.mark.parametrize("name", get_program("mining_pool").instruction_names)
def test_whoever_must_sign_must_sign_and_what_changes_must_be_writable(name: str) -> None:
    pool = Attacked(enabled=name == "lender_claim")
    valid = make_valid_instruction(pool, name)
    thief = AccountMeta(pool.thief.pubkey(), True, True)
    for number, meta in enumerate(valid.accounts):
        if not meta.is_signer:
            continue
        # the payer is often the authority too: somebody else signs in the other places
        metas = [thief if other.is_signer else other for other in valid.accounts]
        metas[number] = AccountMeta(meta.pubkey, False, meta.is_writable)
        with refused("NotSigner"):
            send(pool, Instruction(valid.program_id, valid.data, metas), pool.thief)
    for number, meta in enumerate(valid.accounts):
        # a payer is writable whatever the instruction says
        if meta.is_writable and not meta.is_signer:
            with refused("NotWritable"):
                send(
                    pool,
                    replace(valid, number, AccountMeta(meta.pubkey, False, False)),
                    get_signer(pool, name),
                )
    send(pool, valid, get_signer(pool, name))


def make_valid_instruction(pool: Attacked, name: str) -> Instruction:
    """An instruction that is refused for no reason; it was not sent with success yet."""
    captured: list[Instruction] = []
    original = pool.chain.send
    pool.chain.send = lambda instructions, signers: captured.extend(instructions)  # type: ignore[method-assign]
    try:
        acts: dict[str, Callable[[], None]] = {
            "pool_create": lambda: FreshPool(pool).create(),
            "pool_update": lambda: pool.update(metadata="changed"),
            "pool_extract": lambda: pool.extract(1),
            "pool_claimable": lambda: pool.enable(),
            "lender_create": lambda: pool.enter(pool.authority),
            "lender_deposit": lambda: pool.deposit(pool.first, 1),
            "lender_claim": lambda: pool.claim(pool.first, 1),
        }
        acts[name]()
    finally:
        pool.chain.send = original  # type: ignore[method-assign]
    return captured[-1]


class FreshPool(PoolHarness):
    """A pool that is not created yet, with the attacked one's authority and mint."""

    def __init__(self, pool: Attacked) -> None:
        self.__dict__.update(pool.__dict__)
        self.index = 77
        self.address = Pubkey.find_program_address(
            [b"Pool", (77).to_bytes(8, "little")], get_program_id("mining_pool")
        )[0]
        self.vault = find_token_account(self.address, self.collateral)


def get_signer(pool: Attacked, name: str) -> Keypair:
    return pool.first if name in ("lender_deposit", "lender_claim") else pool.authority


def replace(instruction: Instruction, number: int, meta: AccountMeta) -> Instruction:
    metas = list(instruction.accounts)
    metas[number] = meta
    return Instruction(instruction.program_id, instruction.data, metas)


# ---- every account, swapped ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", get_program("mining_pool").instruction_names)
def test_any_account_replaced_by_any_other_is_refused(name: str) -> None:
    """Whatever the slot and whatever is put there; then the untouched instruction passes."""
    pool = Attacked(enabled=name == "lender_claim")
    other = pool.make_other()
    valid, signer = make_valid_instruction(pool, name), get_signer(pool, name)
    crowd = [
        *(meta.pubkey for meta in valid.accounts),
        *(pool.address, pool.vault, pool.redeemable_vault, pool.collateral, pool.redeemable),
        *(other.address, other.vault, other.redeemable_vault, other.collateral, other.redeemable),
        *(pool.redeemable_authority, other.redeemable_authority, get_program_id("treasurer")),
        *(find_lender(p.address, user.pubkey()) for p in (pool, other) for user in (pool.first, pool.thief)),
        *(find_token_account(pool.thief.pubkey(), mint) for mint in (pool.collateral, pool.redeemable)),
        pool.tokens.open_spare(pool.address, pool.collateral, 1000),
        pool.tokens.open_spare(pool.redeemable_authority, pool.redeemable, 1000),
        *(*PROGRAMS.values(), pool.thief.pubkey(), Pubkey.default()),
    ]
    before, tried = pool.observe(), 0
    for number, meta in enumerate(valid.accounts):
        for key in crowd:
            if meta.is_signer or key == meta.pubkey:
                continue
            changed = replace(valid, number, AccountMeta(key, False, meta.is_writable))
            with pytest.raises((Refused, pytest.fail.Exception)):
                send(pool, changed, signer)
            tried += 1
    assert tried >= 20
    assert pool.observe() == before
    send(pool, valid, signer)


# ---- accounts that nobody could make ------------------------------------------------------------------


def test_forged_pools_are_refused(pool: Attacked) -> None:
    elsewhere = Keypair().pubkey()
    pool.forge(pool.address, elsewhere)
    with refused("WrongPda"):
        pool.update(pool=elsewhere)
    pool.forge(pool.address, elsewhere, owner=get_program_id("treasurer"))
    with refused("WrongOwner"):
        pool.update(pool=elsewhere)
    data = bytes(pool.chain.svm.get_account(pool.address).data)
    for wrong in (data[:-1], data + b"\0", b"\0" * len(data), bytes([data[0] ^ 1]) + data[1:], b""):
        pool.forge(pool.address, elsewhere, data=wrong)
        with refused("WrongDiscriminator"):
            pool.update(pool=elsewhere)


def test_forged_lenders_are_refused(pool: Attacked) -> None:
    mine = find_lender(pool.address, pool.thief.pubkey())
    rich = find_lender(pool.address, pool.first.pubkey())
    elsewhere = Keypair().pubkey()
    pool.forge(rich, elsewhere)
    with refused("WrongPda"):
        pool.claim(pool.thief, 1, lender=elsewhere)
    pool.forge(rich, elsewhere, owner=SYSTEM_PROGRAM)
    with refused("WrongOwner"):
        pool.claim(pool.thief, 1, lender=elsewhere)
    data = bytes(pool.chain.svm.get_account(mine).data)
    for wrong in (data[:-1], data + b"\0", bytes(len(data)), b""):
        pool.forge(mine, mine, data=wrong)
        with refused("WrongDiscriminator"):
            pool.claim(pool.thief, 1)
    with refused("WrongDiscriminator"):
        pool.claim(pool.thief, 1, lender=pool.address)


def test_a_bump_that_is_not_the_canonical_one_makes_no_account(pool: Attacked) -> None:
    program_id, seeds = get_program_id("mining_pool"), [b"Pool", (77).to_bytes(8, "little")]
    _, bump = Pubkey.find_program_address(seeds, program_id)
    others = []
    for lower in range(bump):
        # half of the bumps give a point of the curve: a PubkeyError, which solders does not export
        with suppress(Exception):
            others.append(Pubkey.create_program_address([*seeds, bytes([lower])], program_id))
    assert others
    fresh = FreshPool(pool)
    for address in others[-3:]:
        vault = find_token_account(address, pool.collateral)
        with refused("WrongPda"):
            fresh.create(pool=address, pool_collateral=vault)
    with refused("WrongPda"):
        fresh.create(index=78)


def test_records_are_made_once_and_only_for_who_signs(pool: Attacked) -> None:
    with refused("AlreadyInitialized"):
        pool.enter(pool.first)
    third = pool.chain.make_wallet("third")
    with refused("WrongPda"):
        pool.enter(third, lender=find_lender(pool.address, pool.authority.pubkey()))
    with refused("WrongOwner"):
        pool.enter(third, pool=third.pubkey())
    other = pool.make_other()
    with refused("WrongPda"):
        pool.enter(third, pool=other.address)


# ---- claims -------------------------------------------------------------------------------------------


def test_claiming_twice_pays_once(pool: Attacked) -> None:
    claim = make_valid_instruction(pool, "lender_claim")
    args = {"redeemable_amount": 750}
    accounts = dict(zip(CLAIM_ACCOUNTS, (meta.pubkey for meta in claim.accounts), strict=True))
    whole = get_program("mining_pool").encode("lender_claim", accounts, args)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.chain.send([whole, whole], [pool.first])
    assert pool.get_paid(pool.first) == 0
    pool.claim(pool.first, 750)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(pool.first, 1)
    assert pool.get_paid(pool.first) == 750


CLAIM_ACCOUNTS = (
    *("user", "user_redeemable", "pool", "redeemable_authority", "pool_redeemable"),
    *("redeemable_mint", "lender", "token_program"),
)


def test_nobody_claims_or_deposits_for_another(pool: Attacked, open_pool: Attacked) -> None:
    record = find_lender(pool.address, pool.first.pubkey())
    with refused("WrongPda"):
        pool.claim(pool.thief, 1, lender=record)
    with refused("ParamsRedeemableAmountIsTooLarge"):
        pool.claim(pool.thief, 1)
    loot = find_token_account(pool.thief.pubkey(), pool.redeemable)
    with refused("WrongAccount"):
        pool.claim(pool.first, 1, user_redeemable=loot)
    with refused("WrongPda"):
        open_pool.deposit(open_pool.thief, 1, lender=record)
    victim = find_token_account(open_pool.first.pubkey(), open_pool.collateral)
    with refused("WrongAccount"):
        open_pool.deposit(open_pool.thief, 1, user_collateral=victim)
    with refused("WrongAccount"):
        open_pool.deposit(open_pool.thief, 1, user_collateral=open_pool.vault)


def test_another_mints_tokens_are_refused_before_anything_is_moved(pool: Attacked) -> None:
    open_pool = Attacked(enabled=False)
    first, authority = pool.first.pubkey(), pool.authority.pubkey()
    with refused("WrongAccount"):
        pool.claim(pool.first, 1, user_redeemable=find_token_account(first, pool.collateral))
    with refused("WrongAccount"):
        wrong = find_token_account(first, open_pool.redeemable)
        open_pool.deposit(open_pool.first, 1, user_collateral=wrong)
    with refused("WrongAccount"):
        pool.extract(1, authority_collateral=pool.tokens.open(authority, pool.redeemable))


def test_a_vault_beside_the_vault_counts_for_nothing(pool: Attacked) -> None:
    """Tokens that the thief owns through a second account of the same owner must not raise its share."""
    spare = pool.tokens.open_spare(pool.redeemable_authority, pool.redeemable, 10**9)
    with refused("WrongAccount"):
        pool.claim(pool.first, 1, pool_redeemable=spare)
    beside = pool.tokens.open_spare(pool.address, pool.collateral, 10**9)
    with refused("WrongAccount"):
        pool.extract(1, pool_collateral=beside)


def test_one_pools_record_opens_no_other_pool(pool: Attacked) -> None:
    other = pool.make_other()
    record = find_lender(other.address, pool.thief.pubkey())
    with refused("WrongPda"):
        pool.claim(pool.thief, 1, lender=record)
    with refused("WrongPda"):
        pool.claim(pool.thief, 1, pool=other.address)
    with refused("WrongAccount"):
        pool.claim(pool.thief, 1, pool=other.address, lender=record)
    with refused("WrongAccount"):
        other.extract(1, pool_collateral=pool.vault)
    with refused("WrongAccount"):
        other.claim(pool.thief, 1, redeemable_mint=pool.redeemable)


def test_enabling_takes_only_its_own_new_vault(open_pool: Attacked) -> None:
    with refused("WrongPda"):
        open_pool.enable(redeemable_authority=open_pool.thief.pubkey())
    with refused("WrongPda"):
        open_pool.enable(redeemable_authority=open_pool.address)
    loot = find_token_account(open_pool.thief.pubkey(), open_pool.redeemable)
    with pytest.raises(pytest.fail.Exception, match="InvalidSeeds"):
        open_pool.enable(pool_redeemable=loot)
    with refused("WrongOwner"):
        open_pool.enable(redeemable_mint=open_pool.thief.pubkey())
    for name in PROGRAMS:
        with refused("WrongProgram"):
            open_pool.enable(**{name: get_program_id("treasurer")})
    assert not open_pool.pool.claiming_enabled


def test_programs_are_the_real_ones(pool: Attacked, open_pool: Attacked) -> None:
    fake = get_program_id("treasurer")
    for act in (
        lambda: pool.claim(pool.first, 1, token_program=fake),
        lambda: pool.extract(1, token_program=fake),
        lambda: open_pool.deposit(open_pool.first, 1, token_program=fake),
        lambda: pool.enter(pool.authority, system_program=fake),
    ):
        with refused("WrongProgram"):
            act()
    for name in PROGRAMS:
        with refused("WrongProgram"):
            FreshPool(pool).create(**{name: fake})


# ---- bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", get_program("mining_pool").instruction_names)
def test_data_and_accounts_must_be_whole(name: str) -> None:
    pool = Attacked(enabled=name == "lender_claim")
    valid, signer = make_valid_instruction(pool, name), get_signer(pool, name)
    data, before = bytes(valid.data), pool.observe()
    wrong = [data[:length] for length in range(len(data))] + [data + b"\0", bytes([data[0] ^ 1]) + data[1:]]
    for changed in wrong:
        with refused("InvalidInstructionData"):
            send(pool, Instruction(valid.program_id, changed, valid.accounts), signer)
    for num_accounts in range(len(valid.accounts)):
        fewer = Instruction(valid.program_id, data, valid.accounts[:num_accounts])
        with refused("MissingAccount"):
            send(pool, fewer, signer)
    assert pool.observe() == before


@pytest.mark.parametrize("tail", [b"\2", b"\xff", b"\1\2", b"\0\0\1\xff\xff\xff\xff", b"\1"])
def test_options_and_texts_with_impossible_bytes(pool: Attacked, tail: bytes) -> None:
    valid = make_valid_instruction(pool, "pool_update")
    instruction = Instruction(valid.program_id, bytes(valid.data)[:8] + tail, valid.accounts)
    with refused("InvalidInstructionData"):
        send(pool, instruction, pool.authority)


def test_a_pools_tokens_have_no_other_way_out(pool: Attacked) -> None:
    """The token program asks for a signature that nobody can give."""
    with pytest.raises(pytest.fail.Exception, match="owner does not match"):
        pool.tokens.move(
            pool.redeemable_vault,
            find_token_account(pool.thief.pubkey(), pool.redeemable),
            pool.thief,
            1,
        )
    assert pool.tokens.get_amount(pool.redeemable_vault) == 1000
