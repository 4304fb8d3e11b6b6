use crate::accounts::tick::Accounts;
use crate::error::Error;
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    let c = super::load(&a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    super::finish(&a.coordinator_account, c, false)
}
