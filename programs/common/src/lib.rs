//! What every program needs: entry point, account checks, calls of other programs, sysvars.
//!
//! No crate is used but `core`. The loader's input buffer lives as long as the program runs, so references
//! into it are `'static`.
#![cfg_attr(target_os = "solana", no_std)]

pub mod account;
pub mod decode;
pub mod error;
pub mod events;
pub mod fields;
pub mod ids;
pub mod invoke;
pub mod sha256;
pub mod sys;
pub mod system;
pub mod table;
pub mod token;
pub mod token_extensions;

pub use account::{Account, Input};
pub use decode::{Decode, Raw, Reader, Text};
pub use error::{Common, Failure, Res};

/// A public key.
pub type Key = [u8; 32];
