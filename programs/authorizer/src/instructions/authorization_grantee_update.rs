use crate::accounts::authorization_grantee_update::Accounts;
use crate::error::Error;
use crate::state::{size, Authorization, MAX_DELEGATES};
use psyche_common::decode::Keys;
use psyche_common::system::{minimum_balance, transfer};
use psyche_common::{Common, Res};

pub fn process(a: &Accounts, delegates_clear: bool, delegates_added: Keys) -> Res {
    let authorization = Authorization::load(&a.authorization, a.program)?;
    authorization.check_grantee(&a.grantee)?;
    let (updated, expires) = (authorization.updated(), authorization.expires());
    let at = authorization.delegates_offset();
    let kept = if delegates_clear { 0 } else { authorization.num_delegates() };
    let num = kept.checked_add(delegates_added.len()).ok_or(Common::ArithmeticOverflow)?;
    if num > MAX_DELEGATES {
        return Err(Error::TooManyDelegates.into());
    }
    let (old, new) = (a.authorization.len(), size(authorization.scope_len(), num));
    let missing = minimum_balance(new)?.saturating_sub(a.authorization.lamports());
    transfer(&a.payer, &a.authorization, &a.system_program, missing)?;
    a.authorization.resize(old, new)?;
    let data = a.authorization.data_mut();
    data[at..at + 4].copy_from_slice(&(num as u32).to_le_bytes());
    let first_new = at + 4 + 32 * kept;
    data[first_new..first_new + delegates_added.0.len()].copy_from_slice(delegates_added.0);
    // an account of the older layout gets its expiry here: never
    data[new - 16..new - 8].copy_from_slice(&updated.to_le_bytes());
    data[new - 8..].copy_from_slice(&expires.to_le_bytes());
    Ok(())
}
