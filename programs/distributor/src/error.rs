//! The distributor's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        AirdropClaimFreezeIsTrue = "the airdrop's authority has frozen its claims",
        ParamsMerkleProofIsInvalid = "the proof does not lead from this allocation to the airdrop's list",
        ParamsMerkleRootIsZeroed = "a Merkle root of zeros is no list",
        ParamsCollateralAmountIsTooLarge = "more is asked for than has vested and not been redeemed, or than the vault holds",
        ParamsMetadataLengthIsTooLarge = "metadata has at most 300 bytes",
        ParamsGuaranteeIsTooShort = "a guarantee can be prolonged, never shortened",
        AirdropIsGuaranteed = "until the airdrop's guarantee ends its list stays, and what it promises stays in the vault",
        AirdropVaultIsTooSmall = "the airdrop's vault holds less than what is redeemed",
    }
}
