//! Counting what witnesses saw.
use crate::state::{Bitmap, Round, MAX_CLIENTS};

/// Clients that at least `quorum` (below 64) of the round's stored witnesses saw take part.
///
/// Counts all 256 clients at once in six bit planes, since one counter per client and witness would cost
/// more compute than an instruction has.
pub fn attested(round: &Round, quorum: u16) -> Bitmap {
    let mut out = [0u64; MAX_CLIENTS / 64];
    for (word, result) in out.iter_mut().enumerate() {
        let mut planes = [0u64; 6];
        for witness in round.stored_witnesses() {
            let mut carry = witness.participants[word];
            for plane in planes.iter_mut() {
                let overflow = *plane & carry;
                *plane ^= carry;
                carry = overflow;
            }
        }
        *result = at_least(&planes, quorum);
    }
    out
}

/// Bits whose count, spread over the planes, is at least `limit`: compare from the highest plane down.
fn at_least(planes: &[u64; 6], limit: u16) -> u64 {
    let (mut greater, mut equal) = (0u64, u64::MAX);
    for (i, plane) in planes.iter().enumerate().rev() {
        let limit_bit = if limit >> i & 1 == 1 { u64::MAX } else { 0 };
        greater |= equal & plane & !limit_bit;
        equal &= !(plane ^ limit_bit);
    }
    greater | equal
}

/// Whether every stored witness saw everybody in `expected`.
pub fn is_complete(round: &Round, expected: &Bitmap) -> bool {
    round
        .stored_witnesses()
        .iter()
        .all(|witness| witness.participants.iter().zip(expected).all(|(seen, due)| seen & due == *due))
}

#[cfg(test)]
mod tests {
    #[test]
    fn planes_count() {
        for limit in 0..40u16 {
            for count in 0..40u64 {
                let mut planes = [0u64; 6];
                for (i, plane) in planes.iter_mut().enumerate() {
                    *plane = count >> i & 1;
                }
                assert_eq!(super::at_least(&planes, limit) & 1 == 1, count >= limit as u64);
            }
        }
    }
}
