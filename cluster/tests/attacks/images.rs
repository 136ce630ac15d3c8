//! Images whose manifests, configurations, layers or archives were made to harm the node that unpacks them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};
use testkit::cluster::{Cluster, IMAGE};
use testkit::{image, tools};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// The memory bound: more than `corten` needs for itself, also as a debug build, and for the window of a decompressor.
pub const MEMORY_BOUND: u64 = 320 << 20;

/// The exit of a command, and the peak memory of its processes.
pub struct Ended {
    pub success: bool,
    pub stderr: String,
    pub peak: u64,
}

/// Runs a command until it exits.
#[expect(clippy::zombie_processes, reason = "wait4 waits, and tells the memory too")]
pub fn run_measured(mut command: Command) -> Ended {
    let errors = tempfile::tempfile().expect("a temporary file");
    command.stdout(std::process::Stdio::null()).stderr(errors.try_clone().expect("a descriptor"));
    let child = command.spawn().expect("the command starts");
    let mut status = 0;
    // SAFETY: all zeros are a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both locations outlive the call, and nothing else waits for this child.
    let waited = unsafe { libc::wait4(child.id() as libc::pid_t, &mut status, 0, &mut usage) };
    assert_eq!(waited, child.id() as libc::pid_t);
    let mut stderr = String::new();
    let mut errors = errors;
    std::io::Seek::rewind(&mut errors).and_then(|()| errors.read_to_string(&mut stderr)).expect("readable words");
    assert!(!stderr.contains("panicked"), "{stderr}");
    Ended {
        success: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        stderr,
        peak: usage.ru_maxrss as u64 * 1024,
    }
}

/// Returns the peak memory of the server so far.
pub fn server_peak(cluster: &Cluster) -> u64 {
    let status = format!("/proc/{}/status", cluster.server_pid());
    let output =
        cluster.machine.command(&tools::busybox()).args(["grep", "VmHWM", &status]).output().expect("grep runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    number.expect("the server runs") << 10
}

/// Runs a pod of the test image until it succeeds: the cluster still works.
pub fn assert_healthy(cluster: &Cluster, pod: &str) {
    cluster.kubectl(&["run", pod, "--image", IMAGE, "--restart=Never", "--", "true"]);
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &format!("pod/{pod}")]);
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Returns a configuration with these layers.
pub fn config(diff_ids: &[&str]) -> String {
    serde_json::json!({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/sh"]}, "rootfs": {"type": "layers", "diff_ids": diff_ids}})
        .to_string()
}

/// Returns a plain entry of a tar archive, with a name that the builder would refuse.
pub fn entry(kind: tar::EntryType, name: &str, target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory is writable");
    encoder.finish().expect("memory is writable")
}

/// Returns a compressed archive whose first header of this kind has a size of three gibibytes, which follow.
fn header_bomb(kind: u8) -> Vec<u8> {
    const MEMBER: usize = 4 << 20;
    const MEMBERS: usize = 768;
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[156] = kind;
    header.set_size((MEMBER * MEMBERS) as u64);
    header.set_cksum();
    let member = gzip(&vec![0; MEMBER]);
    let mut bytes = gzip(header.as_bytes());
    for _ in 0..MEMBERS {
        bytes.extend_from_slice(&member);
    }
    bytes.extend(gzip(&entry(tar::EntryType::Regular, "file", "", b"x")));
    bytes
}

/// Writes a docker archive with one image.
fn archive(dir: &Path, config: &str, layer: &[u8]) -> PathBuf {
    let path = dir.join("hostile.tar");
    let manifest = serde_json::json!([{"Config": "c.json", "RepoTags": ["hostile.test/image:1"], "Layers": ["l.tar"]}]);
    let mut bytes = Vec::new();
    for (name, content) in
        [("manifest.json", manifest.to_string().as_bytes()), ("c.json", config.as_bytes()), ("l.tar", layer)]
    {
        bytes.extend(entry(tar::EntryType::Regular, name, "", content));
    }
    bytes.resize(bytes.len() + 1024, 0);
    std::fs::write(&path, bytes).expect("the test's directory is writable");
    path
}

/// Writes a docker archive with one image of a plain layer and a correct configuration.
fn layer_archive(dir: &Path, entries: &[Vec<u8>]) -> PathBuf {
    let mut layer = entries.concat();
    layer.resize(layer.len() + 1024, 0);
    archive(dir, &config(&[&digest(&layer)]), &layer)
}

struct Attack<'a> {
    cluster: &'a Cluster,
}

impl Attack<'_> {
    fn import(&self, archive: &Path) -> Ended {
        let ended = run_measured(self.cluster.corten_command(&["image", "import", &archive.to_string_lossy()]));
        assert!(ended.peak < MEMORY_BOUND, "{} bytes of memory: {}", ended.peak, ended.stderr);
        ended
    }

    #[track_caller]
    fn is_refused(&self, archive: &Path, words: &str) {
        let ended = self.import(archive);
        assert!(!ended.success && ended.stderr.contains(words), "{words:?}: {}", ended.stderr);
        let images = self.cluster.corten(&["image", "ls"]);
        assert!(!images.contains("hostile"), "{images}");
    }
}

