use crate::accounts::participant_claim::Accounts;
use crate::error::Error;
use crate::state::{Participant, Run, PARTICIPANT_SEED, RUN_SEED};
use psyche_common::{ids, sys, token, Account, Common, Key, Res};
use psyche_coordinator_state::CoordinatorAccount;

pub fn process(a: &Accounts, claim_earned_points: u64) -> Res {
    let mut run = Run::load(&a.run, a.program)?;
    let mut participant = Participant::load(&a.participant, a.program)?;
    check_participant(a, &participant)?;
    a.coordinator_account.check_key(run.coordinator_account())?;
    a.collateral_mint.check_key(run.collateral_mint())?;
    token::check_holds(&a.user_collateral, a.user.key(), run.collateral_mint())?;
    let vault = token::check_associated(&a.run_collateral, a.run.key(), run.collateral_mint())?;

    let earned = earned_points(&a.coordinator_account, a.user.key())?;
    let claimable = earned.saturating_sub(participant.claimed_points());
    if claim_earned_points > claimable {
        return Err(Error::InsufficientPoints.into());
    }
    // one base unit of the collateral for each point
    let amount = claim_earned_points;
    if vault.amount < amount {
        return Err(Error::InsufficientVault.into());
    }
    participant.add_claimed(claim_earned_points, amount)?;
    run.add_claimed(claim_earned_points, amount)?;
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let seeds: [&[u8]; 3] = [RUN_SEED, &number, &bump];
    let payment = token::Transfer {
        from: &a.run_collateral,
        mint: &a.collateral_mint,
        to: &a.user_collateral,
        authority: &a.run,
        token_program: &a.token_program,
    };
    payment.send(amount, &seeds)
}

fn check_participant(a: &Accounts, participant: &Participant) -> Res {
    let bump = [participant.bump()];
    let address = sys::create_pda(&[PARTICIPANT_SEED, a.run.key(), a.user.key(), &bump], a.program)?;
    if address == *a.participant.key() {
        Ok(())
    } else {
        Err(Common::WrongPda.into())
    }
}

/// What the user has earned and not lost, as the coordinator program says; nothing if it never joined.
fn earned_points(coordinator_account: &Account, user: &Key) -> Res<u64> {
    // the coordinator's error codes mean something else in this program
    let coordinator =
        CoordinatorAccount::load(coordinator_account, &ids::COORDINATOR).map_err(|_| Common::WrongAccount)?;
    let Some(number) = coordinator.find_entry(user) else {
        return Ok(0);
    };
    let entry = &coordinator.entries[number];
    Ok(entry.earned.saturating_sub(entry.slashed))
}
