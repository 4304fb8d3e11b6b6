use crate::accounts::record_claim::Accounts;
use crate::error::Error;
use crate::rules::dispute;
use psyche_common::{Key, Res};

pub fn process(a: &Accounts, user: &'static Key, points: u64) -> Res {
    let c = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    let number = c.find_entry(user).ok_or(Error::SignerNotAClient)?;
    if dispute::is_party(c, number) {
        return Err(Error::InDispute.into());
    }
    let entry = &mut c.entries[number];
    if points > entry.claimable() {
        return Err(Error::ClaimExceedsEarned.into());
    }
    entry.claimed += points;
    c.bump_nonce_if(points != 0);
    Ok(())
}
