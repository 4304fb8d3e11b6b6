"""The distributor: what an airdrop pays, to whom, and what its authority can and cannot do."""

from __future__ import annotations

import pytest
from airdrop_harness import NO_GUARANTEE, AirdropHarness
from programs_harness import ProgramChain, refused
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from spl.token.instructions import create_associated_token_account

from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import find_airdrop

TOTAL = 2040
FOR_EVER = 2**63 - 1


@pytest.fixture
def drop() -> AirdropHarness:
    """Not yet created."""
    return AirdropHarness(ProgramChain())


@pytest.fixture
def open_drop(drop: AirdropHarness) -> AirdropHarness:
    """Funded with what it promises, guaranteed for 1000 seconds, all claims made."""
    drop.open(guaranteed_until=drop.chain.now + 1000)
    return drop


# ---- create -------------------------------------------------------------------------------------------


def test_create_makes_airdrop_and_vault(drop: AirdropHarness) -> None:
    drop.create(guaranteed_until=-5)
    seeds = [b"Airdrop", drop.id.to_bytes(8, "little")]
    assert drop.get_airdrop() == {
        "bump": Pubkey.find_program_address(seeds, get_program_id("distributor"))[1],
        "id": drop.id,
        "authority": drop.authority.pubkey(),
        "collateral_mint": drop.mint,
        "total_claimed_collateral_amount": 0,
        "claim_freeze": False,
        "merkle_root": list(drop.tree.merkle_root),
        "allocated_collateral_amount": TOTAL,
        "reserved_collateral_amount": TOTAL,
        "guaranteed_until_unix_timestamp": -5,
        "frozen_unix_timestamp": 0,
        "metadata": b"about",
    }
    assert drop.get_amount() == 0
    data = drop.chain.get_data(drop.address)
    assert data is not None
    assert len(data) == 458


def test_an_id_is_given_once(drop: AirdropHarness) -> None:
    drop.create()
    with refused("AlreadyInitialized"):
        drop.create()
    thief = drop.chain.make_wallet("thief")
    with refused("AlreadyInitialized"):
        drop.create(signer=thief)
    assert drop.get_airdrop()["authority"] == drop.authority.pubkey()


@pytest.mark.parametrize("airdrop_id", [0, 2**64 - 1])
def test_both_ends_of_the_id(airdrop_id: int) -> None:
    drop = AirdropHarness(ProgramChain(), airdrop_id)
    drop.open()
    drop.redeem(drop.lines[1], 500)
    assert drop.get_airdrop()["id"] == airdrop_id


def test_lamports_and_vault_that_are_there_before_do_no_harm(drop: AirdropHarness) -> None:
    """Whoever wants to keep an airdrop from being made can send to its address, or make its vault first."""
    payer = drop.authority
    params = TransferParams(from_pubkey=payer.pubkey(), to_pubkey=drop.address, lamports=10**6)
    drop.chain.send([transfer(params)], [payer])
    vault = create_associated_token_account(payer.pubkey(), drop.address, drop.mint)
    drop.chain.send([vault], [payer])
    drop.open()
    drop.redeem(drop.lines[1], 500)


def test_one_wallet_pays_for_the_airdrop_of_another(drop: AirdropHarness) -> None:
    payer = drop.chain.make_wallet("payer")
    before = drop.chain.svm.get_balance(payer.pubkey())
    with refused("NotSigner"):
        drop.create(payer=payer, unsigned="authority")
    own = drop.chain.svm.get_balance(drop.authority.pubkey())
    drop.create(payer=payer)
    assert drop.get_airdrop()["authority"] == drop.authority.pubkey()
    assert drop.chain.svm.get_balance(payer.pubkey()) < before
    assert drop.chain.svm.get_balance(drop.authority.pubkey()) == own


# ---- what a claimer gets ------------------------------------------------------------------------------


def test_shares_are_paid_as_they_vest_exactly_and_once(open_drop: AirdropHarness) -> None:
    drop, line = open_drop, open_drop.lines[0]
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 1)
    drop.redeem(line, 0)
    drop.chain.advance(25)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 251)
    drop.redeem(line, 100)
    drop.redeem(line, 150)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 1)
    drop.chain.advance(74)
    drop.redeem(line, 740)
    drop.chain.advance(1)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 11)
    drop.redeem(line, 10)
    drop.chain.advance(10**6)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 1)
    assert (drop.get_paid(drop.wallets[0]), drop.get_amount(), drop.get_claimed(line)) == (1000, 1040, 1000)
    airdrop = drop.get_airdrop()
    assert (airdrop["total_claimed_collateral_amount"], airdrop["reserved_collateral_amount"]) == (1000, 1040)


