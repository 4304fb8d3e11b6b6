use crate::accounts::pool_update::Accounts;
use crate::error::Error;
use crate::state::Pool;
use psyche_common::{Res, Text};

pub fn process(
    a: &Accounts,
    max_deposit_collateral_amount: Option<u64>,
    freeze: Option<bool>,
    metadata: Option<Text>,
) -> Res {
    let mut pool = Pool::load(&a.pool, a.program)?;
    pool.check_authority(&a.authority)?;
    if let Some(amount) = max_deposit_collateral_amount {
        check_max_deposit(&pool, amount)?;
        pool.set_max_deposit(amount);
    }
    if let Some(freeze) = freeze {
        pool.set_freeze(freeze);
    }
    if let Some(metadata) = metadata {
        pool.set_metadata(metadata.0)?;
    }
    Ok(())
}

/// The limit never lies about what was deposited, and never rises behind a lender's back: the authority can
/// deposit the very tokens that it extracted, again and again, so only the limit bounds how small a share gets.
fn check_max_deposit(pool: &Pool, amount: u64) -> Res {
    if amount < pool.total_deposited() {
        return Err(Error::ParamsMaxDepositIsBelowTotalDeposited.into());
    }
    if amount > pool.max_deposit() && pool.total_deposited() != 0 {
        return Err(Error::ParamsMaxDepositIsRaised.into());
    }
    Ok(())
}
