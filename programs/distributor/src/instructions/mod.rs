//! One instruction per file.
pub mod airdrop_create;
pub mod airdrop_update;
pub mod airdrop_withdraw;
pub mod claim_create;
pub mod claim_redeem;
