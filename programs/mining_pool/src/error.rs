//! The mining pool's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        ParamsCollateralAmountIsTooLarge = "more collateral than the pool takes, or than its vault holds",
        ParamsRedeemableAmountIsTooLarge = "more is claimed than the lender's share of what was repaid and not yet claimed",
        ParamsMetadataLengthIsTooLarge = "metadata has at most 400 bytes",
        PoolClaimingEnabledIsTrue = "claiming is enabled: nothing can be deposited any more",
        PoolClaimingEnabledIsFalse = "claiming is not enabled yet",
        PoolFreezeIsTrue = "the pool is frozen",
        PoolTotalDepositedCollateralAmountIsZero = "nothing was deposited, so nobody could ever claim",
        ParamsMaxDepositIsBelowTotalDeposited = "more than that was deposited already",
        ParamsMaxDepositIsRaised = "once something was deposited the limit can only be lowered, lenders count on it",
    }
}
