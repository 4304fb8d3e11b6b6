use crate::accounts::join_run::Accounts;
use crate::error::Error;
use crate::rules::authorization::check_authorization;
use crate::state::{run_state, ClientEntry, CoordinatorAccount, Instance, MAX_CLIENTS};
use psyche_common::{Key, Res};

const MAX_HINT_KIND: u8 = 3;

pub fn process(a: &Accounts, p2p_key: &'static Key, address_hint: &'static [u8; 64]) -> Res {
    let instance = Instance::load(&a.instance, &a.coordinator_account, a.program)?;
    let c = CoordinatorAccount::load(&a.coordinator_account, a.program)?;
    check_authorization(&a.authorization, instance.join_authority(), a.user.key())?;
    if address_hint[0] > MAX_HINT_KIND {
        return Err(Error::InvalidAddressHint.into());
    }
    if c.run_state == run_state::FINISHED {
        return Err(Error::InvalidRunState.into());
    }
    let changed = match c.find_entry(a.user.key()) {
        Some(entry) => refresh(c, entry, p2p_key, address_hint)?,
        None => add(c, a.user.key(), p2p_key, address_hint)?,
    };
    super::finish(c, changed)
}

fn refresh(c: &mut CoordinatorAccount, number: usize, p2p_key: &Key, address_hint: &[u8; 64]) -> Res<bool> {
    let entry = &c.entries[number];
    if entry.p2p_key != *p2p_key && c.is_in_epoch() {
        if let Some(index) = c.find_epoch_client(number) {
            if super::is_healthy_client(c, index, number) {
                return Err(Error::ClientKeysInUse.into());
            }
        }
    }
    let next_active = c.next_active;
    let entry = &mut c.entries[number];
    let changed =
        entry.p2p_key != *p2p_key || entry.address_hint != *address_hint || entry.active != next_active;
    entry.p2p_key = *p2p_key;
    entry.address_hint = *address_hint;
    entry.active = next_active;
    Ok(changed)
}

fn add(c: &mut CoordinatorAccount, signer: &Key, p2p_key: &Key, address_hint: &[u8; 64]) -> Res<bool> {
    let number = c.num_entries as usize;
    if number >= MAX_CLIENTS {
        return Err(Error::ClientsFull.into());
    }
    c.entries[number] = ClientEntry {
        signer: *signer,
        p2p_key: *p2p_key,
        address_hint: *address_hint,
        earned: 0,
        slashed: 0,
        active: c.next_active,
        last_epoch: 0,
        reserved: [0; 36],
    };
    c.num_entries += 1;
    Ok(true)
}
