use crate::accounts::announce::Accounts;
use crate::error::Error;
use crate::state::run_state;
use psyche_common::Res;

/// Lets no time act: clients that move must not pay for others' transitions.
pub fn process(a: &Accounts, address_hint: &'static [u8; 64]) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    super::check_hint(address_hint)?;
    if c.run_state == run_state::FINISHED {
        return Err(Error::InvalidRunState.into());
    }
    let entry = &mut c.entries[entry];
    let changed = entry.address_hint != *address_hint;
    entry.address_hint = *address_hint;
    c.bump_nonce_if(changed);
    Ok(())
}
