//! The authorizer's own refusals.

psyche_common::errors! {
    /// See each message. The order is the numbering and never changes.
    Error from 6000 {
        AuthorizationActiveIsTrue = "the authorization must be switched off first",
        AuthorizationClosingConditionsNotReachedYet = "delegates are protected for 30 days after the last change",
        ScopeTooLong = "a scope has at most 32 bytes",
        TooManyDelegates = "an authorization has at most 256 delegates",
        InvalidExpiry = "an expiry is 0 (never) or Unix seconds after 1970",
        ExpiryNeedsRent = "the authorization is of an older layout and lacks the rent for an expiry",
    }
}
