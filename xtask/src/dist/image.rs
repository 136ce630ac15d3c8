//! An OCI image of the program: an archive of an image layout, which `docker load` reads too. It holds the program, the
//! libraries that it is linked with, and the directories that it needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Inputs;
use super::tree::{Tree, gzip};
use crate::images::layer::hex;

/// The archive's bytes.
pub fn archive(inputs: &Inputs) -> Result<Vec<u8>> {
    let layer = layer(&inputs.binary)?.tar("")?;
    let diff_id = digest(&layer);
    let layer = gzip(&layer)?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/corten"],
            "Cmd": ["server"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created_by": "cargo xtask dist"}],
    })
    .to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &layer)],
    })
    .to_string();
    let name = format!("corten:{}", inputs.version);
    let mut described = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
    described["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{name}"),
        "org.opencontainers.image.ref.name": inputs.version,
    });
    let index =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]});
    let docker = json!([{"Config": blob(config.as_bytes()), "RepoTags": [name], "Layers": [blob(&layer)]}]);

    let mut files = Tree::default();
    files.add("oci-layout", 0o644, json!({"imageLayoutVersion": "1.0.0"}).to_string().into_bytes());
    files.add("index.json", 0o644, index.to_string().into_bytes());
    files.add("manifest.json", 0o644, docker.to_string().into_bytes());
    for bytes in [config.into_bytes(), manifest.into_bytes(), layer] {
        files.add(&blob(&bytes), 0o644, bytes);
    }
    files.tar("")
}

/// The files of the image.
fn layer(binary: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.add("usr/bin/corten", 0o755, std::fs::read(binary)?);
    for library in libraries(binary)? {
        let bytes = std::fs::read(&library).with_context(|| format!("cannot read {library}"))?;
        tree.add(library.trim_start_matches('/'), 0o755, bytes);
    }
    tree.add("etc/passwd", 0o644, b"root:x:0:0:root:/root:/\n".to_vec());
    tree.add("etc/group", 0o644, b"root:x:0:\n".to_vec());
    for (directory, mode) in
        [("tmp", 0o1777), ("root", 0o700), ("run", 0o755), ("var/lib", 0o755), ("proc", 0o555), ("sys", 0o555)]
    {
        tree.add_directory(directory, mode);
    }
    Ok(tree)
}

/// The libraries that the program is linked with, by the paths at which it looks for them.
fn libraries(binary: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(binary).output().context("ldd cannot be run")?;
    ensure!(output.status.success(), "ldd failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    Ok(text.lines().filter_map(path).collect())
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", hex(&Sha256::digest(bytes)))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}
