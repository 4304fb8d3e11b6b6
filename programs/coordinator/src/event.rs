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
    /// A verifier has accused a trainer.
    DisputeOpened {
        coordinator_account: Key,
        /// The account's nonce after it.
        nonce: u64,
        epoch: u16,
        /// The round whose result is disputed.
        height: u32,
        evidence_hash: [u8; 32],
        accuser: Key,
        trainer: Key,
        reason: u8,
    }
    /// A dispute was decided, or it was not and its time is over.
    DisputeSettled {
        coordinator_account: Key,
        /// The account's nonce after it.
        nonce: u64,
        epoch: u16,
        /// The round whose result was disputed.
        height: u32,
        evidence_hash: [u8; 32],
        accuser: Key,
        trainer: Key,
        /// 2 guilty, 3 not guilty, 4 undecided.
        state: u8,
        reason: u8,
        num_guilty: u8,
        num_not_guilty: u8,
        /// What the loser is slashed by, in points.
        slashed: u64,
    }
}
