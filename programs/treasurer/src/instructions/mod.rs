//! One instruction per file.
pub mod bond_post;
pub mod bond_return;
pub mod bond_slash;
pub mod participant_claim;
pub mod participant_create;
pub mod participant_migrate;
pub mod run_close;
pub mod run_create;
pub mod run_update;
pub mod run_withdraw;
