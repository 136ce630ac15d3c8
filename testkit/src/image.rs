//! Container images made by tests: a docker archive with a static busybox and its applets.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};

/// The applets that tests call by name.
const APPLETS: [&str; 35] = [
    "sh", "cat", "echo", "sleep", "ls", "env", "id", "true", "false", "test", "grep", "wget", "nc", "httpd",
    "nslookup", "hostname", "mount", "touch", "mkdir", "rm", "stat", "ps", "kill", "tar", "date", "dd", "head", "tail",
    "sed", "awk", "stty", "seq", "ip", "readlink", "printf",
];

/// Writes a docker archive of the image `name` into `dir` and returns its path.
pub fn busybox_archive(dir: &Path, name: &str) -> PathBuf {
    archive(dir, name, &layer().into_inner().expect("memory is writable"))
}

/// Writes an archive with so many further files of a mebibyte each, which compress about as well as programs do.
pub fn large_archive(dir: &Path, name: &str, mebibytes: usize) -> PathBuf {
    let mut layer = layer();
    let mut state = 1_u64;
    for number in 0..mebibytes {
        let mut bytes = vec![0; 1 << 20];
        for chunk in bytes.chunks_mut(16) {
            // Half of it is noise, half repeats: a linear congruential generator is noise enough.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chunk[..8].copy_from_slice(&state.to_le_bytes());
        }
        append(&mut layer, &format!("var/file-{number}"), 0o644, &bytes);
    }
    archive(dir, name, &layer.into_inner().expect("memory is writable"))
}

fn archive(dir: &Path, name: &str, layer: &[u8]) -> PathBuf {
    let diff_id = hex(&Sha256::digest(layer));
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
        "history": [{"created_by": "testkit"}],
    })
    .to_string();
    let config_name = format!("{}.json", hex(&Sha256::digest(config.as_bytes())));
    let layer_name = format!("{diff_id}/layer.tar");
    let manifest = json!([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).to_string();

    let path = dir.join(format!("{diff_id}-{}.tar", name.replace(['/', ':'], "_")));
    let mut archive = tar::Builder::new(std::fs::File::create(&path).expect("the test's directory is writable"));
    append(&mut archive, &config_name, 0o644, config.as_bytes());
    append(&mut archive, &layer_name, 0o644, layer);
    append(&mut archive, "manifest.json", 0o644, manifest.as_bytes());
    archive.into_inner().and_then(|mut file| file.flush()).expect("the archive is written");
    path
}

fn layer() -> tar::Builder<Vec<u8>> {
    let busybox = std::fs::read(crate::tools::busybox()).expect("busybox is readable");
    let mut layer = tar::Builder::new(Vec::new());
    for dir in ["bin/", "etc/", "tmp/", "var/", "proc/", "sys/", "dev/", "www/"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(if dir == "tmp/" { 0o1777 } else { 0o755 });
        header.set_size(0);
        layer.append_data(&mut header, dir, std::io::empty()).expect("memory is writable");
    }
    append(&mut layer, "bin/busybox", 0o755, &busybox);
    for applet in APPLETS {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{applet}"), "/bin/busybox").expect("memory is writable");
    }
    append(&mut layer, "etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n");
    append(&mut layer, "etc/group", 0o644, b"root:x:0:\nnobody:x:65534:\n");
    layer
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &str, mode: u32, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, path, bytes).expect("the archive is writable");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
