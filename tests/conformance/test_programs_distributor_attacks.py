"""What thieves and liars try with an airdrop; each ends in the error that names what is wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from airdrop_harness import AirdropHarness
from programs_harness import ProgramChain, refused
from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import (
    ApproveParams,
    InitializeAccountParams,
    approve,
    create_associated_token_account,
    initialize_account,
)
from token_harness import TokenMint

from psyche_py.chain.allocation_tree import Node, compute_leaf, compute_parent
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_PROGRAM, find_claim, find_token_account

COORDINATOR = get_program_id("coordinator")


@pytest.fixture
def drop() -> AirdropHarness:
    """Funded, guaranteed, all claims made, everything vested; the authority has a token account."""
    drop = AirdropHarness(ProgramChain())
    drop.open(guaranteed_until=drop.chain.now + 1000)
    drop.make_collateral(drop.authority)
    drop.chain.advance(100)
    return drop


@pytest.fixture
def thief(drop: AirdropHarness) -> Keypair:
    """With a token account and claims of its own."""
    thief = drop.chain.make_wallet("thief")
    drop.make_collateral(thief)
    for nonce in (0, 3):
        drop.create_claim(thief, nonce)
    return thief


def level(node: Node) -> bytes:
    """A node as a proof carries it."""
    return node[0] + node[1].to_bytes(8, "little")


# ---- redeeming what is another's ------------------------------------------------------------------------


def test_a_line_pays_only_its_own_wallet(drop: AirdropHarness, thief: Keypair) -> None:
    line = drop.lines[1]
    own_claim = find_claim(drop.address, thief.pubkey(), 0)
    loot = find_token_account(thief.pubkey(), drop.mint)
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(line, 1, signer=thief, claim=own_claim, claimer_collateral=loot)
    with refused("WrongPda"):
        drop.redeem(line, 1, signer=thief, claimer_collateral=loot)
    with refused("WrongAccount"):
        drop.redeem(line, 1, claimer_collateral=loot)
    with refused("NotSigner"):
        drop.redeem(line, 1, unsigned="claimer")
    assert drop.get_amount(loot) == 0


def test_a_claim_counts_for_one_line_only(drop: AirdropHarness) -> None:
    """With the claim of another line, airdrop or nonce, what was redeemed would be forgotten."""
    _, _, large, small = drop.lines
    drop.redeem(large, 500)
    with refused("WrongPda"):
        drop.redeem(large, 1, claim=find_claim(drop.address, large.wallet, small.nonce))
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(large, 1, nonce=small.nonce, claim=find_claim(drop.address, large.wallet, small.nonce))
    other = AirdropHarness(drop.chain, 8)
    other.create()
    other.create_claim(drop.get_wallet(large), large.nonce)
    with refused("WrongPda"):
        drop.redeem(large, 1, claim=find_claim(other.address, large.wallet, large.nonce))
    with refused("WrongPda"):
        drop.redeem(large, 1, airdrop=other.address, airdrop_collateral=other.vault)


def test_nobody_makes_a_claim_for_another_or_twice(drop: AirdropHarness, thief: Keypair) -> None:
    victim = drop.wallets[0]
    with refused("NotSigner"):
        drop.create_claim(victim, 5, payer=thief, unsigned="claimer")
    with refused("WrongPda"):
        drop.create_claim(thief, 5, claim=find_claim(drop.address, victim.pubkey(), 5))
    with refused("WrongPda"):
        drop.create_claim(victim, 5, claim=find_claim(drop.address, victim.pubkey(), 6))
    line = drop.lines[1]
    drop.redeem(line, 500)
    with refused("AlreadyInitialized"):
        drop.create_claim(drop.wallets[1], 0)
    assert drop.get_claimed(line) == 500
    with refused("WrongOwner"):
        drop.create_claim(
            victim, 5, airdrop=victim.pubkey(), claim=find_claim(victim.pubkey(), victim.pubkey(), 5)
        )
    with refused("WrongProgram"):
        drop.create_claim(victim, 5, system_program=COORDINATOR)


# ---- forged proofs --------------------------------------------------------------------------------------


def test_every_value_of_a_line_is_proven(drop: AirdropHarness) -> None:
    line = drop.lines[0]
    for changes in (
        {"end_collateral_amount": 1001},
        {"end_collateral_amount": 999},
        {"start_unix_timestamp": line.start - 1},
        {"duration_seconds": 99},
        {"duration_seconds": 0},
    ):
        with refused("ParamsMerkleProofIsInvalid"):
            drop.redeem(line, 1, **changes)


def test_every_bit_of_a_proof_counts(drop: AirdropHarness) -> None:
    line = drop.lines[0]
    proof = drop.tree.get_proof(line)
    assert len(proof) == 80
    for at in range(len(proof)):
        forged = bytearray(proof)
        forged[at] ^= 1 << at % 8
        with refused("ParamsMerkleProofIsInvalid"):
            drop.redeem(line, 1, merkle_proof=bytes(forged))
    for forged in (b"", proof[:40], proof[40:], proof[40:] + proof[:40], proof + proof[:40], proof[:-1]):
        with refused("ParamsMerkleProofIsInvalid"):
            drop.redeem(line, 1, merkle_proof=forged)
    drop.redeem(line, 1)


def test_sums_that_overflow_prove_nothing(drop: AirdropHarness) -> None:
    """Neither by themselves, nor in a list that promises what they come to after the overflow."""
    line = drop.lines[0]
    sibling = (bytes([9] * 32), 2**64 - line.amount)
    low, high = sorted((compute_leaf(line), sibling))
    drop.chain.advance(1000)
    drop.update(list=hashlib.sha256(b"\1" + level(low) + level(high)).digest() + bytes(8))
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(line, 1, merkle_proof=level(sibling))
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(line, 1, merkle_proof=bytes(32) + b"\xff" * 8)


def parent_without_prefix(one: Node, other: Node) -> Node:
    """An inner node hashed like a leaf would be: without the byte 1."""
    low, high = sorted((one, other))
    return hashlib.sha256(level(low) + level(high)).digest(), one[1] + other[1]


def parent_as_leaf(one: Node, other: Node) -> Node:
    """An inner node under the leaf's byte 0."""
    low, high = sorted((one, other))
    return hashlib.sha256(b"\0" + level(low) + level(high)).digest(), one[1] + other[1]