def test_all_lines_together_empty_the_vault(open_drop: AirdropHarness) -> None:
    lines = open_drop.lines
    open_drop.chain.advance(100)
    for line in lines:
        open_drop.redeem(line, line.amount)
    assert open_drop.get_amount() == 0
    assert [open_drop.get_paid(wallet) for wallet in open_drop.wallets] == [1000, 500, 540]
    assert open_drop.get_airdrop()["reserved_collateral_amount"] == 0


def test_two_lines_of_a_wallet_are_counted_apart(open_drop: AirdropHarness) -> None:
    _, _, large, small = open_drop.lines
    open_drop.redeem(small, 40)
    with refused("ParamsCollateralAmountIsTooLarge"):
        open_drop.redeem(small, 1)
    open_drop.redeem(large, 500)
    assert (open_drop.get_claimed(large), open_drop.get_claimed(small)) == (500, 40)


def test_a_sponsor_can_pay_for_the_claim(drop: AirdropHarness) -> None:
    """The claimer signs and needs no lamports of its own but the fee of redeeming."""
    drop.create()
    sponsor, claimer = drop.chain.make_wallet("sponsor"), drop.wallets[1]
    before = drop.chain.svm.get_balance(claimer.pubkey())
    drop.create_claim(claimer, 0, payer=sponsor)
    assert drop.chain.svm.get_balance(claimer.pubkey()) == before
    with refused("AlreadyInitialized"):
        drop.create_claim(claimer, 0)
    drop.create_claim(claimer, 1)
    assert drop.chain.svm.get_balance(claimer.pubkey()) < before


def test_a_vault_that_is_too_small_pays_what_it_has(drop: AirdropHarness) -> None:
    drop.open(amount=499)
    line = drop.lines[1]
    with refused("AirdropVaultIsTooSmall"):
        drop.redeem(line, 500)
    drop.redeem(line, 499)
    drop.fund(1)
    drop.redeem(line, 1)
    assert drop.get_claimed(line) == 500


@pytest.mark.parametrize(
    ("now", "start", "duration", "vested"),
    [
        (2**63 - 1, -(2**63), 2**32 - 1, 2**64 - 1),
        (2**63 - 1, 2**63 - 1, 0, 2**64 - 1),
        (2**63 - 1, 2**63 - 1, 2**32 - 1, 0),
        (2**63 - 2, 2**63 - 1, 0, 0),
        (-(2**63), -(2**63), 2**32 - 1, 0),
        (-(2**63), -(2**63), 0, 2**64 - 1),
        (0, 1 - (2**32 - 1), 2**32 - 1, 2**64 - 1 - (2**32 + 1)),
    ],
)
def test_vesting_at_both_ends_of_every_integer(now: int, start: int, duration: int, vested: int) -> None:
    drop = AirdropHarness(ProgramChain())
    line = Allocation(drop.wallets[0].pubkey(), 2**64 - 1, 2**64 - 1, start, duration)
    drop.tree = AllocationTree([line])
    drop.open(amount=2**64 - 1)
    drop.chain.now = now
    drop.chain.advance(0)
    if vested < 2**64 - 1:
        with refused("ParamsCollateralAmountIsTooLarge"):
            drop.redeem(line, vested + 1)
    drop.redeem(line, vested)
    assert drop.get_paid(drop.wallets[0]) == vested
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(line, 1)


# ---- what the authority can do, and cannot --------------------------------------------------------------


def test_a_guarantee_keeps_what_is_promised_in_the_vault(open_drop: AirdropHarness) -> None:
    drop = open_drop
    own = drop.make_collateral(drop.authority)
    drop.fund(60)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(61)
    drop.withdraw(60)
    drop.redeem(drop.lines[1], 500)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(1)
    drop.chain.advance(999)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(1)
    drop.chain.advance(1)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.withdraw(1541)
    drop.withdraw(1540)
    assert (drop.get_amount(own), drop.get_amount()) == (1600, 0)
    with refused("AirdropVaultIsTooSmall"):
        drop.redeem(drop.lines[2], 1)


