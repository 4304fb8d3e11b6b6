//! The coordinator's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        UpdateConfigFinished = "a finished run cannot be configured",
        UpdateConfigNotHalted = "the run must be paused first",
        CoordinatorAccountIncorrectSize = "the coordinator account has the wrong size",
        ClientsFull = "the run holds as many clients as it can",
        ConfigSanityCheckFailed = "the run configuration breaks a rule",
        ModelSanityCheckFailed = "the model configuration breaks a rule",
        ProgressSanityCheckFailed = "the progress breaks a rule",
        SignerNotAClient = "the signer has not joined the run",
        SignerMismatch = "the signer is not the client it claims to be",
        CloseCoordinatorNotHalted = "the run must be paused or finished first",
        NoActiveRound = "there is no round",
        InvalidWitness = "the witness is not elected or attests to what it cannot",
        InvalidRunState = "the run is not in a state that allows this",
        DuplicateWitness = "this witness has attested already",
        InvalidHealthCheck = "the client is not unhealthy",
        Halted = "the run is uninitialized, paused or finished",
        InvalidCheckpoint = "the checkpoint cannot be set",
        WitnessesFull = "no more witnesses fit",
        CannotResume = "the run is not paused",
        InvalidWithdraw = "the client cannot withdraw",
        InvalidCommitteeSelection = "the committee cannot be drawn",
        InvalidCommitteeProof = "the committee proof is wrong",
        MoreClientsThanBatches = "there are more clients than samples in a batch",
        RunIdInvalidLength = "a run id has 1 to 32 bytes of UTF-8 without a zero byte",
        NotAuthorized = "the run's join authority has not authorized the signer",
        ClientKeysInUse = "the p2p key cannot change while the client is in an epoch",
        InvalidAddressHint = "the address hint is malformed",
        ClientNotInEpoch = "the client is not a healthy client of this epoch",
        P2pKeyInUse = "the p2p key is another client's",
        AuthorizationStillValid = "the authorization still lets the client join",
        ClaimExceedsEarned = "more points are claimed than were earned and not yet slashed or claimed",
        NothingToMigrate = "the account is of this program's version already, or of an unknown one",
    }
}
