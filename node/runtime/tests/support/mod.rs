//! A real runtime for tests: its own process, directories and control groups, all removed at the end, also when a test
//! fails.

#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corten_cri::{ImageServiceClient, RuntimeServiceClient, v1};
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

/// The folder of tools, fetched by `cargo xtask test`.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools");
const BUSYBOX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/busybox");
pub const IMAGE: &str = "corten.test/busybox:1";
/// The bound of every wait, also on a busy machine.
pub const BOUND: Duration = Duration::from_secs(300);

/// Reports whether a test cannot run here, and prints the reason.
pub fn cannot_run() -> bool {
    if nix::unistd::geteuid().is_root() {
        assert!(Path::new(BUSYBOX).exists(), "{BUSYBOX} is missing: `cargo xtask tools` fetches it");
        return false;
    }
    eprintln!("skipped: making containers needs root");
    true
}

/// A runtime in a process of its own.
pub struct Node {
    folder: tempfile::TempDir,
    process: Child,
    /// `<handler>=<program>` of the other OCI runtimes.
    handlers: Vec<String>,
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
    pub cgroup_parent: String,
}

impl Node {
    /// Starts a runtime that has the test image.
    pub async fn start() -> Self {
        Self::start_with(Vec::new()).await
    }

    /// Starts one that runs containers of the handlers `runc` and `crun` by these programs.
    pub async fn start_with_others() -> Self {
        let program = |name: &str| format!("{name}={TOOLS}/oci-runtimes/{name}");
        Self::start_with(["runc", "crun"].map(program).to_vec()).await
    }

    async fn start_with(handlers: Vec<String>) -> Self {
        let folder = tempfile::Builder::new().prefix("cr").tempdir_in("/tmp").expect("a temporary directory");
        let store = open_store(&folder.path().join("state/images"));
        store.import_archive(archive(IMAGE).as_slice()).expect("import the test image");
        let name = folder.path().file_name().and_then(|name| name.to_str()).expect("a name").to_string();
        let process = spawn(folder.path(), &handlers);
        let (runtime, images) = connect(&folder.path().join("cri.sock")).await;
        Self { process, handlers, runtime, images, cgroup_parent: format!("/corten-test-{name}/pod"), folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn store(&self) -> corten_runtime::ImageStore {
        open_store(&self.path().join("state/images"))
    }

    /// Kills the daemon without warning.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill the daemon");
        self.process.wait().expect("wait for the daemon");
    }

    /// Starts the daemon again on the same directories.
    pub async fn resume(&mut self) {
        self.process = spawn(self.folder.path(), &self.handlers);
        let (runtime, images) = connect(&self.folder.path().join("cri.sock")).await;
        self.runtime = runtime;
        self.images = images;
    }

    pub fn sandbox_config(&self, name: &str) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: self.path().join("logs").display().to_string(),
            labels: [("app".to_string(), name.to_string())].into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(namespaces(v1::NamespaceMode::Container)),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub async fn run_sandbox(&mut self, config: &v1::PodSandboxConfig) -> String {
        self.run_sandbox_by("", config).await
    }

    pub async fn run_sandbox_by(&mut self, handler: &str, config: &v1::PodSandboxConfig) -> String {
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.into() };
        self.runtime.run_pod_sandbox(request).await.expect("run a sandbox").into_inner().pod_sandbox_id
    }

    /// Creates and starts a container, and returns its id.
    pub async fn run(&mut self, sandbox: &str, config: &v1::ContainerConfig) -> String {
        let id = self.create(sandbox, config).await;
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.runtime.start_container(request).await.expect("start a container");
        id
    }

