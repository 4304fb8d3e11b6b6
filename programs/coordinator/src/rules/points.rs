//! Points: integers, spread by largest remainder so that none is made or lost.
use crate::state::{client_state, CoordinatorAccount, MAX_CLIENTS};
use psyche_common::{Common, Res};

/// Pays the epoch's shared points to its clients in proportion to the rounds they were attested for.
pub fn settle(c: &mut CoordinatorAccount) -> Res {
    let rate = c.current_rates.earning_rate_total_shared;
    let clients = c.epoch_state.clients();
    let weight = |i: usize| -> u64 {
        if clients[i].state == client_state::EJECTED { 0 } else { clients[i].attested_rounds as u64 }
    };
    let num = clients.len();
    let total: u64 = (0..num).map(weight).sum();
    let mut extra = [0u64; MAX_CLIENTS / 64];
    if total > 0 && rate > 0 {
        choose_remainders(rate, total, num, &weight, &mut extra);
        for i in 0..num {
            let product = rate as u128 * weight(i) as u128;
            let share = (product / total as u128) as u64 + (extra[i / 64] >> (i % 64) & 1);
            let entry = &mut c.entries[c.epoch_state.clients[i].entry as usize];
            entry.earned = entry.earned.checked_add(share).ok_or(Common::ArithmeticOverflow)?;
        }
    }
    for client in c.epoch_state.clients_mut() {
        client.attested_rounds = 0;
    }
    Ok(())
}

/// Marks who gets one of the units that flooring left over: largest remainders, then lower index.
#[inline(never)]
fn choose_remainders(rate: u64, total: u64, num: usize, weight: &dyn Fn(usize) -> u64, extra: &mut [u64; 4]) {
    let mut keys = [0u64; MAX_CLIENTS];
    let mut sum = 0u64;
    for (i, key) in keys[..num].iter_mut().enumerate() {
        let product = rate as u128 * weight(i) as u128;
        sum += (product / total as u128) as u64;
        // total is below 2^40 (256 clients, u32 rounds), so remainder and index share a word
        *key = ((product % total as u128) as u64) << 8 | (MAX_CLIENTS - 1 - i) as u64;
    }
    let left = (rate - sum) as usize;
    keys[..num].sort_unstable();
    for key in keys[num - left..num].iter() {
        let i = MAX_CLIENTS - 1 - (key & 0xff) as usize;
        extra[i / 64] |= 1 << (i % 64);
    }
}
