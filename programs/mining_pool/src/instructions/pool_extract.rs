use crate::accounts::pool_extract::Accounts;
use crate::error::Error;
use crate::state::{Pool, POOL_SEED};
use crate::vault;
use psyche_common::Res;

pub fn process(a: &Accounts, collateral_amount: u64) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    pool.check_authority(&a.authority)?;
    pool.check_not_frozen()?;
    let mint = pool.collateral_mint();
    a.collateral_mint.check_key(&mint)?;
    vault::check(&a.authority_collateral, a.authority.key(), &mint)?;
    if collateral_amount > vault::read_amount(&a.pool_collateral, &pool.collateral_vault(), &a.pool, &mint)? {
        return Err(Error::ParamsCollateralAmountIsTooLarge.into());
    }
    pool.add_extracted(collateral_amount)?;
    let (number, bump) = (pool.number(), [pool.bump()]);
    let holder = vault::Holder { account: &a.pool, seeds: &[POOL_SEED, &number, &bump] };
    vault::pay(&a.pool_collateral, &a.authority_collateral, &holder, &a.token_program, collateral_amount)
}
