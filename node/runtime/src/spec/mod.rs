//! The spec of a container: everything that a shim runs, decided in full by the daemon.
//!
//! `build` turns the kubelet's request and the image's configuration into a `Spec` without changing the system; the
//! daemon writes it beside the container; the shim and the executor only carry it out. A spec holds no reference to the
//! daemon, so a shim never needs it again.

pub(crate) mod build;
pub(crate) mod capabilities;
pub(crate) mod cdi;
mod identity;
pub(crate) mod mounts;
pub(crate) mod oci;
pub(crate) mod seccomp;
mod syscalls;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::id_mapping::Mapping;
pub(crate) use identity::Identity;

/// The spec of one container.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub id: String,
    pub process: Process,
    pub rootfs: Rootfs,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    pub namespaces: Namespaces,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    /// Folders of the image that stay writable when the rest is not.
    #[serde(default)]
    pub writable_paths: Vec<String>,
    /// `cgroup.procs` files that the container's processes are written to.
    pub cgroup_procs: Vec<PathBuf>,
    /// The file that counts kills by the kernel's out-of-memory killer.
    pub oom_counter: Option<PathBuf>,
    /// Whether the container has a private cgroup namespace, so that it sees its cgroup as the root.
    pub private_cgroup_namespace: bool,
    /// Whether standard input stays open for attach.
    pub stdin: bool,
    /// Whether standard input closes after the first attach.
    pub stdin_once: bool,
    pub log_path: Option<PathBuf>,
    pub exit_path: PathBuf,
    pub socket_path: PathBuf,
    /// The OCI runtime that runs the container instead of this one, by the pod's RuntimeClass.
    #[serde(default)]
    pub oci: Option<oci::Runtime>,
}

/// A process in a container: its first one, or one by exec.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Process {
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: String,
    pub terminal: bool,
    pub user: User,
    pub capabilities: Capabilities,
    pub no_new_privileges: bool,
    /// Compiled filters, installed in this order.
    pub seccomp: Vec<seccomp::Program>,
    pub oom_score_adj: Option<i32>,
    /// The AppArmor profile that confines the program.
    #[serde(default)]
    pub apparmor: Option<String>,
}

/// The user of a process. Names are looked up in the container's own `/etc/passwd` and `/etc/group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    /// `user`, `uid`, `user:group` or `uid:gid`; empty for root.
    pub name: String,
    /// The group id, which wins over the group of the name.
    pub gid: Option<u32>,
    pub supplemental_groups: Vec<u32>,
    /// Whether the groups of `/etc/group` are ignored.
    pub strict_groups: bool,
}

/// Capability sets as bit masks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capabilities {
    pub bounding: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

/// The overlay that becomes the root.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Rootfs {
    pub layers_folder: PathBuf,
    /// Names relative to the folder, highest first, as overlayfs wants them.
    pub lower: Vec<String>,
    pub upper: PathBuf,
    pub work: PathBuf,
    /// An empty folder where the overlay is mounted, in the container's own mount namespace only.
    pub mount_point: PathBuf,
    pub readonly: bool,
    /// Whether device nodes of the image cannot be opened.
    #[serde(default)]
    pub nodev: bool,
}

/// A mount below the root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub destination: String,
    pub source: MountSource,
    pub readonly: bool,
    /// Whether mounts below the source are read-only too.
    pub recursive_readonly: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// Whether the ids of its files are the pod's own: mapped as the pod's users are.
    #[serde(default)]
    pub mapped: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MountSource {
    /// A file or folder of the node.
    Bind { path: PathBuf, propagation: Propagation },
    /// A new file system.
    Filesystem { kind: String, options: String },
    /// Every cgroup hierarchy of the node, as the container may see it.
    Cgroups,
    /// Layers of an image, read only.
    Image { layers_folder: PathBuf, lower: Vec<String>, sub_path: String },
}

/// The propagation of mounts between the node and the container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

/// A device node in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub path: String,
    pub block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The namespaces to join; `None` means the node's. The mount namespace is always new.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Namespaces {
    pub network: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub pid: PidNamespace,
    /// The pod's user namespace and its id mapping.
    #[serde(default)]
    pub users: Option<(PathBuf, Mapping)>,
}

/// The pid namespace of the container's processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PidNamespace {
    /// A namespace of its own.
    #[default]
    Own,
    /// The node's.
    Node,
    /// An existing one: the pod's, or another container's.
    Join(PathBuf),
}
