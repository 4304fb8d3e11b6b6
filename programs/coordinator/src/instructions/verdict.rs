use crate::accounts::verdict::Accounts;
use crate::error::Error;
use crate::rules::dispute::{self, REASONS};
use crate::rules::duty::find_duty;
use crate::state::{dispute_state, run_state, CoordinatorAccount, Dispute};
use psyche_common::{Common, Res};

/// The verifier's round is the current one or one of the two before it.
const MAX_ROUNDS_LATE: usize = 2;

/// Lets no time act: two shuffles and a transition are more than an instruction has compute for.
pub fn process(
    a: &Accounts,
    index: u16,
    trainer: u16,
    height: u32,
    reason: u8,
    evidence_hash: &'static [u8; 32],
) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    if !matches!(c.run_state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        return Err(Error::InvalidRunState.into());
    }
    if !super::is_healthy_client(c, index as usize, entry) {
        return Err(Error::ClientNotInEpoch.into());
    }
    if !REASONS.contains(&reason) {
        return Err(Common::InvalidInstructionData.into());
    }
    if find_duty_of(c, index, height) != Some(trainer as usize) {
        return Err(Error::NotTheVerifier.into());
    }
    let accusation = Dispute {
        evidence_hash: *evidence_hash,
        height,
        accuser: index,
        trainer,
        state: dispute_state::OPEN,
        reason,
        ..Dispute::FREE
    };
    let slot = dispute::open(c, accusation)?;
    c.bump_nonce_if(true);
    super::emit_opened(&a.coordinator_account, c, &c.disputes[slot]);
    Ok(())
}

/// Whom the client looks at in the round behind the one of `height`.
fn find_duty_of(c: &CoordinatorAccount, index: u16, height: u32) -> Option<usize> {
    let behind = c.epoch_state.current().height.checked_sub(height.checked_add(1)?)? as usize;
    if behind > MAX_ROUNDS_LATE {
        return None;
    }
    find_duty(c, behind, index as usize)
}
