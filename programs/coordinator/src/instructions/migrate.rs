use crate::accounts::migrate::Accounts;
use crate::error::Error;
use crate::rules::migration::migrate_from_1;
use crate::state::{CoordinatorAccount, Instance};
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    Instance::load(&a.instance, &a.coordinator_account, a.program)?;
    let c = CoordinatorAccount::load_any_version(&a.coordinator_account, a.program)?;
    match c.version {
        1 => migrate_from_1(c),
        _ => return Err(Error::NothingToMigrate.into()),
    }
    c.bump_nonce_if(true);
    Ok(())
}
