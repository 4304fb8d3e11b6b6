use crate::accounts::pool_extract::Accounts;
use crate::error::Error;
use crate::state::{Pool, POOL_SEED};
use crate::vault;
use psyche_common::{token, Res};

pub fn process(a: &Accounts, collateral_amount: u64) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    pool.check_authority(&a.authority)?;
    pool.check_not_frozen()?;
    let mint = pool.collateral_mint();
    token::check_holds(&a.authority_collateral, a.authority.key(), &mint)?;
    if collateral_amount > vault::read_amount(&a.pool_collateral, &pool.collateral_vault(), &a.pool, &mint)? {
        return Err(Error::ParamsCollateralAmountIsTooLarge.into());
    }
    pool.add_extracted(collateral_amount)?;
    let (number, bump) = (pool.number(), [pool.bump()]);
    let transfer = token::Transfer {
        from: &a.pool_collateral,
        mint: &a.collateral_mint,
        to: &a.authority_collateral,
        authority: &a.pool,
        token_program: &a.token_program,
    };
    transfer.send(collateral_amount, &[POOL_SEED, &number, &bump])
}
