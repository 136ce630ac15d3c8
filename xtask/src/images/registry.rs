//! The registry that agnhost serves to specs: files below /var/registry, in its layout.
//!
//! `IMAGE/manifests/TAG` has the digest of an index; indexes, manifests and blobs are at `sha256/AB/ABCD…/data`.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::layer::{hex, write};

/// A stored blob, as manifests describe it.
struct Stored {
    digest: String,
    size: usize,
}

/// Stores an image of one layer under a name and a tag.
pub fn store(tree: &Path, name: &str, tag: &str, config: &Value, layer: &[u8]) -> Result<()> {
    let dir = tree.join("var/registry").join(name);
    let config = blob(&dir.join("blobs"), config.to_string().as_bytes())?;
    let layer = blob(&dir.join("blobs"), layer)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
    });
    let manifest = blob(&dir.join("manifests"), manifest.to_string().as_bytes())?;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &manifest);
    entry["platform"] = json!({"architecture": "amd64", "os": "linux"});
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    });
    let index = blob(&dir.join("manifests"), index.to_string().as_bytes())?;
    write(&dir.join("manifests").join(tag), 0o644, format!("{}\n", index.digest).as_bytes())
}

fn blob(dir: &Path, bytes: &[u8]) -> Result<Stored> {
    let digest = hex(&Sha256::digest(bytes));
    write(&dir.join("sha256").join(&digest[..2]).join(&digest).join("data"), 0o644, bytes)?;
    Ok(Stored { digest: format!("sha256:{digest}"), size: bytes.len() })
}

fn descriptor(media_type: &str, stored: &Stored) -> Value {
    json!({"mediaType": media_type, "digest": stored.digest, "size": stored.size})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_leads_to_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), "pause", "testing", &json!({"os": "linux"}), b"layer").unwrap();
        let image = dir.path().join("var/registry/pause");
        let read = |kind: &str, digest: &str| {
            let digest = digest.trim().strip_prefix("sha256:").unwrap();
            std::fs::read(image.join(kind).join("sha256").join(&digest[..2]).join(digest).join("data")).unwrap()
        };
        let tag = std::fs::read_to_string(image.join("manifests/testing")).unwrap();
        let index: Value = serde_json::from_slice(&read("manifests", &tag)).unwrap();
        let manifest: Value =
            serde_json::from_slice(&read("manifests", index["manifests"][0]["digest"].as_str().unwrap())).unwrap();
        assert_eq!(read("blobs", manifest["layers"][0]["digest"].as_str().unwrap()), b"layer");
    }
}
