//! Election of witnesses by seed: swap-or-not shuffle, 90 rounds.
use crate::state::{Round, MAX_WITNESSES};
use psyche_common::sys::sha256;

const NUM_SHUFFLE_ROUNDS: u8 = 90;
const WITNESS_SALT: &[u8] = b"witness";

/// Where `index` of `num` lands in the shuffle under `seed`.
pub fn shuffled_index(mut index: u64, num: u64, seed: &[u8; 32]) -> u64 {
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

/// Position of an epoch client in the round's witness order.
pub fn witness_position(round: &Round, index: usize) -> u64 {
    let seed = sha256(&[&round.random_seed.to_le_bytes()]);
    let role = sha256(&[&seed, WITNESS_SALT]);
    shuffled_index(round.rank(index) as u64, round.clients_len as u64, &role)
}

/// How many witnesses a round elects.
pub fn num_elected(witness_nodes: u16, round: &Round) -> u16 {
    let wanted = if witness_nodes == 0 { MAX_WITNESSES as u16 } else { witness_nodes };
    wanted.min(MAX_WITNESSES as u16).min(round.clients_len)
}

/// Votes needed among `elected` witnesses: 1, 2, 2, then two thirds rounded down.
pub fn quorum(elected: u16) -> u16 {
    match elected {
        0..=2 => elected,
        3 => 2,
        n => n * 2 / 3,
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
    fn quorum_is_two_thirds() {
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 9, 32].map(quorum), [0, 1, 2, 2, 2, 3, 4, 6, 21]);
    }
}
