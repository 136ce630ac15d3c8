//! The image of the pods: a static busybox and nothing else.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::dist::tree::Tree;
use crate::images::layer::hex;

/// The image's name.
pub const IMAGE: &str = "swap.local/busybox:1";

/// Writes an archive of the image into a directory.
pub fn write(busybox: &Path, dir: &Path) -> Result<PathBuf> {
    let mut tree = Tree::default();
    tree.add("bin/busybox", 0o755, std::fs::read(busybox)?);
    tree.add_directory("tmp", 0o1777);
    let layer = tree.tar("")?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&Sha256::digest(&layer)))]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    let mut files = Tree::default();
    files.add("config.json", 0o644, config.to_string().into_bytes());
    files.add("layer.tar", 0o644, layer);
    files.add("manifest.json", 0o644, manifest.to_string().into_bytes());
    let path = dir.join("image.tar");
    std::fs::write(&path, files.tar("")?)?;
    Ok(path)
}
