//! The clouds: one folder each, behind [`crate::provider::Provider`].
//!
//! A provider writes the few requests that it needs by hand over [`corten_outbound`]. It reads no flags and no
//! environment: [`Setup`] has them. To add a cloud: a folder with an `open`, and its line in [`PROVIDERS`].

pub mod aws;
mod batch;
mod hetzner;
mod ini;

use std::sync::Arc;

use futures::future::BoxFuture;

use crate::provider::Provider;

/// The values that a provider is made of.
pub struct Setup {
    /// The content of `--cloud-config`; empty if there is none.
    pub config: String,
    /// The name of the cluster in the tags of the cloud's objects.
    pub cluster: String,
    /// The CAs that the cloud's endpoints are verified by, in PEM.
    pub roots: String,
    /// The environment.
    pub variable: Variable,
}

/// Returns a variable of the environment that is not empty.
pub type Variable = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The result of opening a provider; the error is a sentence for the operator.
type Opened<'a> = BoxFuture<'a, Result<Arc<dyn Provider>, String>>;

struct Entry {
    name: &'static str,
    open: for<'a> fn(&'a Setup) -> Opened<'a>,
}

const PROVIDERS: &[Entry] = &[
    Entry { name: "aws", open: |setup| Box::pin(aws::open(setup)) },
    Entry { name: "hetzner", open: |setup| Box::pin(hetzner::open(setup)) },
];

/// Returns the names of the providers.
pub fn names() -> Vec<&'static str> {
    PROVIDERS.iter().map(|entry| entry.name).collect()
}

/// Opens a provider by its name.
pub async fn open(name: &str, setup: &Setup) -> Result<Arc<dyn Provider>, String> {
    if setup.cluster.is_empty() {
        return Err("the cluster has no name, by which its objects in the cloud are found".to_owned());
    }
    let entry = PROVIDERS.iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| format!("{name:?} is no known cloud; there are {}", names().join(" and ")))?;
    (entry.open)(setup).await
}
