//! Account layouts. `psyche_py/coordinator/layout.py` has the same in numpy; padding is explicit.
mod account;
mod config;
mod epoch;
mod instance;

pub use account::*;
pub use config::*;
pub use epoch::*;
pub use instance::*;
