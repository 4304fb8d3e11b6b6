use crate::accounts::bond_post::Accounts;
use crate::error::Error;
use crate::state::{Bond, Run, BOND_SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{token, Res};

pub fn process(a: &Accounts, amount: u64) -> Res {
    let run = Run::load(&a.run, a.program)?;
    a.collateral_mint.check_key(run.collateral_mint())?;
    if amount == 0 {
        return Err(Error::InvalidParameter.into());
    }
    if a.bond.is_empty() {
        open(a, &run)?;
    }
    let mut bond = Bond::load(&a.bond, a.program)?;
    bond.check_run(&a.run)?;
    bond.check_user(&a.user)?;
    token::check_associated(&a.bond_collateral, a.bond.key(), run.collateral_mint())?;
    let payment = token::Transfer {
        from: &a.user_collateral,
        mint: &a.collateral_mint,
        to: &a.bond_collateral,
        authority: &a.user,
        token_program: &a.token_program,
    };
    payment.send(amount, &[])?;
    // what was sent there by others counts too: it is at stake like the rest
    bond.set_amount(token::read(&a.bond_collateral)?.amount);
    Ok(())
}

fn open(a: &Accounts, run: &Run) -> Res {
    let (run_key, user) = (a.run.key(), a.user.key());
    let bump = check_pda(&a.bond, &[BOND_SEED, run_key, user], a.program)?;
    create_pda_account(
        &a.user,
        &a.bond,
        &a.system_program,
        a.program,
        Bond::SIZE,
        &[BOND_SEED, run_key, user, &[bump]],
    )?;
    Bond::init(&a.bond, bump, &a.run, user, run.coordinator_account());
    Ok(())
}
