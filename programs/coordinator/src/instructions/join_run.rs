use crate::accounts::join_run::Accounts;
use crate::error::Error;
use crate::rules::authorization::check_authorization;
use crate::rules::bond::check_bond;
use crate::state::{
    get_bit, run_state, set_bit, Bitmap, ClientEntry, CoordinatorAccount, Instance, AUTHORIZATION_PREFIX,
    MAX_CLIENTS,
};
use psyche_common::{sys, Key, Res};

pub fn process(a: &Accounts, address_hint: &'static [u8; 64]) -> Res {
    let instance = Instance::load(&a.instance, &a.coordinator_account, a.program)?;
    let c = CoordinatorAccount::load(&a.coordinator_account, a.program)?;
    let now = sys::clock()?.unix_timestamp;
    check_authorization(&a.authorization, instance.join_authority(), a.user.key(), now)?;
    super::check_hint(address_hint)?;
    if c.run_state == run_state::FINISHED {
        return Err(Error::InvalidRunState.into());
    }
    let named = [instance.main_authority(), a.user.key(), a.coordinator_account.key()];
    let known = c.find_entry(a.user.key());
    let debt = known.map_or(0, |number| c.entries[number].debt());
    check_bond(a.bond, named, c.config.required_bond, debt)?;
    check_p2p_key(c, known, a.p2p.key())?;
    let number = match known {
        Some(number) => number,
        None => add(c, a.user.key())?,
    };
    let changed = known.is_none() | enter(c, number, a.p2p.key(), address_hint, a.authorization.key());
    super::finish(&a.coordinator_account, c, changed)
}

/// A p2p key names one client, and stays as long as the client is in an epoch: peers know it by that.
fn check_p2p_key(c: &CoordinatorAccount, known: Option<usize>, p2p_key: &Key) -> Res {
    let holder = c.entries().iter().position(|entry| entry.p2p_key == *p2p_key);
    if holder.is_some() && holder != known {
        return Err(Error::P2pKeyInUse.into());
    }
    let Some(number) = known.filter(|_| holder.is_none() && c.is_in_epoch()) else { return Ok(()) };
    match c.find_epoch_client(number) {
        Some(index) if super::is_healthy_client(c, index, number) => Err(Error::ClientKeysInUse.into()),
        _ => Ok(()),
    }
}

/// Makes an entry: behind the others, or in a full list in the place of one that nobody misses.
fn add(c: &mut CoordinatorAccount, signer: &Key) -> Res<usize> {
    let number = if (c.num_entries as usize) < MAX_CLIENTS {
        c.num_entries += 1;
        c.num_entries as usize - 1
    } else {
        find_replaceable(c).ok_or(Error::ClientsFull)?
    };
    c.entries[number] = ClientEntry {
        signer: *signer,
        p2p_key: [0; 32],
        address_hint: [0; 64],
        earned: 0,
        slashed: 0,
        active: 0,
        last_epoch: 0,
        reserved: 0,
        claimed: 0,
        authorization: [0; AUTHORIZATION_PREFIX],
    };
    Ok(number)
}

/// The first client that is out of the coming epoch and of the newest one, and has no points to claim. One that
/// owes points stays for an epoch, in which anybody may have its bond pay them.
fn find_replaceable(c: &CoordinatorAccount) -> Option<usize> {
    let mut in_epoch: Bitmap = [0; MAX_CLIENTS / 64];
    for client in c.epoch_state.clients() {
        set_bit(&mut in_epoch, client.entry as usize % MAX_CLIENTS);
    }
    c.entries().iter().enumerate().position(|(number, entry)| {
        let is_idle = entry.active != c.next_active && !get_bit(&in_epoch, number);
        let is_old = entry.last_epoch.saturating_add(1) < c.progress.epoch as u32;
        is_idle && entry.claimable() == 0 && (is_old || entry.debt() == 0)
    })
}

/// Writes what a client joins with; true when any of it was different.
fn enter(
    c: &mut CoordinatorAccount,
    number: usize,
    p2p_key: &Key,
    address_hint: &[u8; 64],
    authorization: &Key,
) -> bool {
    let next_active = c.next_active;
    let entry = &mut c.entries[number];
    let prefix = &authorization[..AUTHORIZATION_PREFIX];
    let changed = entry.p2p_key != *p2p_key
        || entry.address_hint != *address_hint
        || entry.active != next_active
        || entry.authorization != prefix;
    entry.p2p_key = *p2p_key;
    entry.address_hint = *address_hint;
    entry.active = next_active;
    entry.authorization.copy_from_slice(prefix);
    changed
}
