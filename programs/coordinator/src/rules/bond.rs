//! Whether a bond that the treasurer holds lets a user join.
use crate::error::Error;
use psyche_common::sha256::discriminator;
use psyche_common::{ids, Account, Key, Res};

const DISCRIMINATOR: [u8; 8] = discriminator("account", "Bond");
const AMOUNT: usize = 8 + 1 + 3 * 32;

/// Layout (Borsh): discriminator, bump, the treasurer's run, user, coordinator account, amount. `named` are the
/// first three keys as they must be: the run is the main authority of its coordinator run. The treasurer
/// writes them into addresses that follow from them, so the address is not derived again. What the bond still has
/// to pay for a `debt` is not at stake any more.
pub fn check_bond(account: Option<Account>, named: [&Key; 3], required: u64, debt: u64) -> Res {
    let needed = required.saturating_add(debt);
    let is_enough = |account: Account| amount(&account, named).is_some_and(|amount| amount >= needed);
    if required == 0 || account.is_some_and(is_enough) {
        return Ok(());
    }
    Err(Error::BondMissing.into())
}

fn amount(account: &Account, named: [&Key; 3]) -> Option<u64> {
    let data = account.data();
    let amount: &[u8; 8] = data.get(AMOUNT..)?.try_into().ok()?;
    let is_bond = *account.owner() == ids::TREASURER && data.get(..8)? == DISCRIMINATOR;
    let keys = data.get(9..AMOUNT)?.chunks_exact(32);
    if !is_bond || keys.zip(named).any(|(found, wanted)| found != wanted) {
        return None;
    }
    Some(u64::from_le_bytes(*amount))
}
