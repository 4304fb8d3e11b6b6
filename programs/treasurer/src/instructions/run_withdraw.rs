use crate::accounts::run_withdraw::Accounts;
use crate::error::Error;
use crate::points;
use crate::state::Run;
use psyche_common::{sys, token, Res};

/// How long after the run has finished its participants have the vault to themselves.
const WITHDRAW_DELAY_SECONDS: u64 = 30 * 24 * 3600;

pub fn process(a: &Accounts, amount: u64) -> Res {
    let run = Run::load(&a.run, a.program)?;
    run.check_authority(&a.authority)?;
    a.coordinator_account.check_key(run.coordinator_account())?;
    a.collateral_mint.check_key(run.collateral_mint())?;
    let vault = token::check_associated(&a.run_collateral, a.run.key(), run.collateral_mint())?;

    let coordinator = points::load(&a.coordinator_account)?;
    let open_at = points::check_finished(coordinator)?.saturating_add(WITHDRAW_DELAY_SECONDS);
    if (sys::clock()?.unix_timestamp.max(0) as u64) < open_at {
        return Err(Error::WithdrawDelayNotOver.into());
    }
    if amount == 0 {
        return Err(Error::InvalidParameter.into());
    }
    if amount > vault.amount.saturating_sub(points::get_promised(coordinator)) {
        return Err(Error::CollateralIsPromised.into());
    }
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let payment = token::Transfer {
        from: &a.run_collateral,
        mint: &a.collateral_mint,
        to: &a.authority_collateral,
        authority: &a.run,
        token_program: &a.token_program,
    };
    payment.send(amount, &run.seeds(&number, &bump))
}
