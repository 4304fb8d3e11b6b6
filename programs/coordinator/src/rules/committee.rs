//! Election of witnesses and committees by seed: swap-or-not shuffle, 90 rounds.
use crate::state::{get_bit, set_bit, Bitmap, Round, MAX_CLIENTS, MAX_WITNESSES};
use psyche_common::sys::sha256;

const NUM_SHUFFLE_ROUNDS: u8 = 90;
const WITNESS_SALT: &[u8] = b"witness";
const COMMITTEE_SALT: &[u8] = b"committee";
/// Whom the verifiers of a round look at.
const DUTY_SALT: &[u8] = b"verify";

/// Where `index` of `num` lands in the shuffle under `seed`, as the definition says it.
#[cfg(test)]
fn shuffled_index(mut index: u64, num: u64, seed: &[u8; 32]) -> u64 {
    for round in 0..NUM_SHUFFLE_ROUNDS {
        let pivot_hash = sha256(&[seed, &[round]]);
        let mut first = [0u8; 8];
        first.copy_from_slice(&pivot_hash[..8]);
        let pivot = u64::from_le_bytes(first) % num;
        let flip = (pivot + num - index) % num;
        let position = u64::max(index, flip);
        let source = sha256(&[seed, &[round], &((position / 256) as u32).to_le_bytes()]);
        if source[(position % 256 / 8) as usize] >> (position % 8) & 1 == 1 {
            index = flip;
        }
    }
    index
}

/// Where each of `indices` (below `num`) lands in the shuffle.
fn shuffle(indices: &mut [u16], num: u16, seed: &[u8; 32]) {
    for round in 0..NUM_SHUFFLE_ROUNDS {
        swap_or_not(indices, num, seed, round);
    }
}

/// Which indices land at these positions of the shuffle: a round is its own inverse, so they run backwards.
fn unshuffle(positions: &mut [u16], num: u16, seed: &[u8; 32]) {
    for round in (0..NUM_SHUFFLE_ROUNDS).rev() {
        swap_or_not(positions, num, seed, round);
    }
}

/// One round for several indices, which share its two hashes: a full election would not fit a tick otherwise.
fn swap_or_not(indices: &mut [u16], num: u16, seed: &[u8; 32], round: u8) {
    let pivot_hash = sha256(&[seed, &[round]]);
    let mut first = [0u8; 8];
    first.copy_from_slice(&pivot_hash[..8]);
    let pivot = (u64::from_le_bytes(first) % num as u64) as u16;
    // positions are below 256, so the first block of the bit source is all there is
    let source = sha256(&[seed, &[round], &[0; 4]]);
    for index in indices.iter_mut() {
        let flip = if *index > pivot { pivot + num - *index } else { pivot - *index };
        let position = u16::max(*index, flip) as usize;
        if source[position >> 3] >> (position & 7) & 1 == 1 {
            *index = flip;
        }
    }
}

/// Each role has a shuffle of its own.
fn role_seed(round: &Round, salt: &[u8]) -> [u8; 32] {
    sha256(&[&sha256(&[&round.random_seed.to_le_bytes()]), salt])
}

/// From the ranks of clients in `round` to their places in its committees.
#[inline(never)]
pub fn to_committee_positions(ranks: &mut [u16], round: &Round) {
    shuffle(ranks, round.clients_len, &role_seed(round, COMMITTEE_SALT));
}

/// From positions in the order that `round` draws of `num` trainers to their ranks.
#[inline(never)]
pub fn to_drawn_ranks(positions: &mut [u16], num: u16, round: &Round) {
    unshuffle(positions, num, &role_seed(round, DUTY_SALT));
}

/// Where the verifiers of a round begin among the committee's positions, and where they end.
pub fn verifier_positions(verification_percent: u8, round: &Round) -> (u16, u16) {
    let start = u16::min(round.tie_breaker_tasks, round.clients_len);
    let rest = round.clients_len - start;
    if verification_percent == 0 || rest < 2 {
        return (start, start);
    }
    (start, start + u16::max(1, rest * verification_percent as u16 / 100))
}

/// The epoch clients that a round elects as witnesses.
#[inline(never)]
pub fn elect(witness_nodes: u16, round: &Round) -> Bitmap {
    let num = num_elected(witness_nodes, round);
    if num == round.clients_len {
        return round.healthy;
    }
    let mut ranks = [0u16; MAX_WITNESSES];
    for (position, rank) in ranks.iter_mut().enumerate() {
        *rank = position as u16;
    }
    unshuffle(&mut ranks[..num as usize], round.clients_len, &role_seed(round, WITNESS_SALT));
    let mut elected_ranks = [0; MAX_CLIENTS / 64];
    for rank in &ranks[..num as usize] {
        set_bit(&mut elected_ranks, *rank as usize);
    }
    let mut elected = [0; MAX_CLIENTS / 64];
    let mut rank = 0;
    for index in 0..MAX_CLIENTS {
        if get_bit(&round.healthy, index) {
            if get_bit(&elected_ranks, rank) {
                set_bit(&mut elected, index);
            }
            rank += 1;
        }
    }
    elected
}

/// How many witnesses a round elects.
pub fn num_elected(witness_nodes: u16, round: &Round) -> u16 {
    let wanted = if witness_nodes == 0 { MAX_WITNESSES as u16 } else { witness_nodes };
    wanted.min(MAX_WITNESSES as u16).min(round.clients_len)
}

/// Votes needed among `elected` witnesses: two thirds rounded down, but more than half, so that any two quorums
/// share a witness.
pub fn quorum(elected: u16) -> u16 {
    match elected {
        0 => 0,
        n => u16::max(n * 2 / 3, n / 2 + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_is_a_permutation() {
        for num in [1, 2, 3, 31, 256] {
            let mut seen = vec![false; num as usize];
            for index in 0..num {
                seen[shuffled_index(index, num, &[7; 32]) as usize] = true;
            }
            assert!(seen.iter().all(|x| *x));
        }
    }

    #[test]
    fn unshuffle_is_the_inverse() {
        for num in [1u16, 2, 3, 31, 33, 255, 256] {
            let mut ranks: Vec<u16> = (0..num).collect();
            unshuffle(&mut ranks, num, &[9; 32]);
            for (position, rank) in ranks.iter().enumerate() {
                assert_eq!(shuffled_index(*rank as u64, num as u64, &[9; 32]), position as u64);
            }
            shuffle(&mut ranks, num, &[9; 32]);
            assert!(ranks.iter().enumerate().all(|(position, back)| position == *back as usize));
        }
    }

    #[test]
    fn quorum_is_two_thirds() {
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 9, 32].map(quorum), [0, 1, 2, 2, 3, 3, 4, 6, 21]);
    }
}