def test_a_vault_below_the_promise_gives_nothing_back(drop: AirdropHarness) -> None:
    drop.open(amount=100, guaranteed_until=FOR_EVER)
    drop.make_collateral(drop.authority)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(1)
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.withdraw(101)


def test_without_guarantee_the_authority_may_take_everything(drop: AirdropHarness) -> None:
    drop.open()
    drop.make_collateral(drop.authority)
    drop.withdraw(TOTAL)
    assert drop.get_amount() == 0


def test_a_guarantee_is_prolonged_and_never_shortened(open_drop: AirdropHarness) -> None:
    until = open_drop.get_airdrop()["guaranteed_until_unix_timestamp"]
    with refused("ParamsGuaranteeIsTooShort"):
        open_drop.update(guaranteed_until_unix_timestamp=until - 1)
    open_drop.update(guaranteed_until_unix_timestamp=until)
    open_drop.update(guaranteed_until_unix_timestamp=FOR_EVER)
    with refused("ParamsGuaranteeIsTooShort"):
        open_drop.update(guaranteed_until_unix_timestamp=NO_GUARANTEE)


def test_a_freeze_stops_claims_and_takes_nothing(open_drop: AirdropHarness) -> None:
    drop, line = open_drop, open_drop.lines[0]
    drop.make_collateral(drop.authority)
    drop.chain.advance(50)
    drop.update(claim_freeze=True)
    with refused("AirdropClaimFreezeIsTrue"):
        drop.redeem(line, 1)
    # frozen until long after the guarantee would have ended: its clock stands still
    drop.chain.advance(5000)
    drop.update(claim_freeze=True)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(1)
    with refused("AirdropIsGuaranteed"):
        drop.update(list=drop.pack_list(drop.tree))
    with refused("AirdropIsGuaranteed"):
        drop.update(claim_freeze=False, list=drop.pack_list(drop.tree))
    drop.update(claim_freeze=False)
    airdrop = drop.get_airdrop()
    assert airdrop["guaranteed_until_unix_timestamp"] == drop.chain.now + 950
    # what vested meanwhile is there
    drop.redeem(line, 1000)
    drop.chain.advance(949)
    with refused("AirdropIsGuaranteed"):
        drop.withdraw(1)
    drop.chain.advance(1)
    drop.withdraw(1)
    drop.update(claim_freeze=False)
    assert drop.get_airdrop()["guaranteed_until_unix_timestamp"] == drop.chain.now


def test_a_freeze_after_the_guarantee_prolongs_nothing(open_drop: AirdropHarness) -> None:
    drop = open_drop
    until = drop.chain.now + 1000
    drop.make_collateral(drop.authority)
    drop.chain.advance(1000)
    drop.update(claim_freeze=True)
    drop.chain.advance(10)
    drop.withdraw(1)
    drop.update(claim_freeze=False)
    assert drop.get_airdrop()["guaranteed_until_unix_timestamp"] == until


def test_a_clock_that_goes_back_shortens_nothing(open_drop: AirdropHarness) -> None:
    """Validators' clocks are corrected: the thaw can seem to come before the freeze."""
    until = open_drop.get_airdrop()["guaranteed_until_unix_timestamp"]
    open_drop.update(claim_freeze=True)
    open_drop.chain.now -= 10
    open_drop.chain.advance(0)
    open_drop.update(claim_freeze=False)
    assert open_drop.get_airdrop()["guaranteed_until_unix_timestamp"] == until


def test_a_guarantee_for_ever_survives_a_freeze(drop: AirdropHarness) -> None:
    drop.create(guaranteed_until=FOR_EVER - 1)
    drop.update(claim_freeze=True)
    drop.chain.advance(100)
    drop.update(claim_freeze=False)
    assert drop.get_airdrop()["guaranteed_until_unix_timestamp"] == FOR_EVER


