use crate::accounts::bond_return::Accounts;
use crate::error::Error;
use crate::points;
use crate::state::Bond;
use psyche_common::{ids, token, Account, Common, Key, Res};
use psyche_coordinator_state::DISCRIMINATOR;

/// The run itself may be closed by now: everything follows from the bond.
pub fn process(a: &Accounts) -> Res {
    let bond = Bond::load(&a.bond, a.program)?;
    bond.check_user(&a.user)?;
    a.coordinator_account.check_key(bond.coordinator_account())?;
    let held = token::check_associated(&a.bond_collateral, a.bond.key(), a.collateral_mint.key())?;
    if held.amount < bond.amount() {
        // tokens of another mint, sent to an account beside the one that holds the bond
        return Err(Common::WrongAccount.into());
    }
    check_is_free(a, a.user.key())?;

    let bump = [bond.bump()];
    let seeds = bond.seeds(&bump);
    if held.amount > 0 {
        let payment = token::Transfer {
            from: &a.bond_collateral,
            mint: &a.collateral_mint,
            to: &a.user_collateral,
            authority: &a.bond,
            token_program: &a.token_program,
        };
        payment.send(held.amount, &seeds)?;
    }
    token::close(&a.bond_collateral, &a.user, &a.bond, &a.token_program, &seeds)?;
    a.bond.close(&a.user)
}

/// Disputes end with their epoch, so a client that is in none can only owe what its entry says.
fn check_is_free(a: &Accounts, user: &Key) -> Res {
    if is_closed(&a.coordinator_account) {
        return Ok(());
    }
    let coordinator = points::load(&a.coordinator_account)?;
    if points::is_engaged(coordinator, user) {
        return Err(Error::BondInUse.into());
    }
    if points::get_debt(coordinator, user) > 0 {
        return Err(Error::BondOwesDebt.into());
    }
    Ok(())
}

/// After run_close there is nobody left to owe anything to. The run's owner has the account's key and may put any
/// account in its place then, which must not keep bonds locked; while the run is there, nobody can.
fn is_closed(coordinator_account: &Account) -> bool {
    let is_run = coordinator_account.data().starts_with(&DISCRIMINATOR);
    *coordinator_account.owner() != ids::COORDINATOR || !is_run
}
