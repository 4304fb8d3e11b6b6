use crate::accounts::airdrop_update::Accounts;
use crate::error::Error;
use crate::state::{Airdrop, AirdropList};
use psyche_common::{sys, Raw, Res, Text};

/// The order counts: a list is measured against the guarantee that was given for the one before it.
pub fn process(
    a: &Accounts,
    claim_freeze: Option<bool>,
    list: Option<Raw<AirdropList>>,
    guaranteed_until_unix_timestamp: Option<i64>,
    metadata: Option<Text>,
) -> Res {
    let mut airdrop = Airdrop::load(&a.airdrop, a.program)?;
    airdrop.check_authority(&a.authority)?;
    let now = sys::clock()?.unix_timestamp;
    if let Some(frozen) = claim_freeze {
        airdrop.set_frozen(frozen, now);
    }
    if let Some(list) = list {
        if airdrop.is_guaranteed(now) {
            return Err(Error::AirdropIsGuaranteed.into());
        }
        airdrop.set_list(&list)?;
    }
    if let Some(until) = guaranteed_until_unix_timestamp {
        if until < airdrop.guaranteed_until() {
            return Err(Error::ParamsGuaranteeIsTooShort.into());
        }
        airdrop.set_guaranteed_until(until);
    }
    if let Some(metadata) = metadata {
        airdrop.set_metadata(metadata.0)?;
    }
    Ok(())
}
