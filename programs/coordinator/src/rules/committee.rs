//! Election of witnesses by seed: swap-or-not shuffle, 90 rounds.
use crate::state::{get_bit, set_bit, Bitmap, Round, MAX_CLIENTS, MAX_WITNESSES};
use psyche_common::sys::sha256;

const NUM_SHUFFLE_ROUNDS: u8 = 90;
const WITNESS_SALT: &[u8] = b"witness";

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

/// Which ranks land at the first positions of the shuffle: `ranks` goes in as 0, 1, 2... and comes out shuffled
/// back. All of them share each round's two hashes, without which a full election would not fit a tick.
fn unshuffle(ranks: &mut [u16], num: u16, seed: &[u8; 32]) {
    for round in (0..NUM_SHUFFLE_ROUNDS).rev() {
        let pivot_hash = sha256(&[seed, &[round]]);
        let mut first = [0u8; 8];
        first.copy_from_slice(&pivot_hash[..8]);
        let pivot = (u64::from_le_bytes(first) % num as u64) as u16;
        // positions are below 256, so the first block of the bit source is all there is
        let source = sha256(&[seed, &[round], &[0; 4]]);
        for rank in ranks.iter_mut() {
            let flip = if *rank > pivot { pivot + num - *rank } else { pivot - *rank };
            let position = u16::max(*rank, flip) as usize;
            if source[position >> 3] >> (position & 7) & 1 == 1 {
                *rank = flip;
            }
        }
    }
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
    let seed = sha256(&[&round.random_seed.to_le_bytes()]);
    unshuffle(&mut ranks[..num as usize], round.clients_len, &sha256(&[&seed, WITNESS_SALT]));
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
        }
    }

    #[test]
    fn quorum_is_two_thirds() {
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 9, 32].map(quorum), [0, 1, 2, 2, 3, 3, 4, 6, 21]);
    }
}