#[test]
fn hostile_archives_get_nothing_and_the_cluster_goes_on() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    let before = server_peak(&cluster);
    let attack = Attack { cluster: &cluster };
    let dir = cluster.scratch();

    // A layer with the name of a directory of the node, which links to the cluster's keys.
    let planted = dir.join("planted");
    std::fs::create_dir(&planted).expect("a directory");
    std::os::unix::fs::symlink(cluster.data_dir().join("pki"), planted.join("d")).expect("a link");
    let planted = planted.to_string_lossy().into_owned();
    let multibyte = format!("{}é{}", "0".repeat(23), "0".repeat(40));
    for diff_id in [planted.as_str(), "/proc/1/root", "../../../../..", "", &multibyte, &format!("sha256:{multibyte}")]
    {
        attack.is_refused(&archive(dir, &config(&[diff_id]), b""), "invalid digest");
    }

    // The layer of another image, by its digest alone.
    let private = cluster.data_dir().join("images/layers");
    let mut layers = std::fs::read_dir(&private).expect("layers").flatten();
    let private = layers.next().expect("the test image's layer").file_name().to_string_lossy().into_owned();
    let claimed = format!("sha256:{private}");
    assert_eq!(private.len(), 64, "layers are kept by their whole digest");
    attack.is_refused(&archive(dir, &config(&[&claimed]), b""), "has the content of");

    // Headers and files with sizes beyond memory and disk.
    for kind in [b'x', b'L', b'K'] {
        let bomb = header_bomb(kind);
        attack.is_refused(&archive(dir, &config(&[&digest(b"")]), &bomb), "longer than");
        let path = dir.join("bomb.tar.gz");
        std::fs::write(&path, &bomb).expect("the test's directory is writable");
        attack.is_refused(&path, "longer than");
    }
    let mut sparse = tar::Header::from_byte_slice(&entry(tar::EntryType::GNUSparse, "sparse", "", b"")[..512]).clone();
    let gnu = sparse.as_gnu_mut().expect("a GNU header");
    gnu.realsize = *b"\x80\0\0\0\x10\0\0\0\0\0\0\0";
    gnu.sparse[0].offset = gnu.realsize;
    gnu.sparse[0].numbytes = *b"00000000000\0";
    sparse.set_cksum();
    attack.is_refused(&layer_archive(dir, &[sparse.as_bytes().to_vec()]), "larger than a layer may be");
    let many: Vec<String> = (0..128).map(|number| digest(&[number])).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    attack.is_refused(&archive(dir, &config(&many), b""), "different layers");

    // Names and links that lead out of the layer.
    let outside = dir.join("outside");
    std::fs::create_dir(&outside).expect("a directory");
    std::fs::write(outside.join("kept"), "kept").expect("a file");
    let target = outside.to_string_lossy().into_owned();
    let link = entry(tar::EntryType::Symlink, "out", &target, b"");
    for name in [".wh.", ".wh..", ".wh...", "a/.wh...", "out/.wh.kept", "out/.wh..wh..opq"] {
        let whiteout = entry(tar::EntryType::Regular, name, "", b"");
        attack.is_refused(&layer_archive(dir, &[link.clone(), whiteout]), "unpack");
    }
    let hard = entry(tar::EntryType::Link, "hard", &format!("{target}/kept"), b"");
    attack.is_refused(&layer_archive(dir, &[hard]), "unpack");
    let climbing = [
        link.clone(),
        entry(tar::EntryType::Regular, "out/made", "", b"x"),
        entry(tar::EntryType::Regular, "../../../climbed", "", b"x"),
        entry(tar::EntryType::Link, "hard", "out/made", b""),
    ];
    assert!(attack.import(&layer_archive(dir, &climbing)).success, "it stays inside, as in a chroot");
    assert_eq!(std::fs::read_dir(&outside).expect("list").count(), 1);
    assert_eq!(std::fs::read_to_string(outside.join("kept")).expect("a file"), "kept");
    cluster.corten(&["image", "rm", "hostile.test/image:1"]);

    // The same content under another name is named after the archive.
    let again = image::busybox_archive(dir, "test.local/second:1");
    let printed = cluster.corten(&["image", "import", &again.to_string_lossy()]);
    assert!(printed.contains("test.local/second:1") && !printed.contains(IMAGE), "{printed}");

    assert_eq!(std::fs::read_dir(cluster.data_dir().join("images/tmp")).expect("tmp").count(), 0);
    assert_healthy(&cluster, "after");
    assert!(server_peak(&cluster) < before + MEMORY_BOUND);
}

/// A pod can nest directories without limit in its volumes and its writable layer; removing them must not exhaust the
/// node's stack.
#[test]
fn a_pod_that_leaves_a_bottomless_directory_is_removed() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    let server = cluster.server_pid();
    // Sixteen thousand levels, from the innermost out: more than the stack of a thread holds.
    let script = "p=d; for i in 1 2 3 4 5 6 7 8 9 10; do p=$p/$p; done; cd /v; mkdir t; \
        for i in $(seq 16); do mkdir -p n/$p && busybox mv t n/$p/t && busybox mv n t || exit 1; done; echo deep";
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: digger}}\nspec:\n  restartPolicy: Never\n  volumes: [{{name: v, emptyDir: {{}}}}]\n  containers:\n  - {{name: c, image: {IMAGE}, command: [sh, -c, '{script}'], volumeMounts: [{{name: v, mountPath: /v}}]}}\n"
    ));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/digger"]);
    assert_eq!(cluster.kubectl(&["logs", "digger"]).trim(), "deep");
    cluster.kubectl(&["delete", "pod", "digger", "--wait"]);
    assert_healthy(&cluster, "after");
    let pods = cluster.data_dir().join("kubelet/pods");
    testkit::wait::until("the removal of the pod's directory", testkit::wait::BOUND, || {
        let left = std::fs::read_dir(&pods).map_err(|error| error.to_string())?.count();
        if left <= 1 { Ok(()) } else { Err(format!("{left} directories")) }
    });
    assert_eq!(cluster.server_pid(), server, "the server was not started again");
}
