use crate::accounts::claim_redeem::Accounts;
use crate::allocation::Allocation;
use crate::collateral::Payment;
use crate::error::Error;
use crate::state::{Airdrop, Claim, CLAIM_SEED};
use psyche_common::{sys, Common, Res, Text};

pub fn process(
    a: &Accounts,
    nonce: u64,
    start_unix_timestamp: i64,
    duration_seconds: u32,
    end_collateral_amount: u64,
    collateral_amount: u64,
    merkle_proof: Text,
) -> Res {
    let mut airdrop = Airdrop::load(&a.airdrop, a.program)?;
    let mut claim = Claim::load(&a.claim, a.program)?;
    check_claim(a, nonce, &claim)?;
    if airdrop.is_frozen() {
        return Err(Error::AirdropClaimFreezeIsTrue.into());
    }
    let allocation = Allocation {
        claimer: a.claimer.key(),
        nonce,
        start_unix_timestamp,
        duration_seconds,
        end_collateral_amount,
    };
    airdrop.check_proof(&allocation, merkle_proof.0)?;
    let vested = allocation.vested(sys::clock()?.unix_timestamp);
    // another list may have given this line less than was redeemed before
    if collateral_amount > vested.saturating_sub(claim.claimed()) {
        return Err(Error::ParamsCollateralAmountIsTooLarge.into());
    }
    let payment = Payment {
        airdrop: &a.airdrop,
        airdrop_collateral: &a.airdrop_collateral,
        collateral_mint: &a.collateral_mint,
        to: &a.claimer_collateral,
        token_program: &a.token_program,
    };
    let (vault, owner) = payment.check(&airdrop)?;
    if owner != a.claimer.key() {
        return Err(Common::WrongAccount.into());
    }
    if collateral_amount > vault {
        return Err(Error::AirdropVaultIsTooSmall.into());
    }
    claim.add_claimed(collateral_amount)?;
    airdrop.add_claimed(collateral_amount)?;
    payment.pay(&airdrop, collateral_amount)
}

/// The claim is the one of this claimer, airdrop and nonce.
fn check_claim(a: &Accounts, nonce: u64, claim: &Claim) -> Res {
    let (number, bump) = (nonce.to_le_bytes(), [claim.bump()]);
    let seeds: [&[u8]; 5] = [CLAIM_SEED, a.airdrop.key(), a.claimer.key(), &number, &bump];
    if sys::create_pda(&seeds, a.program)? == *a.claim.key() {
        Ok(())
    } else {
        Err(Common::WrongPda.into())
    }
}
