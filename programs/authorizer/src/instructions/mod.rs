//! One instruction per file.
pub mod authorization_close;
pub mod authorization_create;
pub mod authorization_grantee_update;
pub mod authorization_grantor_update;
