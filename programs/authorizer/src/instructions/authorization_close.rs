use crate::accounts::authorization_close::Accounts;
use crate::error::Error;
use crate::state::Authorization;
use psyche_common::{sys, Res};

const DELEGATE_PROTECTION_SECONDS: i64 = 30 * 24 * 3600;

pub fn process(a: &Accounts) -> Res {
    let authorization = Authorization::load(&a.authorization, a.program)?;
    authorization.check_grantor(&a.grantor)?;
    if authorization.is_active() {
        return Err(Error::AuthorizationActiveIsTrue.into());
    }
    let open_until = authorization.updated().saturating_add(DELEGATE_PROTECTION_SECONDS);
    if authorization.num_delegates() > 0 && sys::clock()?.unix_timestamp < open_until {
        return Err(Error::AuthorizationClosingConditionsNotReachedYet.into());
    }
    a.authorization.close(&a.spill)
}
