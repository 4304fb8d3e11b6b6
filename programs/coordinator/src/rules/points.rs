//! Points: integers, spread by largest remainder so that none is made or lost.
use crate::state::{client_state, CoordinatorAccount, EpochClient, MAX_CLIENTS};

/// Pays the epoch's shared points to its clients in proportion to the rounds they were attested for.
///
/// An entry's points stop at the largest u64 rather than overflow: an owner's silly rate must not keep the
/// run in Cooldown for ever.
pub fn settle(c: &mut CoordinatorAccount) {
    let rate = c.current_rates.earning_rate_total_shared;
    let total: u64 = c.epoch_state.clients().iter().map(weight).sum();
    if total > 0 && rate > 0 {
        spread(c, rate, total);
    }
    for client in c.epoch_state.clients_mut() {
        client.attested_rounds = 0;
    }
}

/// Rounds that count; whoever was ejected for cheating gets nothing.
fn weight(client: &EpochClient) -> u64 {
    if client.state == client_state::EJECTED {
        0
    } else {
        client.attested_rounds as u64
    }
}

/// Gives everybody the floor of its share, and the units left over to the largest remainders (then to the
/// lower index).
#[inline(never)]
fn spread(c: &mut CoordinatorAccount, rate: u64, total: u64) {
    let mut keys = [0u64; MAX_CLIENTS];
    let num = c.epoch_state.clients().len();
    let mut left = rate;
    for (i, key) in keys[..num].iter_mut().enumerate() {
        let client = c.epoch_state.clients[i];
        let (share, remainder) = divide(rate, weight(&client), total);
        left -= share;
        pay(c, client, share);
        // total is below 2^40 (256 clients, u32 rounds), so remainder and index share a word
        *key = remainder << 8 | (MAX_CLIENTS - 1 - i) as u64;
    }
    keys[..num].sort_unstable();
    for key in &keys[num - left as usize..num] {
        let i = MAX_CLIENTS - 1 - (key & 0xff) as usize;
        pay(c, c.epoch_state.clients[i], 1);
    }
}

fn pay(c: &mut CoordinatorAccount, client: EpochClient, points: u64) {
    let entry = &mut c.entries[client.entry as usize];
    entry.earned = entry.earned.saturating_add(points);
}

/// Quotient and remainder of `rate * weight / total`. 128-bit division costs ten times the 64-bit one, and
/// rates beyond 2^64 per round are rare.
fn divide(rate: u64, weight: u64, total: u64) -> (u64, u64) {
    match rate.checked_mul(weight) {
        Some(product) => (product / total, product % total),
        None => {
            let (product, total) = (rate as u128 * weight as u128, total as u128);
            ((product / total) as u64, (product % total) as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::zeroed_account;

    fn earned(rate: u64, rounds: &[u32]) -> Vec<u64> {
        let mut c = zeroed_account();
        c.current_rates.earning_rate_total_shared = rate;
        c.epoch_state.num_clients = rounds.len() as u16;
        for (i, rounds) in rounds.iter().enumerate() {
            c.epoch_state.clients[i].entry = i as u16;
            c.epoch_state.clients[i].attested_rounds = *rounds;
        }
        settle(&mut c);
        c.entries[..rounds.len()].iter().map(|entry| entry.earned).collect()
    }

    #[test]
    fn largest_remainders_get_what_is_left() {
        assert_eq!(earned(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(earned(10, &[1, 2, 4]), [1, 3, 6]);
        assert_eq!(earned(2, &[0, 5, 5, 5]), [0, 1, 1, 0]);
    }

    #[test]
    fn sums_are_exact_beyond_64_bits() {
        for rate in [1, 7, 1 << 40, u64::MAX - 3, u64::MAX] {
            let points = earned(rate, &[u32::MAX, 3, 1_000_000, 0, 77]);
            assert_eq!(points.iter().map(|x| *x as u128).sum::<u128>(), rate as u128);
        }
    }

    #[test]
    fn nobody_attested_means_nobody_paid() {
        assert_eq!(earned(100, &[0, 0]), [0, 0]);
    }

    #[test]
    fn ejected_clients_get_nothing() {
        let mut c = zeroed_account();
        c.current_rates.earning_rate_total_shared = 9;
        c.epoch_state.num_clients = 2;
        for i in 0..2 {
            c.epoch_state.clients[i].entry = i as u16;
            c.epoch_state.clients[i].attested_rounds = 4;
        }
        c.epoch_state.clients[0].state = client_state::EJECTED;
        settle(&mut c);
        assert_eq!((c.entries[0].earned, c.entries[1].earned), (0, 9));
    }
}
