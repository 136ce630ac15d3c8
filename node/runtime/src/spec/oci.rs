//! The spec in the format of the OCI runtime specification (`config.json`), for runtimes that are separate programs:
//! runc, crun, gVisor's runsc, Kata. Pure.
//!
//! The bundle is complete: such a runtime makes no decision that ours would make differently.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Device, Identity, Mount, MountSource, PidNamespace, Process, Propagation, Spec, capabilities, seccomp};
use crate::cgroup::{DeviceRule, Limits};

/// The version of the specification that every runtime in use reads.
const VERSION: &str = "1.0.2";

/// A runtime that is a separate program, and the input of its `config.json` beyond the spec.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Runtime {
    pub program: PathBuf,
    /// The folder where it keeps the state of containers.
    pub state: PathBuf,
    /// The container's folder.
    pub bundle: PathBuf,
    pub cgroup: String,
    pub limits: Limits,
    pub devices: Vec<DeviceRule>,
    pub seccomp: Option<seccomp::Profile>,
}

impl Runtime {
    /// Returns the path where the layers of the image volume at this index of the mounts are mounted.
    pub fn image_volume(&self, index: usize) -> PathBuf {
        self.bundle.join("image-volumes").join(index.to_string())
    }
}

/// Returns the whole `config.json`. Names of users were looked up in the container's root.
pub(crate) fn config(spec: &Spec, runtime: &Runtime, identity: &Identity, env: &[String]) -> Value {
    let mut mounts: Vec<Value> =
        spec.mounts.iter().enumerate().map(|(index, mount)| self::mount(mount, &runtime.image_volume(index))).collect();
    mounts.extend(spec.writable_paths.iter().map(|path| writable(spec, path)));
    json!({
        "ociVersion": VERSION,
        "process": process(&spec.process, identity, env),
        "root": {"path": spec.rootfs.mount_point, "readonly": spec.rootfs.readonly},
        "mounts": mounts,
        "linux": {
            "namespaces": namespaces(spec),
            "cgroupsPath": format!("/{}", runtime.cgroup.trim_matches('/')),
            "resources": resources(runtime),
            "devices": spec.devices.iter().filter(|device| !is_default(device)).map(device).collect::<Vec<_>>(),
            "maskedPaths": spec.masked_paths,
            "readonlyPaths": spec.readonly_paths,
            "rootfsPropagation": propagation_of_root(&spec.mounts),
            "seccomp": runtime.seccomp,
        },
    })
}

/// Returns a process, also one of exec.
pub(crate) fn process(process: &Process, identity: &Identity, env: &[String]) -> Value {
    let sets = &process.capabilities;
    let mut value = json!({
        "terminal": process.terminal,
        "user": {"uid": identity.uid, "gid": identity.gid, "additionalGids": identity.groups},
        "args": process.args,
        "env": env,
        "cwd": process.cwd,
        "noNewPrivileges": process.no_new_privileges,
        "capabilities": {
            "bounding": capabilities::names(sets.bounding),
            // As in our own runtime, a user that is not root starts with none of them but the ambient ones.
            "effective": capabilities::names(sets.permitted),
            "permitted": capabilities::names(sets.permitted),
            "inheritable": capabilities::names(sets.inheritable),
            "ambient": capabilities::names(sets.ambient),
        },
    });
    if let Some(score) = process.oom_score_adj {
        value["oomScoreAdj"] = score.into();
    }
    if let Some(profile) = &process.apparmor {
        value["apparmorProfile"] = profile.as_str().into();
    }
    value
}

fn mount(mount: &Mount, image_volume: &Path) -> Value {
    let (kind, source, mut options) = match &mount.source {
        MountSource::Bind { path, propagation } => {
            let propagation = match propagation {
                Propagation::Private => "rprivate",
                Propagation::HostToContainer => "rslave",
                Propagation::Bidirectional => "rshared",
            };
            ("bind", path.display().to_string(), vec!["rbind".to_owned(), propagation.to_owned()])
        }
        MountSource::Filesystem { kind, options } => {
            let options = options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect();
            (kind.as_str(), kind.clone(), options)
        }
        MountSource::Cgroups => ("cgroup", "cgroup".to_owned(), Vec::new()),
        MountSource::Image { .. } => {
            ("bind", image_volume.display().to_string(), vec!["rbind".to_owned(), "rprivate".to_owned()])
        }
    };
    let flags = [
        (mount.readonly && !mount.recursive_readonly, "ro"),
        (mount.recursive_readonly, "rro"),
        (mount.nosuid, "nosuid"),
        (mount.nodev, "nodev"),
        (mount.noexec, "noexec"),
    ];
    options.extend(flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned()));
    json!({"destination": mount.destination, "type": kind, "source": source, "options": options})
}

/// Returns a mount of a folder onto itself, which stays writable when the root is made read-only.
fn writable(spec: &Spec, path: &str) -> Value {
    let source = spec.rootfs.mount_point.join(crate::rooted::relative(Path::new(path)));
    json!({"destination": path, "type": "bind", "source": source, "options": ["rbind", "rprivate", "rw"]})
}

/// Returns the propagation of the root: a volume propagates only below a root that does.
fn propagation_of_root(mounts: &[Mount]) -> Option<&'static str> {
    let has = |wanted: Propagation| {
        mounts
            .iter()
            .any(|mount| matches!(&mount.source, MountSource::Bind { propagation, .. } if *propagation == wanted))
    };
    match (has(Propagation::Bidirectional), has(Propagation::HostToContainer)) {
        (true, _) => Some("rshared"),
        (false, true) => Some("rslave"),
        _ => None,
    }
}

