use crate::accounts::authorization_grantor_update::Accounts;
use crate::error::Error;
use crate::state::{Authorization, EXPIRY_BYTES};
use psyche_common::system::minimum_balance;
use psyche_common::{sys, Account, Res};

pub fn process(a: &Accounts, active: bool, expires_unix_timestamp: i64) -> Res {
    if expires_unix_timestamp < 0 {
        return Err(Error::InvalidExpiry.into());
    }
    let authorization = Authorization::load(&a.authorization, a.program)?;
    authorization.check_grantor(&a.grantor)?;
    if expires_unix_timestamp != 0 && !authorization.has_expiry() {
        add_expiry(&a.authorization)?;
    }
    let mut authorization = Authorization::load(&a.authorization, a.program)?;
    authorization.set(active, expires_unix_timestamp, sys::clock()?.unix_timestamp);
    Ok(())
}

/// Room for the expiry in an account of the older layout. This instruction moves no lamports, so the rent
/// must have been sent to the account before, in the same transaction for example.
fn add_expiry(account: &Account) -> Res {
    let (old, new) = (account.len(), account.len() + EXPIRY_BYTES);
    if account.lamports() < minimum_balance(new)? {
        return Err(Error::ExpiryNeedsRent.into());
    }
    account.resize(old, new)
}