@pytest.mark.parametrize("parent", [compute_parent, parent_without_prefix, parent_as_leaf])
def test_inner_nodes_and_leaves_are_hashed_apart(
    drop: AirdropHarness, parent: Callable[[Node, Node], Node]
) -> None:
    """The right tree is taken; one whose inner nodes could be mistaken for leaves is not."""
    drop.chain.advance(1000)
    one, other = drop.lines[:2]
    root = parent(compute_leaf(one), compute_leaf(other))
    drop.update(list=level(root))
    if parent is compute_parent:
        drop.redeem(one, 1, merkle_proof=level(compute_leaf(other)))
        return
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(one, 1, merkle_proof=level(compute_leaf(other)))


def test_an_inner_node_is_no_leaf(drop: AirdropHarness, thief: Keypair) -> None:
    """The second-preimage attack on trees without prefixes: a line made of an inner node's own bytes.

    The thief reads the 80 bytes under an inner node as if they were a line of its own: the first 32 as a
    wallet (one it can sign for only by luck), the next 28 as nonce, start, duration and amount.
    """
    leaves = sorted(compute_leaf(line) for line in drop.tree.allocations)
    inner = compute_parent(leaves[0], leaves[1])
    other = compute_parent(leaves[2], leaves[3])
    preimage = level(leaves[0]) + level(leaves[1])
    amount = int.from_bytes(preimage[52:60], "little")
    line = Allocation(
        Pubkey(preimage[:32]),
        amount,
        int.from_bytes(preimage[32:40], "little"),
        int.from_bytes(preimage[40:48], "little", signed=True),
        int.from_bytes(preimage[48:52], "little"),
    )
    assert line.to_bytes() == preimage[:60]
    # even with everything the thief could choose, the hash is another's: prefix and length differ
    assert compute_leaf(line)[0] != inner[0]
    for proof in (level(other), level(inner) + level(other), b""):
        with refused("ParamsMerkleProofIsInvalid"):
            drop.redeem(
                Allocation(thief.pubkey(), inner[1]),
                1,
                signer=thief,
                claimer_collateral=find_token_account(thief.pubkey(), drop.mint),
                merkle_proof=proof,
            )


