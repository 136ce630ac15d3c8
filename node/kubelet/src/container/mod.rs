//! Converts a Pod's spec to CRI: the configuration of the sandbox and the containers. One file per subject; `config`
//! combines them. Only `config`, `hosts` and `env_file` access the disk.

pub mod cgroups;
pub mod config;
pub mod dns;
pub(crate) mod env_file;
pub mod environment;
pub mod expansion;
pub mod hosts;
pub mod mounts;
pub mod plugin_parts;
pub mod security;
