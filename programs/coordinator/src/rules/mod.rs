//! The rules, free of accounts and syscalls other than sha256. `psyche_py/coordinator` mirrors them.
pub mod authorization;
pub mod batch;
pub mod bond;
pub mod check;
pub mod committee;
pub mod dispute;
pub mod duty;
pub mod handover;
pub mod migration;
pub mod points;
pub mod transition;
pub mod witness;