# ---- an authority that lies -----------------------------------------------------------------------------


def test_a_list_that_declares_less_than_it_promises_proves_nothing(drop: AirdropHarness) -> None:
    """Else the authority could take the difference out of the vault during the guarantee."""
    drop.chain.advance(1000)
    root, total = drop.tree.merkle_root, drop.tree.total_amount
    for declared in (0, total - 1, total + 1):
        drop.update(list=root + declared.to_bytes(8, "little"))
        for line in drop.lines:
            with refused("ParamsMerkleProofIsInvalid"):
                drop.redeem(line, 1, merkle_proof=drop.tree.get_proof(line))


def test_a_branch_that_is_declared_too_small_cannot_be_proven(drop: AirdropHarness) -> None:
    drop.chain.advance(1000)
    a, b, c, _ = drop.lines
    pair = compute_parent(compute_leaf(a), compute_leaf(b))
    lie = (pair[0], 1)
    root = compute_parent(lie, compute_leaf(c))
    drop.update(list=level(root))
    for proof in (level(compute_leaf(b)) + level(compute_leaf(c)),):
        with refused("ParamsMerkleProofIsInvalid"):
            drop.redeem(a, 1, merkle_proof=proof)
    # whoever can be proven is counted in the sum
    drop.redeem(c, 500, merkle_proof=level(lie))
    assert drop.get_airdrop()["reserved_collateral_amount"] == 1


def test_only_the_authority_changes_and_withdraws(drop: AirdropHarness, thief: Keypair) -> None:
    drop.chain.advance(1000)
    loot = find_token_account(thief.pubkey(), drop.mint)
    with refused("WrongAuthority"):
        drop.update(signer=thief, claim_freeze=True)
    with refused("WrongAuthority"):
        drop.withdraw(1, signer=thief, recipient_collateral=loot)
    with refused("NotSigner"):
        drop.update(claim_freeze=True, unsigned="authority")
    with refused("NotSigner"):
        drop.withdraw(1, recipient_collateral=loot, unsigned="authority")
    # with an airdrop of its own it opens no other vault
    own = AirdropHarness(drop.chain, 9)
    own.create(signer=thief)
    with refused("WrongAccount"):
        own.withdraw(1, signer=thief, recipient_collateral=loot, airdrop_collateral=drop.vault)
    assert drop.get_amount() == 2040


# ---- wrong accounts -------------------------------------------------------------------------------------


def make_token_account(drop: AirdropHarness, owner: Pubkey, name: str) -> Pubkey:
    """A token account of the airdrop's mint that is nobody's associated one."""
    account = drop.chain.make_wallet(name + " payer")
    key = Keypair.from_seed(hashlib.sha256(name.encode()).digest())
    allocate = drop.chain.make_account(account, key, 165, TOKEN_PROGRAM)
    params = InitializeAccountParams(
        account=key.pubkey(), mint=drop.mint, owner=owner, program_id=TOKEN_PROGRAM
    )
    drop.chain.send([allocate, initialize_account(params)], [account, key])
    return key.pubkey()


