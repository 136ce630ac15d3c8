//! The parts of an image's configuration and manifest that the runtime reads.
//!
//! OCI and Docker agree on these fields; unknown ones are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The configuration blob of an image.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub config: ProcessConfig,
    #[serde(default)]
    pub rootfs: RootFs,
}

/// What the image says about the process to run.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ProcessConfig {
    pub user: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
    pub working_dir: String,
    pub stop_signal: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub volumes: BTreeMap<String, serde_json::Value>,
}

/// The layers by the digests of their uncompressed archives, lowest first.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default, deserialize_with = "null_is_empty")]
    pub diff_ids: Vec<String>,
}

/// A manifest, or an index of manifests: the two share their media type field.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Manifest {
    pub config: Option<Descriptor>,
    #[serde(deserialize_with = "null_is_empty")]
    pub layers: Vec<Descriptor>,
    #[serde(deserialize_with = "null_is_empty")]
    pub manifests: Vec<Descriptor>,
}

/// What points to a blob.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Descriptor {
    pub digest: String,
    pub size: u64,
    pub platform: Option<Platform>,
    #[serde(deserialize_with = "null_is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// For which machine a manifest is.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
}

impl Manifest {
    /// The manifest of an index for this machine. An entry without a platform fits every machine.
    pub fn for_this_machine(&self) -> Option<&Descriptor> {
        let fits = |entry: &&Descriptor| {
            entry.platform.as_ref().is_some_and(|found| found.os == "linux" && found.architecture == ARCHITECTURE)
        };
        let anywhere = |entry: &&Descriptor| entry.platform.is_none();
        self.manifests.iter().find(fits).or_else(|| self.manifests.iter().find(anywhere))
    }
}

/// This machine, in the words of image indexes.
pub(crate) const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};

/// Go writes an empty list as null.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
