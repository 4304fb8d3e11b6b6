use crate::accounts::authorization_grantor_update::Accounts;
use crate::state::Authorization;
use psyche_common::{sys, Res};

pub fn process(a: &Accounts, active: bool) -> Res {
    let mut authorization = Authorization::load(&a.authorization, a.program)?;
    authorization.check_grantor(&a.grantor)?;
    authorization.set_active(active, sys::clock()?.unix_timestamp);
    Ok(())
}
