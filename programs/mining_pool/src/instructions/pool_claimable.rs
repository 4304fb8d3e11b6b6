use crate::accounts::pool_claimable::Accounts;
use crate::error::Error;
use crate::state::{Pool, REDEEMABLE_SEED};
use crate::vault;
use psyche_common::system::check_pda;
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    pool.check_authority(&a.authority)?;
    pool.check_not_frozen()?;
    pool.check_claiming(false)?;
    // deposits end here: what is repaid to a pool without lenders could never be claimed
    if pool.total_deposited() == 0 {
        return Err(Error::PoolTotalDepositedCollateralAmountIsZero.into());
    }
    let bump = check_pda(&a.redeemable_authority, &[REDEEMABLE_SEED, a.pool.key()], a.program)?;
    pool.enable_claiming(a.redeemable_mint.key(), a.pool_redeemable.key(), bump);
    vault::create(&vault::Creation {
        payer: &a.payer,
        vault: &a.pool_redeemable,
        owner: &a.redeemable_authority,
        mint: &a.redeemable_mint,
        associated_token_program: &a.associated_token_program,
        token_program: &a.token_program,
        system_program: &a.system_program,
    })
}
