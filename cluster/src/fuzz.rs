//! Entry points of the fuzz targets: data for a machine that has not joined yet, and files that people write. Nothing
//! else may use this.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use corten_meta::Value;

use crate::commands::audit::gather;
use crate::join::discovery;
use crate::pki::Identity;
use crate::{kubeconfig, registries, settings};

/// Reads a cluster-info of an untrusted server; returns the part that the token has signed.
pub fn cluster_info(info: &Value, token: &str) -> Result<String> {
    discovery::verified_content(info, token).map(str::to_owned)
}

/// Reads the kubeconfig of a cluster-info with a valid signature; returns the hash of its CA.
pub fn discovered(content: &str) -> Result<String> {
    discovery::hash(&discovery::parse(content)?.authority)
}

/// Reads the settings that a cluster publishes; returns them in their published form.
pub fn settings(text: &str) -> Result<Value> {
    settings::parse(text).map(|settings| settings.data())
}

/// Reads the registries of a file. It must name no files.
pub fn registries(content: &[u8]) -> Result<usize> {
    Ok(registries::parse(content, Path::new("/nonexistent"))?.len())
}

/// Merges a cluster into the user's kubeconfig.
pub fn merged_kubeconfig(user: Value) -> Value {
    let identity = Identity { certificate: String::new(), key: String::new() };
    kubeconfig::merged(user, &kubeconfig::single("https://127.0.0.1:6443", "", &identity))
}

/// Parses a line of the kernel's socket table.
pub fn listener(line: &str) -> Option<SocketAddr> {
    gather::listener(line)
}
