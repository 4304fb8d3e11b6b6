use crate::accounts::bond_slash::Accounts;
use crate::coordinator::Owned;
use crate::error::Error;
use crate::points;
use crate::state::{Bond, Run};
use psyche_common::{token, Res};

pub fn process(a: &Accounts) -> Res {
    let run = Run::load(&a.run, a.program)?;
    let mut bond = Bond::load(&a.bond, a.program)?;
    bond.check_run(&a.run)?;
    run.check_coordinator(&a.coordinator_instance, &a.coordinator_account)?;
    a.collateral_mint.check_key(run.collateral_mint())?;
    token::check_associated(&a.run_collateral, a.run.key(), run.collateral_mint())?;
    let held = token::check_associated(&a.bond_collateral, a.bond.key(), run.collateral_mint())?;

    // a point is worth one base unit, here as in a claim
    let debt = points::get_debt(points::load(&a.coordinator_account)?, bond.user());
    let amount = debt.min(held.amount);
    if amount == 0 {
        return Err(Error::NothingToSlash.into());
    }
    bond.set_amount(held.amount - amount);
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let coordinator = Owned {
        run: &a.run,
        instance: &a.coordinator_instance,
        coordinator_account: &a.coordinator_account,
        program: &a.coordinator_program,
        seeds: &run.seeds(&number, &bump),
    };
    coordinator.settle_debt(bond.user(), amount)?;
    let payment = token::Transfer {
        from: &a.bond_collateral,
        mint: &a.collateral_mint,
        to: &a.run_collateral,
        authority: &a.bond,
        token_program: &a.token_program,
    };
    payment.send(amount, &bond.seeds(&[bond.bump()]))
}
