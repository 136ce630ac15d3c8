//! From a Pod's spec to what the runtime is asked for: the sandbox's and the containers' configuration.
//! One file per subject; `config` puts them together. Only `config`, `hosts` and `env_file` touch the disk.

pub mod cgroups;
pub mod config;
pub mod dns;
pub(crate) mod env_file;
pub mod environment;
pub mod expansion;
pub mod given;
pub mod hosts;
pub mod mounts;
pub mod security;
