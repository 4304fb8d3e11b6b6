use crate::accounts::set_paused::Accounts;
use crate::error::Error;
use crate::rules::check::{check_config, check_model, check_progress, check_together};
use crate::rules::transition;
use crate::state::run_state;
use psyche_common::Res;

pub fn process(a: &Accounts, paused: bool) -> Res {
    let c = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    let (now, from) = (super::now()?, c.run_state);
    if paused {
        if c.is_halted() {
            return Err(Error::Halted.into());
        }
        let changed = transition::pause(c, now);
        c.bump_nonce_if(changed);
        if c.is_halted() {
            super::emit_transition(&a.coordinator_account, c, from);
        }
        return Ok(());
    }
    if c.run_state == run_state::UNINITIALIZED {
        c.run_state = run_state::PAUSED;
        c.progress.step = c.progress.step.max(1);
    }
    if c.run_state != run_state::PAUSED {
        return Err(Error::CannotResume.into());
    }
    check_config(&c.config)?;
    check_model(&c.model, false)?;
    check_together(&c.config, &c.model)?;
    check_progress(&c.progress)?;
    transition::resume(c, now);
    c.bump_nonce_if(true);
    super::emit_transition(&a.coordinator_account, c, from);
    Ok(())
}
