//! Whether an authorization of the authorizer program lets a user join.
use crate::error::Error;
use psyche_common::sha256::discriminator;
use psyche_common::{ids, Account, Key, Res};

const DISCRIMINATOR: [u8; 8] = discriminator("account", "Authorization");
const SCOPE: &[u8] = b"CoordinatorJoinRun";
const ANYBODY: Key = [0; 32];

/// Layout (Borsh): discriminator, bump, grantor, grantee, scope bytes, active, delegates, update time, expiry.
/// `now` is in Unix seconds: an authorization counts until the second before its expiry.
pub fn check_authorization(account: &Account, grantor: &Key, user: &Key, now: i64) -> Res {
    if is_valid(account, grantor, user, now).unwrap_or(false) {
        Ok(())
    } else {
        Err(Error::NotAuthorized.into())
    }
}

fn is_valid(account: &Account, grantor: &Key, user: &Key, now: i64) -> Option<bool> {
    if *account.owner() != ids::AUTHORIZER {
        return Some(false);
    }
    let data = account.data();
    if data.get(..8)? != DISCRIMINATOR || data.get(9..41)? != grantor {
        return Some(false);
    }
    let grantee = data.get(41..73)?;
    let (scope, rest) = read_vec(data.get(73..)?, 1)?;
    let (&active, rest) = rest.split_first()?;
    let (delegates, times) = read_vec(rest, 32)?;
    let expires = match times.len() {
        8 => 0, // made before there were expiries
        16 => i64::from_le_bytes(*times.last_chunk::<8>()?),
        _ => return Some(false),
    };
    let is_on = active == 1 && (expires == 0 || now < expires);
    let named = grantee == ANYBODY || grantee == user;
    Some(scope == SCOPE && is_on && (named || delegates.chunks_exact(32).any(|key| key == user)))
}

fn read_vec(data: &[u8], item: usize) -> Option<(&[u8], &[u8])> {
    let len = u32::from_le_bytes(*data.first_chunk::<4>()?) as usize;
    let end = len.checked_mul(item)?.checked_add(4)?;
    Some((data.get(4..end)?, data.get(end..)?))
}
