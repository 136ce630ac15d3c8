//! The parts of an image's configuration and manifest that the runtime reads.
//!
//! OCI and Docker agree on these fields; unknown ones are ignored. An attacker may have written them: every digest is
//! checked while it is parsed (`Digest`), and every document has a limit before it is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use crate::Error;

/// The largest manifest or index; registries have the same limit.
pub(super) const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The largest configuration of an image; upstream's runtimes have the same limit.
pub(super) const MAX_CONFIG_BYTES: u64 = 8 << 20;
/// The most layers of an image: as many as fit into one mount; other runtimes allow no more.
const MAX_LAYERS: usize = 127;

/// The configuration blob of an image.
#[derive(Debug, Default, Clone, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub config: ProcessConfig,
    #[serde(default)]
    pub rootfs: RootFs,
}

/// The image's settings of the process to run.
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
    pub diff_ids: Vec<Digest>,
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

/// A reference to a blob.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub digest: Digest,
    #[serde(default)]
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The machine that a manifest is for.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
}

impl ImageConfig {
    /// Parses the configuration of an image whose manifest has this many layers.
    pub fn parse(bytes: &[u8], layers: usize) -> Result<Self, Error> {
        let config: Self =
            serde_json::from_slice(bytes).map_err(|error| Error::Image(format!("malformed configuration: {error}")))?;
        if config.rootfs.diff_ids.len() != layers {
            return Err(Error::Image("configuration and manifest name different layers".into()));
        }
        if layers > MAX_LAYERS {
            return Err(Error::Image(format!("the image has {layers} layers, and may have {MAX_LAYERS}")));
        }
        Ok(config)
    }
}

impl Manifest {
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|error| Error::Image(format!("malformed manifest: {error}")))
    }

    /// Returns the manifest of an index for this machine. An entry without a platform fits every machine.
    pub fn for_this_machine(&self) -> Option<&Descriptor> {
        let fits = |entry: &&Descriptor| {
            entry.platform.as_ref().is_some_and(|found| found.os == "linux" && found.architecture == ARCHITECTURE)
        };
        let anywhere = |entry: &&Descriptor| entry.platform.is_none();
        self.manifests.iter().find(fits).or_else(|| self.manifests.iter().find(anywhere))
    }
}

/// The architecture of this machine, as image indexes name it.
pub(crate) const ARCHITECTURE: &str = match std::env::consts::ARCH.as_bytes() {
    b"x86_64" => "amd64",
    b"aarch64" => "arm64",
    _ => std::env::consts::ARCH,
};

/// Deserializes null as empty: Go writes an empty list as null.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_that_is_a_path_is_refused_where_it_is_parsed() {
        let good = Digest::of(b"x").to_string();
        let config = |digest: &str| serde_json::json!({"rootfs": {"diff_ids": [digest]}}).to_string();
        assert!(ImageConfig::parse(config(&good).as_bytes(), 1).is_ok());
        assert!(ImageConfig::parse(config(&good).as_bytes(), 2).is_err());
        for bad in ["/etc", "/proc/1/root", "", "sha256:00", "ééééééééééééé"] {
            assert!(ImageConfig::parse(config(bad).as_bytes(), 1).is_err(), "{bad}");
            for field in ["layers", "manifests"] {
                let manifest = serde_json::json!({field: [{"digest": bad, "size": 1}]}).to_string();
                assert!(Manifest::parse(manifest.as_bytes()).is_err(), "{bad}");
            }
            let manifest = serde_json::json!({"config": {"digest": bad, "size": 1}}).to_string();
            assert!(Manifest::parse(manifest.as_bytes()).is_err(), "{bad}");
        }
        assert!(Manifest::parse(b"{\"layers\": [{\"size\": 1}]}").is_err(), "a descriptor without a digest");
        let many = vec![good; MAX_LAYERS + 1];
        let config = serde_json::json!({"rootfs": {"diff_ids": many}}).to_string();
        assert!(ImageConfig::parse(config.as_bytes(), MAX_LAYERS + 1).is_err());
    }
}
