use crate::accounts::lender_deposit::Accounts;
use crate::error::Error;
use crate::state::{Lender, Pool};
use crate::vault;
use psyche_common::{token, Res};

pub fn process(a: &Accounts, collateral_amount: u64) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    let mut lender = Lender::load(&a.lender, &a.pool, &a.user, a.program)?;
    pool.check_not_frozen()?;
    // a later deposit would take from the shares of those who lent before
    pool.check_claiming(false)?;
    let mint = pool.collateral_mint();
    token::check_holds(&a.user_collateral, a.user.key(), &mint)?;
    vault::read_amount(&a.pool_collateral, &pool.collateral_vault(), &a.pool, &mint)?;
    let total = pool.total_deposited().checked_add(collateral_amount);
    let Some(total) = total.filter(|total| *total <= pool.max_deposit()) else {
        return Err(Error::ParamsCollateralAmountIsTooLarge.into());
    };
    pool.set_total_deposited(total);
    lender.add_deposited(collateral_amount)?;
    let transfer = token::Transfer {
        from: &a.user_collateral,
        mint: &a.collateral_mint,
        to: &a.pool_collateral,
        authority: &a.user,
        token_program: &a.token_program,
    };
    transfer.send(collateral_amount, &[])
}
