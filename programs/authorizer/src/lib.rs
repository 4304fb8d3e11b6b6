//! Says who may do what: a grantor lets a grantee (or everybody) act in a scope, and the grantee names delegates.
#![cfg_attr(target_os = "solana", no_std)]

pub mod error;
pub mod instructions;
pub mod state;

use psyche_common::decode::{Bytes, Keys};
use psyche_common::Key;

psyche_common::instructions! {
    /// Creates an inactive authorization.
    authorization_create [payer: sw, grantor: s, authorization: w, system_program: r] (
        grantee: &'static Key, scope: Bytes,
    );
    /// The grantor switches it on or off, and says until when it counts (Unix seconds; 0 is for ever).
    authorization_grantor_update [grantor: s, authorization: w] (active: bool, expires_unix_timestamp: i64);
    /// The grantee names who else may use it.
    authorization_grantee_update [payer: sw, grantee: s, authorization: w, system_program: r] (
        delegates_clear: bool, delegates_added: Keys,
    );
    /// The grantor removes an inactive authorization.
    authorization_close [grantor: s, spill: w, authorization: w] ();
}
