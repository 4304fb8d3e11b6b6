use crate::accounts::participant_claim::Accounts;
use crate::coordinator::Owned;
use crate::error::Error;
use crate::points;
use crate::state::{Participant, Run};
use psyche_common::{token, Res};

pub fn process(a: &Accounts, claim_earned_points: u64) -> Res {
    let mut run = Run::load(&a.run, a.program)?;
    let mut participant = Participant::load(&a.participant, a.program)?;
    participant.check_address(&a.participant, a.run.key(), a.user.key(), a.program)?;
    run.check_coordinator(&a.coordinator_instance, &a.coordinator_account)?;
    a.collateral_mint.check_key(run.collateral_mint())?;
    token::check_holds(&a.user_collateral, a.user.key(), run.collateral_mint())?;
    let vault = token::check_associated(&a.run_collateral, a.run.key(), run.collateral_mint())?;

    if claim_earned_points == 0 {
        return Err(Error::InvalidParameter.into());
    }
    if claim_earned_points > points::get_claimable(points::load(&a.coordinator_account)?, a.user.key()) {
        return Err(Error::InsufficientPoints.into());
    }
    // one base unit of the collateral for each point; what the vault lacks stays claimable
    let amount = claim_earned_points.min(vault.amount);
    if amount == 0 {
        return Err(Error::InsufficientVault.into());
    }
    participant.add_claimed(amount);
    run.add_claimed(amount);
    pay(a, &run, amount)
}

/// Tells the coordinator first, so that no way back into this program finds the points unclaimed.
fn pay(a: &Accounts, run: &Run, amount: u64) -> Res {
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let seeds = run.seeds(&number, &bump);
    let coordinator = Owned {
        run: &a.run,
        instance: &a.coordinator_instance,
        coordinator_account: &a.coordinator_account,
        program: &a.coordinator_program,
        seeds: &seeds,
    };
    coordinator.record_claim(a.user.key(), amount)?;
    let payment = token::Transfer {
        from: &a.run_collateral,
        mint: &a.collateral_mint,
        to: &a.user_collateral,
        authority: &a.run,
        token_program: &a.token_program,
    };
    payment.send(amount, &seeds)
}
