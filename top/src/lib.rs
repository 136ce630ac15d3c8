//! `corten top`: the cluster live in a terminal, as k9s' front page: nodes with their use, pods and events, and keys
//! for logs, a shell, a description and deletion.
//!
//! - [`run`] shows it until the user quits; [`table`] prints it once.
//! - `rows` makes rows of objects, `state` holds them with the user's choices, `frame` draws lines; all three are pure.
//! - `terminal` is the only file that speaks to the terminal, `keys` the only one that reads from it.
//!
//! Invariant: no text of the cluster reaches the terminal without `text::clean`, so that no name, message or log line
//! moves the cursor or changes the terminal. The terminal is restored on every way out.

mod actions;
mod frame;
mod keys;
mod live;
mod rows;
mod state;
mod table;
mod terminal;
mod text;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use corten_client::Client;
use futures::future::BoxFuture;

pub use live::run;
pub use table::table;

/// The error of a terminal or of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the terminal cannot be used: {0}")]
    Terminal(#[from] std::io::Error),
    #[error("the API server cannot be read: {0}")]
    Api(#[from] corten_client::Error),
}

/// Explains an object, for its description.
pub trait Explainer: Send + Sync {
    /// Returns the findings as text; empty if there are none.
    fn explain(&self, kind: &'static str, namespace: String, name: String) -> BoxFuture<'static, String>;
}

/// The settings of the command.
pub struct Settings {
    pub client: Client,
    /// The kubeconfig for kubectl, which runs the shell.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the pods and events; all if empty.
    pub namespace: String,
    pub colors: bool,
    pub explainer: Box<dyn Explainer>,
}
