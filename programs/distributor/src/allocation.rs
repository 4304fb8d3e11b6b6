//! One line of an airdrop's list, and how much of it has vested.
use psyche_common::Key;

/// What a wallet gets: `end_collateral_amount` base units, released evenly over the duration.
#[derive(Clone, Copy)]
pub struct Allocation<'a> {
    pub claimer: &'a Key,
    /// Tells several lines of one claimer apart.
    pub nonce: u64,
    pub start_unix_timestamp: i64,
    pub duration_seconds: u32,
    pub end_collateral_amount: u64,
}

impl Allocation<'_> {
    /// Base units released at `now`: nothing before the start, everything at the end, rounded down between.
    ///
    /// Cannot overflow: the time since the start fits 64 bits without a sign, the product 96 bits, and the
    /// quotient is less than the whole.
    pub fn vested(&self, now: i64) -> u64 {
        if now < self.start_unix_timestamp {
            return 0;
        }
        let elapsed = now.abs_diff(self.start_unix_timestamp);
        let duration = u64::from(self.duration_seconds);
        if elapsed >= duration {
            return self.end_collateral_amount;
        }
        (u128::from(self.end_collateral_amount) * u128::from(elapsed) / u128::from(duration)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vested(start: i64, duration: u32, amount: u64, now: i64) -> u64 {
        let allocation = Allocation {
            claimer: &[0; 32],
            nonce: 0,
            start_unix_timestamp: start,
            duration_seconds: duration,
            end_collateral_amount: amount,
        };
        allocation.vested(now)
    }

    #[test]
    fn released_evenly_and_rounded_down() {
        assert_eq!(
            [99, 100, 101, 105, 109, 110, 111].map(|now| vested(100, 10, 99, now)),
            [0, 0, 9, 49, 89, 99, 99]
        );
    }

    #[test]
    fn without_duration_all_at_the_start() {
        assert_eq!(vested(100, 0, 7, 99), 0);
        assert_eq!(vested(100, 0, 7, 100), 7);
    }

    #[test]
    fn both_ends_of_every_integer() {
        let (long, all) = (u32::MAX, u64::MAX);
        assert_eq!(vested(i64::MIN, long, all, i64::MAX), all);
        assert_eq!(vested(i64::MAX, long, all, i64::MIN), 0);
        assert_eq!(vested(i64::MAX, long, all, i64::MAX), 0);
        assert_eq!(vested(i64::MAX, 0, all, i64::MAX), all);
        assert_eq!(vested(i64::MIN, long, all, i64::MIN), 0);
        assert_eq!(vested(i64::MIN, 0, 0, i64::MIN), 0);
        // the last second but one: all - ceil(all / long)
        assert_eq!(vested(0, long, all, i64::from(long) - 1), all - 4_294_967_297);
        assert_eq!(vested(-1, 1, all, 0), all);
    }

    #[test]
    fn never_shrinks_and_never_exceeds() {
        let mut before = 0;
        for now in -5..1_100 {
            let amount = vested(3, 1_000, 12_345, now);
            assert!(amount >= before && amount <= 12_345);
            before = amount;
        }
        assert_eq!(before, 12_345);
    }
}