def test_the_vault_is_the_associated_account_and_no_other(drop: AirdropHarness) -> None:
    """A second account of the airdrop's would let the authority withdraw beside the promise."""
    drop.chain.advance(1000)
    line = drop.lines[1]
    side = make_token_account(drop, drop.address, "side")
    drop.fund(1000, side)
    with refused("WrongAccount"):
        drop.redeem(line, 1, airdrop_collateral=side)
    with refused("WrongAccount"):
        drop.withdraw(1, airdrop_collateral=side)
    other = AirdropHarness(drop.chain, 8)
    other.open()
    with refused("WrongAccount"):
        drop.redeem(line, 1, airdrop_collateral=other.vault)
    with refused("WrongAccount"):
        other.create_id(9, airdrop_collateral=side)


def test_any_token_account_of_the_mint_can_be_withdrawn_to(drop: AirdropHarness, thief: Keypair) -> None:
    drop.chain.advance(1000)
    friend = make_token_account(drop, thief.pubkey(), "friend")
    drop.withdraw(10, recipient_collateral=friend)
    assert drop.get_amount(friend) == 10
    with refused("WrongAccount"):
        drop.withdraw(1, recipient_collateral=drop.vault)
    params = ApproveParams(
        program_id=TOKEN_PROGRAM,
        source=friend,
        delegate=drop.authority.pubkey(),
        owner=thief.pubkey(),
        amount=1,
    )
    drop.chain.send([approve(params)], [thief])
    with refused("WrongAccount"):
        drop.withdraw(1, recipient_collateral=friend)
    with refused("WrongOwner"):
        drop.withdraw(1, recipient_collateral=thief.pubkey())


def test_a_claimer_is_paid_to_a_clean_account_of_its_own(drop: AirdropHarness) -> None:
    line, wallet = drop.lines[1], drop.wallets[1]
    second = make_token_account(drop, wallet.pubkey(), "second")
    drop.redeem(line, 1, claimer_collateral=second)
    assert drop.get_amount(second) == 1
    params = ApproveParams(
        program_id=TOKEN_PROGRAM,
        source=second,
        delegate=drop.authority.pubkey(),
        owner=wallet.pubkey(),
        amount=1,
    )
    drop.chain.send([approve(params)], [wallet])
    with refused("WrongAccount"):
        drop.redeem(line, 1, claimer_collateral=second)
    with refused("WrongAccount"):
        drop.redeem(line, 1, claimer_collateral=drop.vault)


def test_another_mint(drop: AirdropHarness) -> None:
    drop.chain.advance(1000)
    line, wallet = drop.lines[1], drop.wallets[1]
    mint = TokenMint(drop.chain, drop.authority, "worthless")
    worthless, held, false_vault = mint.address, mint.make_account(wallet), mint.find_account(drop.address)
    payer = drop.authority.pubkey()
    drop.chain.send([create_associated_token_account(payer, drop.address, worthless)], [drop.authority])
    for changes in (
        {"collateral_mint": worthless},
        {"claimer_collateral": held},
        {"airdrop_collateral": false_vault},
        {"collateral_mint": worthless, "claimer_collateral": held, "airdrop_collateral": false_vault},
    ):
        with refused("WrongAccount"):
            drop.redeem(line, 1, **changes)
    with refused("WrongAccount"):
        drop.withdraw(1, recipient_collateral=held)
    with refused("WrongAccount"):
        drop.withdraw(1, collateral_mint=worthless)


def test_wrong_programs(drop: AirdropHarness) -> None:
    drop.chain.advance(1000)
    line = drop.lines[1]
    for program in (SYSTEM_PROGRAM, COORDINATOR):
        with refused("WrongProgram"):
            drop.redeem(line, 1, token_program=program)
        with refused("WrongProgram"):
            drop.withdraw(1, token_program=program)
        with refused("WrongProgram"):
            drop.create_id(9, token_program=program)
        with refused("WrongProgram"):
            drop.create_id(9, associated_token_program=program)
    with refused("WrongProgram"):
        drop.create_id(9, system_program=COORDINATOR)


