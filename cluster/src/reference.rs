//! The facts of the manual's reference pages: the package `manual` reads them, the binary does not.

use corten_meta::Value;

pub use crate::listeners::{Listener, listeners};
pub use crate::registries::FIELDS as REGISTRY_FIELDS;

/// Returns the command line with every subcommand and flag.
pub fn command() -> clap::Command {
    <crate::cli::Cli as clap::CommandFactory>::command()
}

/// Returns the settings that a server publishes to the nodes that join, with their defaults.
pub fn cluster_settings() -> Value {
    serde_json::json!(crate::settings::Settings::default())
}
