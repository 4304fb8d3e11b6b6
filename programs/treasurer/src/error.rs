//! The treasurer's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        InvalidParameter = "a parameter is out of its range",
        RunIdInvalidLength = "a run id has 1 to 32 bytes",
        InsufficientPoints = "more points are claimed than were earned and not yet paid or slashed",
        InsufficientVault = "the run's vault is empty",
        RunNotFinished = "the run is not finished",
        WithdrawDelayNotOver = "collateral can be withdrawn 30 days after the run has finished",
        CollateralIsPromised = "the vault does not hold that much beyond what participants may still claim",
        PointsNotClaimed = "participants may still claim points of the run",
        VaultNotEmpty = "the run's vault still holds collateral",
        NothingToMigrate = "the participant is of the newest layout already",
        NothingToSlash = "the client owes nothing, or its bond is empty",
        BondInUse = "the client is in the running epoch, or has joined the next",
        BondOwesDebt = "the client owes slashed points: bond_slash takes them first",
    }
}
