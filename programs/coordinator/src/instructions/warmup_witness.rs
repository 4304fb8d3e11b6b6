use crate::accounts::warmup_witness::Accounts;
use crate::error::Error;
use crate::state::{get_bit, run_state, set_bit};
use psyche_common::Res;

pub fn process(a: &Accounts, index: u16) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    // somebody else's report may have started training a moment ago
    if c.run_state == run_state::ROUND_TRAIN {
        return super::finish(&a.coordinator_account, c, false);
    }
    if c.run_state != run_state::WARMUP {
        return Err(Error::InvalidRunState.into());
    }
    let index = index as usize;
    if !super::is_healthy_client(c, index, entry) {
        return Err(Error::InvalidWitness.into());
    }
    let changed = !get_bit(&c.epoch_state.warmup_ready, index);
    set_bit(&mut c.epoch_state.warmup_ready, index);
    super::finish(&a.coordinator_account, c, changed)
}
