//! The facts that the manual's reference pages are written from: the package `manual` reads them, the binary does not.

use corten_meta::Value;

pub use crate::listeners::{Listener, listeners};
pub use crate::registries::FIELDS as REGISTRY_FIELDS;

/// The command line with every subcommand and flag.
pub fn command() -> clap::Command {
    <crate::cli::Cli as clap::CommandFactory>::command()
}

/// The settings that a server publishes to the nodes that join, with their defaults.
pub fn cluster_settings() -> Value {
    serde_json::json!(crate::settings::Settings::default())
}
