//! The treasurer's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        InvalidParameter = "a parameter is out of its range",
        RunIdInvalidLength = "a run id has 1 to 32 bytes",
        InsufficientPoints = "more points are claimed than were earned and not yet paid or slashed",
        InsufficientVault = "the run's vault holds less than what is claimed",
    }
}
