//! Counting what witnesses saw.
use crate::state::{Bitmap, Round, MAX_CLIENTS};

const WORDS: usize = MAX_CLIENTS / 64;

/// For each of 256 clients the number of stored witnesses (at most 32) that saw it, in six bit planes: one
/// counter per client and witness would cost more compute than an instruction has.
pub struct Votes {
    planes: [[u64; 6]; WORDS],
    num_witnesses: u16,
}

impl Votes {
    pub fn count(round: &Round) -> Votes {
        let mut planes = [[0u64; 6]; WORDS];
        for witness in round.stored_witnesses() {
            for (planes, participants) in planes.iter_mut().zip(witness.participants) {
                let mut carry = participants;
                for plane in planes.iter_mut() {
                    let overflow = *plane & carry;
                    *plane ^= carry;
                    carry = overflow;
                }
            }
        }
        Votes { planes, num_witnesses: round.stored_witnesses().len() as u16 }
    }

    /// Clients that at least `quorum` (below 64) witnesses saw take part.
    pub fn seen(&self, quorum: u16) -> Bitmap {
        self.planes.each_ref().map(|planes| at_least(planes, quorum))
    }

    /// Clients that at least `quorum` witnesses did not see.
    pub fn missed(&self, quorum: u16) -> Bitmap {
        match self.num_witnesses.checked_sub(quorum) {
            None => [0; WORDS],
            Some(most) => self.planes.each_ref().map(|planes| !at_least(planes, most + 1)),
        }
    }
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

/// Whether `participants` leaves out a client in `seen` or names one in `missed`.
pub fn contradicts(participants: &Bitmap, seen: &Bitmap, missed: &Bitmap) -> bool {
    (0..WORDS).any(|i| seen[i] & !participants[i] | participants[i] & missed[i] != 0)
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
