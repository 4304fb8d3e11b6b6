//! What a lender may claim: its share of everything that was ever repaid, rounded down.
//!
//! Shares are fixed once claiming is enabled, since nobody can deposit after that. What was repaid is what the
//! vault holds and what was paid out of it. So neither the order of claims nor their number changes what a
//! lender gets, and floors of shares never add up to more than was repaid.

/// floor(`repaid` x `deposited` / `total_deposited`).
///
/// Exact for every number: the product itself may have 192 bits. None when the share would be above one or
/// nothing was deposited, neither of which the program lets happen.
pub fn compute_entitled(repaid: u128, deposited: u64, total_deposited: u64) -> Option<u128> {
    if deposited > total_deposited {
        return None;
    }
    let (deposited, total) = (deposited as u128, total_deposited as u128);
    let (quotient, remainder) = (repaid.checked_div(total)?, repaid.checked_rem(total)?);
    // the first is at most `repaid`, the second product is of two numbers below 2^64
    quotient.checked_mul(deposited)?.checked_add(remainder.checked_mul(deposited)? / total)
}

/// The numbers that a claim depends on.
pub struct Claim {
    /// Paid to all lenders so far.
    pub total_claimed: u128,
    /// In the vault now.
    pub vault_amount: u64,
    pub deposited: u64,
    pub total_deposited: u64,
    /// Paid to this lender so far.
    pub claimed: u128,
}

impl Claim {
    /// What the lender may claim now.
    pub fn compute_claimable(&self) -> Option<u128> {
        let repaid = self.total_claimed.checked_add(self.vault_amount as u128)?;
        let entitled = compute_entitled(repaid, self.deposited, self.total_deposited)?;
        Some(entitled.saturating_sub(self.claimed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that look random and are the same every time.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let x = self.0 ^ (self.0 >> 29);
            x.wrapping_mul(0xbf58476d1ce4e5b9) ^ (x >> 32)
        }
        fn below(&mut self, limit: u64) -> u64 {
            self.next() % limit
        }
    }

    #[test]
    fn small_numbers_are_floors() {
        for total in 1..40u64 {
            for deposited in 0..=total {
                for repaid in 0..120u128 {
                    let expected = repaid * deposited as u128 / total as u128;
                    assert_eq!(compute_entitled(repaid, deposited, total), Some(expected));
                }
            }
        }
    }

    #[test]
    fn both_ends_of_the_integers() {
        let max = u64::MAX;
        assert_eq!(compute_entitled(0, max, max), Some(0));
        assert_eq!(compute_entitled(u128::MAX, max, max), Some(u128::MAX));
        assert_eq!(compute_entitled(u128::MAX, 1, 1), Some(u128::MAX));
        assert_eq!(compute_entitled(u128::MAX, 0, max), Some(0));
        // 2^128 - 1 = (2^64 - 1)(2^64 + 1)
        assert_eq!(compute_entitled(u128::MAX, 1, max), Some((1 << 64) + 1));
        assert_eq!(compute_entitled(u128::MAX, max - 1, max), Some(u128::MAX - (1 << 64) - 1));
        assert_eq!(compute_entitled(max as u128 - 1, 1, max), Some(0));
        assert_eq!(compute_entitled(max as u128, 1, max), Some(1));
    }

    #[test]
    fn no_share_is_above_one() {
        assert_eq!(compute_entitled(10, 1, 0), None);
        assert_eq!(compute_entitled(10, 0, 0), None);
        assert_eq!(compute_entitled(10, 3, 2), None);
    }

    #[test]
    fn more_than_any_amount_ever_held_does_not_stop_claims() {
        let claim = Claim {
            total_claimed: u64::MAX as u128 * 5,
            vault_amount: u64::MAX,
            deposited: 1,
            total_deposited: 2,
            claimed: u64::MAX as u128 * 2,
        };
        assert_eq!(claim.compute_claimable(), Some(u64::MAX as u128));
    }

    #[test]
    fn a_lender_that_was_paid_in_full_gets_nothing() {
        let claim =
            Claim { total_claimed: 9, vault_amount: 1, deposited: 9, total_deposited: 10, claimed: 9 };
        assert_eq!(claim.compute_claimable(), Some(0));
        assert_eq!(Claim { claimed: 12, ..claim }.compute_claimable(), Some(0));
    }

    #[test]
    fn random_histories_pay_each_floor_and_never_more_than_was_repaid() {
        let mut numbers = Numbers(7);
        for history in 0..2_000 {
            let scale = 1u64 << (history % 60 + 2);
            let deposits: [u64; 5] = core::array::from_fn(|_| numbers.below(scale / 5 + 1));
            let total: u64 = deposits.iter().sum();
            if total == 0 {
                continue;
            }
            let (mut vault, mut repaid, mut claimed) = (0u64, 0u128, [0u128; 5]);
            for _ in 0..40 {
                let more = numbers.below(scale).min(u64::MAX - vault);
                vault += more;
                repaid += more as u128;
                let i = numbers.below(5) as usize;
                let claim = Claim {
                    total_claimed: claimed.iter().sum(),
                    vault_amount: vault,
                    deposited: deposits[i],
                    total_deposited: total,
                    claimed: claimed[i],
                };
                let claimable = claim.compute_claimable().unwrap();
                assert!(claimable <= vault as u128);
                // sometimes less than all
                let amount = claimable >> numbers.below(3);
                claimed[i] += amount;
                vault -= amount as u64;
            }
            for (claimed, deposited) in claimed.iter().zip(deposits) {
                assert!(*claimed <= compute_entitled(repaid, deposited, total).unwrap());
            }
            assert_eq!(claimed.iter().sum::<u128>() + vault as u128, repaid);
        }
    }
}