def test_creation_is_strict(drop: AirdropHarness) -> None:
    with refused("WrongPda"):
        drop.create_id(9, id=10)
    with refused("WrongOwner"):
        drop.create_id(9, collateral_mint=drop.authority.pubkey(), airdrop_collateral=None)
    with refused("WrongAccount"):
        drop.create_id(9, collateral_mint=drop.vault, airdrop_collateral=None)
    with refused("ParamsMerkleRootIsZeroed"):
        drop.create_id(9, list=bytes(40))


def damage(drop: AirdropHarness, address: Pubkey, data: bytes, owner: Pubkey | None = None) -> None:
    """Replace an account behind the program's back."""
    account = drop.chain.svm.get_account(address)
    drop.chain.svm.set_account(address, Account(account.lamports, data, owner or account.owner))


@pytest.mark.parametrize("target", ["airdrop", "claim"])
def test_owner_kind_and_length_of_our_accounts(drop: AirdropHarness, target: str) -> None:
    line = drop.lines[1]
    address = drop.address if target == "airdrop" else find_claim(drop.address, line.wallet, line.nonce)
    original = drop.chain.get_data(address)
    assert original is not None
    damage(drop, address, original, owner=COORDINATOR)
    with refused("WrongOwner"):
        drop.redeem(line, 1)
    owner = get_program_id("distributor")
    for data in (original[:-1], original + b"\0", b"", bytes([original[0] ^ 1]) + original[1:]):
        damage(drop, address, data, owner=owner)
        with refused("WrongDiscriminator"):
            drop.redeem(line, 1)
        if target == "airdrop":
            for act in (lambda: drop.withdraw(0), drop.update, lambda: drop.create_claim(drop.wallets[0], 9)):
                with refused("WrongDiscriminator"):
                    act()
    damage(drop, address, original, owner=owner)
    drop.redeem(line, 1)
    with refused("WrongDiscriminator"):
        drop.redeem(line, 1, airdrop=find_claim(drop.address, line.wallet, line.nonce))
    with refused("WrongDiscriminator"):
        drop.redeem(line, 1, claim=drop.address)


def test_a_claim_with_another_bump_is_at_the_wrong_address(drop: AirdropHarness) -> None:
    """The bump that is stored is the canonical one; no other leads to the claim's address."""
    line = drop.lines[1]
    address = find_claim(drop.address, line.wallet, line.nonce)
    data = drop.chain.get_data(address)
    assert data is not None
    bump = Pubkey.find_program_address(
        [b"Claim", bytes(drop.address), bytes(line.wallet), bytes(8)], get_program_id("distributor")
    )[1]
    assert data[8] == bump


def test_arguments_accounts_and_flags_must_fit(drop: AirdropHarness) -> None:
    line = drop.lines[1]
    good = drop.encode_redeem(line, 1)
    wallet, data, metas = drop.wallets[1], bytes(good.data), list(good.accounts)
    huge_proof = data[: -(4 + 80)] + b"\xff\xff\xff\xff" + data[-80:]
    for bad in (data + b"\0", data[:-1], huge_proof, data[:8], data[:7], bytes(8), b""):
        with refused("InvalidInstructionData"):
            drop.chain.send([Instruction(good.program_id, bad, metas)], [wallet])
    with refused("MissingAccount"):
        drop.chain.send([Instruction(good.program_id, data, metas[:-1])], [wallet])
    for at, meta in enumerate(metas):
        if meta.is_writable:
            fixed = [*metas[:at], AccountMeta(meta.pubkey, meta.is_signer, False), *metas[at + 1 :]]
            with refused("NotWritable"):
                drop.chain.send([Instruction(good.program_id, data, fixed)], [wallet])
    drop.chain.send([good], [wallet])
