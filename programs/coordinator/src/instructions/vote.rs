use crate::accounts::vote::Accounts;
use crate::error::Error;
use crate::rules::dispute;
use crate::state::run_state;
use psyche_common::Res;

/// Lets no time act, as a verdict does not.
pub fn process(a: &Accounts, index: u16, evidence_hash: &'static [u8; 32], is_guilty: bool) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    let states = run_state::ROUND_TRAIN..=run_state::COOLDOWN;
    if !states.contains(&c.run_state) {
        return Err(Error::InvalidRunState.into());
    }
    if !super::is_healthy_client(c, index as usize, entry) {
        return Err(Error::ClientNotInEpoch.into());
    }
    let named = c.disputes.iter().position(|d| dispute::is_open(d) && d.evidence_hash == *evidence_hash);
    let slot = named.ok_or(Error::NoSuchDispute)?;
    let d = &c.disputes[slot];
    let round = dispute::find_judge_round(c, d).ok_or(Error::VotingOver)?;
    if !dispute::is_tie_breaker(d, round, index as usize) {
        return Err(Error::NotATieBreaker.into());
    }
    let before = super::Before::of(c);
    dispute::vote(c, slot, index, is_guilty)?;
    c.bump_nonce_if(true);
    super::emit_settled(&a.coordinator_account, c, &before);
    Ok(())
}
