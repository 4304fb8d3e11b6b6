use crate::accounts::remove_unauthorized::Accounts;
use crate::error::Error;
use crate::rules::authorization::check_authorization;
use crate::state::{CoordinatorAccount, Instance, AUTHORIZATION_PREFIX};
use psyche_common::{sys, Common, Res};

pub fn process(a: &Accounts, entry: u16) -> Res {
    let instance = Instance::load(&a.instance, &a.coordinator_account, a.program)?;
    let c = CoordinatorAccount::load(&a.coordinator_account, a.program)?;
    let number = entry as usize;
    let entry = c.entries().get(number).ok_or(Error::SignerNotAClient)?;
    // zeros are an entry of an older layout, which kept none; the System program's address would match them
    let is_known = entry.authorization != [0; AUTHORIZATION_PREFIX];
    if !is_known || a.authorization.key()[..AUTHORIZATION_PREFIX] != entry.authorization {
        return Err(Common::WrongAccount.into());
    }
    let now = sys::clock()?.unix_timestamp;
    if check_authorization(&a.authorization, instance.join_authority(), &entry.signer, now).is_ok() {
        return Err(Error::AuthorizationStillValid.into());
    }
    let changed = entry.active != 0;
    c.entries[number].active = 0;
    super::finish(&a.coordinator_account, c, changed)
}