def test_another_list_only_after_the_guarantee(open_drop: AirdropHarness) -> None:
    drop, old = open_drop, open_drop.tree
    first, second = drop.lines[:2]
    drop.redeem(second, 300)
    new = AllocationTree([Allocation(second.wallet, 700), Allocation(first.wallet, 5, 9)])
    with refused("AirdropIsGuaranteed"):
        drop.update(list=drop.pack_list(new))
    # a guarantee given in the same instruction is for the new list
    drop.chain.advance(1000)
    with refused("ParamsMerkleRootIsZeroed"):
        drop.update(list=bytes(32) + b"\1" + bytes(7))
    until = drop.chain.now + 50
    drop.update(list=drop.pack_list(new), guaranteed_until_unix_timestamp=until)
    with refused("ParamsMerkleProofIsInvalid"):
        drop.redeem(first, 1, merkle_proof=old.get_proof(first))
    drop.tree = new
    more = new.find(second.wallet)[0]
    # the line has the nonce of the old one: what was redeemed before counts
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(more, 401)
    drop.redeem(more, 400)
    airdrop = drop.get_airdrop()
    assert (airdrop["allocated_collateral_amount"], airdrop["reserved_collateral_amount"]) == (705, 305)
    assert airdrop["total_claimed_collateral_amount"] == 700
    with refused("AirdropIsGuaranteed"):
        drop.update(list=drop.pack_list(old))


def test_a_list_that_gives_less_than_was_redeemed(drop: AirdropHarness) -> None:
    drop.open()
    line = drop.lines[1]
    drop.redeem(line, 500)
    less = Allocation(line.wallet, 499)
    drop.tree = AllocationTree([less])
    drop.update(list=drop.pack_list(drop.tree))
    with refused("ParamsCollateralAmountIsTooLarge"):
        drop.redeem(less, 1)
    drop.redeem(less, 0)


def test_metadata(drop: AirdropHarness) -> None:
    with refused("ParamsMetadataLengthIsTooLarge"):
        drop.create(metadata=bytes(301))
    drop.create(metadata=b"\xff" * 300)
    assert drop.get_airdrop()["metadata"] == b"\xff" * 300
    with refused("ParamsMetadataLengthIsTooLarge"):
        drop.update(metadata=bytes(301))
    drop.update(metadata=b"short")
    assert drop.get_airdrop()["metadata"] == b"short"
    data = drop.chain.get_data(drop.address)
    assert data is not None
    assert data[-295:] == bytes(295)
    drop.update(metadata=b"")
    assert drop.get_airdrop()["metadata"] == b""


def test_an_update_changes_only_what_it_names(open_drop: AirdropHarness) -> None:
    before = open_drop.chain.get_data(open_drop.address)
    open_drop.update()
    assert open_drop.chain.get_data(open_drop.address) == before
    open_drop.chain.advance(1000)
    open_drop.update(list=open_drop.pack_list(open_drop.tree))
    assert open_drop.chain.get_data(open_drop.address) == before


@pytest.mark.parametrize("levels_less", [0, 2])
def test_the_longest_proof_fits_into_a_transaction(drop: AirdropHarness, levels_less: int) -> None:
    """MAX_LEVELS beside a priority fee, two less when a sponsor pays the fee; cheap enough for any block."""
    from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
    from solders.hash import Hash

    from psyche_py.chain.allocation_tree import MAX_LEVELS, compute_leaf, compute_parent
    from psyche_py.chain.transaction import sign

    line = drop.lines[1]
    node, proof = compute_leaf(line), b""
    for level in range(MAX_LEVELS - levels_less):
        sibling = (bytes([level + 1] * 32), level)
        node, proof = compute_parent(node, sibling), proof + sibling[0] + sibling[1].to_bytes(8, "little")
    drop.create(list=node[0] + node[1].to_bytes(8, "little"))
    drop.fund(500)
    drop.make_collateral(drop.wallets[1])
    drop.create_claim(drop.wallets[1], 0)
    instruction = drop.encode_redeem(line, 500, merkle_proof=proof)
    budget = [set_compute_unit_limit(60_000), set_compute_unit_price(2**64 - 1)]
    signers = [drop.chain.make_wallet("sponsor"), drop.wallets[1]] if levels_less else [drop.wallets[1]]
    assert len(bytes(sign([*budget, instruction], signers, Hash.default()))) > 1232 - 48
    drop.chain.send([instruction], signers)
    assert drop.chain.units < 60_000, drop.chain.units
    assert drop.get_paid(drop.wallets[1]) == 500


def test_airdrops_do_not_mix(open_drop: AirdropHarness) -> None:
    other = AirdropHarness(open_drop.chain, 8)
    other.open()
    line = other.lines[1]
    other.redeem(line, 500)
    open_drop.redeem(line, 500)
    assert find_airdrop(7) != find_airdrop(8)
    assert other.get_paid(other.wallets[1]) == 1000
    assert (other.get_amount(), open_drop.get_amount()) == (1540, 1540)