fn namespaces(spec: &Spec) -> Vec<Value> {
    let mut list = vec![json!({"type": "mount"})];
    let shared = [("network", &spec.namespaces.network), ("ipc", &spec.namespaces.ipc), ("uts", &spec.namespaces.uts)];
    list.extend(shared.into_iter().filter_map(|(kind, path)| Some(json!({"type": kind, "path": path.as_ref()?}))));
    match &spec.namespaces.pid {
        PidNamespace::Own => list.push(json!({"type": "pid"})),
        PidNamespace::Join(path) => list.push(json!({"type": "pid", "path": path})),
        PidNamespace::Node => {}
    }
    if spec.private_cgroup_namespace {
        list.push(json!({"type": "cgroup"}));
    }
    list
}

/// Returns the resources. The limits are set on the group before the runtime starts; it gets them because some runtimes
/// size their virtual machines by them. It needs the device rules, because it writes them anew.
fn resources(runtime: &Runtime) -> Value {
    let limits = &runtime.limits;
    let positive = |number: i64| (number > 0).then_some(number);
    let non_empty = |value: &String| (!value.is_empty()).then(|| value.clone());
    let mut devices = vec![json!({"allow": false, "access": "rwm"})];
    devices.extend(runtime.devices.iter().map(|rule| {
        json!({"allow": true, "type": rule.kind.to_string(), "major": rule.major, "minor": rule.minor, "access": rule.access})
    }));
    let swap = positive(limits.memory).map(|memory| if limits.memory_swap > 0 { limits.memory_swap } else { memory });
    let mut value = json!({
        "devices": devices,
        "cpu": {
            "shares": positive(limits.cpu_shares),
            "quota": (limits.cpu_quota != 0).then_some(limits.cpu_quota),
            "period": positive(limits.cpu_period),
            "cpus": non_empty(&limits.cpuset_cpus),
            "mems": non_empty(&limits.cpuset_mems),
        },
        "memory": {"limit": positive(limits.memory), "swap": swap},
    });
    if !limits.unified.is_empty() {
        value["unified"] = json!(limits.unified);
    }
    without_nulls(&mut value);
    value
}

/// Removes nulls: some runtimes take `null` for a wrong type, where a missing field is meant.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Reports whether every runtime makes the device by itself, as the specification demands.
fn is_default(device: &Device) -> bool {
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"].contains(&device.path.as_str())
}

fn device(device: &Device) -> Value {
    json!({
        "path": device.path,
        "type": if device.block { "b" } else { "c" },
        "major": device.major,
        "minor": device.minor,
        "fileMode": device.mode,
        "uid": device.uid,
        "gid": device.gid,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Capabilities, Namespaces, Rootfs};

    fn volume(destination: &str, source: MountSource) -> Mount {
        Mount {
            destination: destination.into(),
            source,
            readonly: true,
            recursive_readonly: false,
            nosuid: true,
            nodev: false,
            noexec: false,
            mapped: false,
        }
    }

    #[test]
    fn a_spec_becomes_an_equivalent_oci_config() {
        let bind = MountSource::Bind { path: "/data".into(), propagation: Propagation::HostToContainer };
        let image =
            MountSource::Image { layers_folder: "/layers".into(), lower: vec!["a".into()], sub_path: String::new() };
        let spec = Spec {
            process: Process {
                args: vec!["/bin/true".into()],
                cwd: "/".into(),
                capabilities: Capabilities { bounding: 0b1001, permitted: 0b1, ..Capabilities::default() },
                ..Process::default()
            },
            rootfs: Rootfs { mount_point: "/bundle/rootfs".into(), readonly: true, ..Rootfs::default() },
            mounts: vec![volume("/in", bind), volume("/image", image)],
            writable_paths: vec!["/declared".into()],
            namespaces: Namespaces { network: Some("/run/net".into()), ..Namespaces::default() },
            ..Spec::default()
        };
        let runtime = Runtime {
            bundle: "/bundle".into(),
            cgroup: "kubepods/pod1/c1".into(),
            limits: Limits { cpu_shares: 512, memory: 1 << 20, ..Limits::default() },
            devices: DeviceRule::all(),
            ..Runtime::default()
        };
        let identity = Identity { uid: 33, gid: 34, groups: vec![34, 50], home: "/srv".into() };
        let config = config(&spec, &runtime, &identity, &["A=b".into()]);
        for (pointer, expected) in [
            ("/process/user", json!({"uid": 33, "gid": 34, "additionalGids": [34, 50]})),
            ("/process/env", json!(["A=b"])),
            ("/process/capabilities/bounding", json!(["CAP_CHOWN", "CAP_FOWNER"])),
            ("/root", json!({"path": "/bundle/rootfs", "readonly": true})),
            ("/mounts/0/options", json!(["rbind", "rslave", "ro", "nosuid"])),
            ("/mounts/1/source", json!("/bundle/image-volumes/1")),
            (
                "/mounts/2",
                json!({"destination": "/declared", "type": "bind", "source": "/bundle/rootfs/declared", "options": ["rbind", "rprivate", "rw"]}),
            ),
            ("/linux/cgroupsPath", json!("/kubepods/pod1/c1")),
            ("/linux/namespaces", json!([{"type": "mount"}, {"type": "network", "path": "/run/net"}, {"type": "pid"}])),
            ("/linux/rootfsPropagation", json!("rslave")),
            ("/linux/resources/cpu", json!({"shares": 512})),
            ("/linux/resources/memory", json!({"limit": 1 << 20, "swap": 1 << 20})),
            ("/linux/resources/devices/1", json!({"allow": true, "type": "a", "access": "rwm"})),
        ] {
            assert_eq!(config.pointer(pointer), Some(&expected), "{pointer}");
        }
    }
}
