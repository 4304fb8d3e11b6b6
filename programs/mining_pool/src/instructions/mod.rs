//! One instruction per file.
pub mod lender_claim;
pub mod lender_create;
pub mod lender_deposit;
pub mod pool_claimable;
pub mod pool_create;
pub mod pool_extract;
pub mod pool_update;
