use crate::accounts::run_close::Accounts;
use crate::coordinator::Owned;
use crate::error::Error;
use crate::points;
use crate::state::Run;
use psyche_common::{token, Res};

pub fn process(a: &Accounts) -> Res {
    let run = Run::load(&a.run, a.program)?;
    run.check_authority(&a.authority)?;
    run.check_coordinator(&a.coordinator_instance, &a.coordinator_account)?;
    let vault = token::check_associated(&a.run_collateral, a.run.key(), run.collateral_mint())?;

    let coordinator = points::load(&a.coordinator_account)?;
    points::check_finished(coordinator)?;
    if points::get_promised(coordinator) > 0 {
        return Err(Error::PointsNotClaimed.into());
    }
    if vault.amount > 0 {
        return Err(Error::VaultNotEmpty.into());
    }
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let seeds = run.seeds(&number, &bump);
    let coordinator = Owned {
        run: &a.run,
        instance: &a.coordinator_instance,
        coordinator_account: &a.coordinator_account,
        program: &a.coordinator_program,
        seeds: &seeds,
    };
    coordinator.free(&a.spill)?;
    token::close(&a.run_collateral, &a.spill, &a.run, &a.token_program, &seeds)?;
    a.run.close(&a.spill)
}
