//! Whether an authorization of the authorizer program lets a user join.
use crate::error::Error;
use psyche_common::sha256::discriminator;
use psyche_common::{ids, Account, Key, Res};

const DISCRIMINATOR: [u8; 8] = discriminator("account", "Authorization");
const SCOPE: &[u8] = b"CoordinatorJoinRun";
const ANYBODY: Key = [0; 32];

/// Layout (Borsh): discriminator, bump, grantor, grantee, scope bytes, active, delegates, update time.
pub fn check_authorization(account: &Account, grantor: &Key, user: &Key) -> Res {
    if is_valid(account, grantor, user).unwrap_or(false) {
        Ok(())
    } else {
        Err(Error::NotAuthorized.into())
    }
}

fn is_valid(account: &Account, grantor: &Key, user: &Key) -> Option<bool> {
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
    let (delegates, _) = read_vec(rest, 32)?;
    let named = grantee == ANYBODY || grantee == user;
    Some(scope == SCOPE && active == 1 && (named || delegates.chunks_exact(32).any(|key| key == user)))
}

fn read_vec(data: &[u8], item: usize) -> Option<(&[u8], &[u8])> {
    let len = u32::from_le_bytes(*data.first_chunk::<4>()?) as usize;
    let end = len.checked_mul(item)?.checked_add(4)?;
    Some((data.get(4..end)?, data.get(end..)?))
}
