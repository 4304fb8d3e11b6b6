use crate::accounts::settle_debt::Accounts;
use crate::error::Error;
use psyche_common::{Key, Res};

pub fn process(a: &Accounts, user: &'static Key, points: u64) -> Res {
    let c = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    let number = c.find_entry(user).ok_or(Error::SignerNotAClient)?;
    let entry = &mut c.entries[number];
    if points > entry.debt() {
        return Err(Error::ClaimExceedsEarned.into());
    }
    entry.slashed -= points;
    c.bump_nonce_if(points != 0);
    Ok(())
}
