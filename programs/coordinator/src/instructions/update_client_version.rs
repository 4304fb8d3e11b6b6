use crate::accounts::update_client_version::Accounts;
use crate::state::CoordinatorAccount;
use psyche_common::{Common, Res, Text};

pub fn process(a: &Accounts, client_version: Text) -> Res {
    let coordinator = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    coordinator.check_halted()?;
    let changed = set(coordinator, client_version)?;
    coordinator.bump_nonce_if(changed);
    Ok(())
}

/// Stores a version, padded with zeros. True when it was another.
pub fn set(coordinator: &mut CoordinatorAccount, client_version: Text) -> Res<bool> {
    if core::str::from_utf8(client_version.0).is_err() {
        return Err(Common::InvalidInstructionData.into());
    }
    let mut padded = [0u8; 96];
    let room = padded.get_mut(..client_version.0.len()).ok_or(Common::InvalidInstructionData)?;
    room.copy_from_slice(client_version.0);
    let changed = coordinator.client_version != padded;
    coordinator.client_version = padded;
    Ok(changed)
}
