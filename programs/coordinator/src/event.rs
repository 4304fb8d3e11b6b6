//! What the coordinator tells in a transaction's log.
use psyche_common::Key;

psyche_common::events! {
    /// A run went from one state to another, or from one round to the next.
    Transition {
        coordinator_account: Key,
        /// The account's nonce after it.
        nonce: u64,
        epoch: u16,
        step: u32,
        /// The round's number in the epoch.
        height: u32,
        from: u8,
        to: u8,
        /// When, on the chain's clock.
        unix_timestamp: i64,
    }
}
