//! One instruction per file.
pub mod participant_claim;
pub mod participant_create;
pub mod run_create;
pub mod run_update;
