//! Account layouts and error codes of the coordinator, shared with the programs that read them.
//!
//! `psyche_py/coordinator/layout.py` has the same layouts in numpy; padding is explicit.
#![cfg_attr(target_os = "solana", no_std)]

mod account;
mod config;
mod epoch;
pub mod error;
mod instance;

pub use account::*;
pub use config::*;
pub use epoch::*;
pub use instance::*;
