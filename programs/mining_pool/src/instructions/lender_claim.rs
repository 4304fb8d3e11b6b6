use crate::accounts::lender_claim::Accounts;
use crate::claim::Claim;
use crate::error::Error;
use crate::state::{Lender, Pool, REDEEMABLE_SEED};
use crate::vault;
use psyche_common::{token, Common, Res};

pub fn process(a: &Accounts, redeemable_amount: u64) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    let mut lender = Lender::load(&a.lender, &a.pool, &a.user, a.program)?;
    pool.check_not_frozen()?;
    pool.check_claiming(true)?;
    let mint = pool.redeemable_mint();
    token::check_holds(&a.user_redeemable, a.user.key(), &mint)?;
    let vault_amount =
        vault::read_amount(&a.pool_redeemable, &pool.redeemable_vault(), &a.redeemable_authority, &mint)?;
    let claim = Claim {
        total_claimed: pool.total_claimed(),
        vault_amount,
        deposited: lender.deposited(),
        total_deposited: pool.total_deposited(),
        claimed: lender.claimed(),
    };
    let claimable = claim.compute_claimable().ok_or(Common::ArithmeticOverflow)?;
    // the second holds whenever the first does; it is here so that no mistake in the first could pay
    if redeemable_amount as u128 > claimable || redeemable_amount > vault_amount {
        return Err(Error::ParamsRedeemableAmountIsTooLarge.into());
    }
    pool.add_claimed(redeemable_amount)?;
    lender.add_claimed(redeemable_amount)?;
    let bump = [pool.redeemable_bump()];
    let transfer = token::Transfer {
        from: &a.pool_redeemable,
        mint: &a.redeemable_mint,
        to: &a.user_redeemable,
        authority: &a.redeemable_authority,
        token_program: &a.token_program,
    };
    transfer.send(redeemable_amount, &[REDEEMABLE_SEED, a.pool.key(), &bump])
}
