//! Policies: the decisions on a request before it goes to a backend.

pub(crate) mod basic_auth;
pub(crate) mod cors;
pub(crate) mod hash;
pub(crate) mod jwt;
mod md5;
pub(crate) mod origin;
pub(crate) mod rate;
pub(crate) mod session;
pub(crate) mod unknown_keys;