    pub async fn create(&mut self, sandbox: &str, config: &v1::ContainerConfig) -> String {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config.clone()),
            sandbox_config: None,
        };
        self.runtime.create_container(request).await.expect("create a container").into_inner().container_id
    }

    pub async fn status(&mut self, id: &str) -> v1::ContainerStatus {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        let response = self.runtime.container_status(request).await.expect("a status");
        response.into_inner().status.expect("a status")
    }

    /// Waits until a container has ended.
    pub async fn wait(&mut self, id: &str) -> v1::ContainerStatus {
        let deadline = Instant::now() + BOUND;
        loop {
            let status = self.status(id).await;
            if status.state() == v1::ContainerState::ContainerExited {
                return status;
            }
            assert!(Instant::now() < deadline, "container {id} did not end: {status:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Runs a shell command as a container of its own; returns its status and its output.
    pub async fn shell(&mut self, sandbox: &str, script: &str) -> (v1::ContainerStatus, String) {
        let config = shell("script", script);
        self.run_to_end(sandbox, &config).await
    }

    pub async fn run_to_end(&mut self, sandbox: &str, config: &v1::ContainerConfig) -> (v1::ContainerStatus, String) {
        let id = self.run(sandbox, config).await;
        let status = self.wait(&id).await;
        let output = self.log(&id).await;
        let request = v1::RemoveContainerRequest { container_id: id };
        self.runtime.remove_container(request).await.expect("remove");
        let _ = std::fs::remove_file(&status.log_path);
        (status, output)
    }

    /// Returns the content of a container's log, without times and tags.
    pub async fn log(&mut self, id: &str) -> String {
        let path = self.status(id).await.log_path;
        let content = std::fs::read_to_string(path).expect("a log");
        content.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(|line| format!("{line}\n")).collect()
    }

    /// Waits until the log of a container contains a string.
    pub async fn wait_for_log(&mut self, id: &str, wanted: &str) {
        let deadline = Instant::now() + BOUND;
        while !self.log(id).await.contains(wanted) {
            assert!(Instant::now() < deadline, "{wanted:?} is not in the log: {:?}", self.log(id).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn exec(&mut self, id: &str, command: &[&str]) -> Result<v1::ExecSyncResponse, tonic::Status> {
        let cmd = command.iter().map(|word| (*word).to_string()).collect();
        let request = v1::ExecSyncRequest { container_id: id.into(), cmd, timeout: 300 };
        Ok(self.runtime.exec_sync(request).await?.into_inner())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let purged = command("purge", self.folder.path()).status();
        if !purged.is_ok_and(|status| status.success()) {
            eprintln!("the runtime in {} could not be purged", self.folder.path().display());
        }
        remove_groups(&self.cgroup_parent);
    }
}

/// Opens an image store whose layers are unpacked by the runtime under test.
pub fn open_store(path: &Path) -> corten_runtime::ImageStore {
    let store = corten_runtime::ImageStore::open(path).expect("an image store");
    store.with_program(env!("CARGO_BIN_EXE_corten-runtime"))
}

/// Removes the parents of control groups, which belong to the test that names them.
fn remove_groups(parent: &str) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for line in mounts.lines().filter(|line| line.contains(" cgroup")) {
        let Some(mount_point) = line.split(' ').nth(1) else { continue };
        let mut folder = PathBuf::from(format!("{mount_point}{parent}"));
        while folder.to_string_lossy().contains("corten-test-") {
            let _ = std::fs::remove_dir(&folder);
            folder.pop();
        }
    }
}

fn command(action: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corten-runtime"));
    command.arg(action);
    for part in ["state", "run", "cri.sock"] {
        command.arg(folder.join(part));
    }
    command
}

fn spawn(folder: &Path, handlers: &[String]) -> Child {
    let profiles = format!("--seccomp-profiles={}", folder.join("seccomp").display());
    command("serve", folder).arg(profiles).args(handlers).stdin(Stdio::null()).spawn().expect("start the runtime")
}

async fn connect(socket: &Path) -> (RuntimeServiceClient<Channel>, ImageServiceClient<Channel>) {
    let deadline = Instant::now() + BOUND;
    loop {
        match corten_cri::connect(socket).await {
            Ok(channel) => return (corten_cri::runtime_client(channel.clone()), corten_cri::image_client(channel)),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn namespaces(pid: v1::NamespaceMode) -> v1::NamespaceOption {
    v1::NamespaceOption { pid: pid.into(), ..Default::default() }
}

/// Returns a container of the test image that runs a command.
pub fn container(name: &str, command: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: command.iter().map(|word| (*word).to_string()).collect(),
        log_path: format!("{name}/0.log"),
        linux: Some(v1::LinuxContainerConfig {
            resources: None,
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces(v1::NamespaceMode::Container)),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

pub fn shell(name: &str, script: &str) -> v1::ContainerConfig {
    container(name, &["/bin/sh", "-c", script])
}

/// Changes the security context of a container.
pub fn secured(
    mut config: v1::ContainerConfig,
    change: impl FnOnce(&mut v1::LinuxContainerSecurityContext),
) -> v1::ContainerConfig {
    let linux = config.linux.get_or_insert_default();
    change(linux.security_context.get_or_insert_default());
    config
}

/// Makes a docker archive with one image: busybox with a few names, users and folders.
pub fn archive(tag: &str) -> Vec<u8> {
    let layer = layer();
    let config = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["/bin/sh"], "WorkingDir": "/place",
                   "Volumes": {"/declared": {}}},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{:x}", Sha256::digest(&layer))]},
    });
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]);
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in [
        ("config.json", config.to_string().into_bytes()),
        ("manifest.json", manifest.to_string().into_bytes()),
        ("layer.tar", layer),
    ] {
        append(&mut builder, name, &content, 0o644);
    }
    builder.into_inner().expect("an archive")
}

fn layer() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    append(&mut builder, "bin/busybox", &std::fs::read(BUSYBOX).expect("busybox"), 0o755);
    for name in [
        "sh", "cat", "echo", "sleep", "id", "ls", "mkdir", "hostname", "ps", "mount", "head", "dd", "tty", "stty",
        "nc", "kill", "touch", "true", "test", "mknod", "grep", "unshare", "tail", "wc", "env", "pwd", "date", "chmod",
        "readlink", "stat",
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        builder.append_link(&mut header, format!("bin/{name}"), "busybox").expect("a link");
    }
    // The memory of the machine, as a malicious image would bring it along.
    let mut memory = tar::Header::new_gnu();
    memory.set_entry_type(tar::EntryType::Char);
    memory.set_size(0);
    memory.set_mode(0o666);
    memory.set_device_major(1).and_then(|()| memory.set_device_minor(1)).expect("a device");
    builder.append_data(&mut memory, "evil-memory", std::io::empty()).expect("a device");
    append(&mut builder, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/sh\n", 0o644);
    append(&mut builder, "etc/group", b"root:x:0:\nwww:x:34:\nlogs:x:50:web\n", 0o644);
    builder.into_inner().expect("a layer")
}

fn append(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_cksum();
    builder.append_data(&mut header, name, content).expect("append");
}

/// Flushes a test's output, for readers of it.
pub fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
