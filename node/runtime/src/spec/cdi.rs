//! Devices by name (the container device interface): a driver of the node describes in a file the edits that give a
//! container a device, the kubelet names the device, and this applies the edits to the request.
//!
//! Hooks, network devices and resource-control edits are refused by name: a container that lacks a part of its device
//! would fail in ways that are hard to trace.

use std::path::{Path, PathBuf};

use corten_cri::v1;
use corten_meta::Value;

use super::{Device, Mount};
use crate::Error;
use crate::spec::build::node_device;

/// Edits that a CRI request has no fields for; `build` adds them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    /// Device nodes whose owner or mode differs from the node's own.
    nodes: Vec<Device>,
    /// Mounts with stricter flags than a volume.
    mounts: Vec<MountFlags>,
}

/// The flags of the mount at a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct MountFlags {
    path: String,
    nosuid: bool,
    nodev: bool,
    noexec: bool,
}

impl Edits {
    pub fn apply(&self, devices: &mut [Device], mounts: &mut [Mount]) {
        for node in &self.nodes {
            devices.iter_mut().filter(|device| device.path == node.path).for_each(|device| *device = node.clone());
        }
        for flags in &self.mounts {
            for mount in mounts.iter_mut().filter(|mount| mount.destination == flags.path) {
                mount.nosuid = flags.nosuid;
                mount.nodev = flags.nodev;
                mount.noexec = flags.noexec;
            }
        }
    }
}

/// Applies the edits of the request's CDI devices to the request.
pub(crate) fn apply(config: &mut v1::ContainerConfig, folders: &[PathBuf]) -> Result<Edits, Error> {
    let mut edits = Edits::default();
    if config.cdi_devices.is_empty() {
        return Ok(edits);
    }
    let specs = read(folders);
    let mut used: Vec<&str> = Vec::new();
    for device in config.cdi_devices.clone() {
        let (kind, name) = split(&device.name)?;
        // A later folder, and in it the spec that comes last, wins.
        let found = specs.iter().rev().find_map(|(path, spec)| {
            let devices = spec["devices"].as_array().into_iter().flatten();
            let own = devices.filter(|_| spec["kind"] == kind).find(|own| own["name"] == name);
            own.map(|own| (path, spec, own))
        });
        let Some((path, spec, own)) = found else {
            return Err(Error::Invalid(format!("unresolvable CDI devices {}", device.name)));
        };
        edit(config, &mut edits, &own["containerEdits"], &device.name)?;
        // The edits of the whole spec are made once, however many of its devices a container has.
        if !used.contains(&path.as_str()) {
            used.push(path);
            edit(config, &mut edits, &spec["containerEdits"], &device.name)?;
        }
    }
    Ok(edits)
}

/// Splits `vendor.com/class=device`.
fn split(name: &str) -> Result<(&str, &str), Error> {
    let parts = name.split_once('=').filter(|(kind, device)| kind.contains('/') && !device.is_empty());
    parts.ok_or_else(|| Error::Invalid(format!("unqualified CDI device name {name:?}")))
}

/// Reads every spec, in the order of folders and names. Skips a file that is not a spec.
fn read(folders: &[PathBuf]) -> Vec<(String, Value)> {
    let mut specs = Vec::new();
    for folder in folders {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        for path in paths {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if !matches!(extension, "json" | "yaml" | "yml") {
                continue;
            }
            let spec = std::fs::read(&path).ok().and_then(|bytes| corten_meta::codec::decode_yaml(&bytes).ok());
            match spec {
                Some(spec) => specs.push((path.display().to_string(), spec)),
                None => tracing::warn!(path = %path.display(), "a CDI spec cannot be read"),
            }
        }
    }
    specs
}

fn edit(config: &mut v1::ContainerConfig, edits: &mut Edits, wanted: &Value, device: &str) -> Result<(), Error> {
    for refused in ["hooks", "netDevices", "intelRdt"] {
        if wanted[refused].as_array().is_some_and(|list| !list.is_empty()) || wanted[refused].is_object() {
            return Err(Error::Invalid(format!("CDI device {device}: {refused} are not supported by this runtime")));
        }
    }
    let list = |name: &str| wanted[name].as_array().cloned().unwrap_or_default();
    for entry in list("env") {
        let (key, value) = entry.as_str().and_then(|variable| variable.split_once('=')).unwrap_or_default();
        config.envs.retain(|known| known.key != key);
        config.envs.push(v1::KeyValue { key: key.to_owned(), value: value.into() });
    }
    for node in list("deviceNodes") {
        add_node(config, edits, &node)?;
    }
    for mount in list("mounts") {
        add_mount(config, edits, &mount, device)?;
    }
    let groups = list("additionalGids").iter().filter_map(Value::as_i64).filter(|gid| *gid > 0).collect::<Vec<_>>();
    if !groups.is_empty() {
        let linux = config.linux.get_or_insert_default();
        linux.security_context.get_or_insert_default().supplemental_groups.extend(groups);
    }
    Ok(())
}

fn add_node(config: &mut v1::ContainerConfig, edits: &mut Edits, node: &Value) -> Result<(), Error> {
    let field = |name: &str| node[name].as_str().unwrap_or_default().to_owned();
    let path = field("path");
    let host_path = if field("hostPath").is_empty() { path.clone() } else { field("hostPath") };
    let found = node_device(Path::new(&host_path))?;
    let number = |name: &str, own: u32| node[name].as_u64().and_then(|it| u32::try_from(it).ok()).unwrap_or(own);
    edits.nodes.push(Device {
        mode: number("fileMode", found.mode),
        uid: number("uid", found.uid),
        gid: number("gid", found.gid),
        path: path.clone(),
        ..found
    });
    let permissions = if field("permissions").is_empty() { "rwm".to_owned() } else { field("permissions") };
    config.devices.push(v1::Device { container_path: path, host_path, permissions });
    Ok(())
}

fn add_mount(config: &mut v1::ContainerConfig, edits: &mut Edits, mount: &Value, device: &str) -> Result<(), Error> {
    let field = |name: &str| mount[name].as_str().unwrap_or_default().to_owned();
    let mut wanted =
        v1::Mount { container_path: field("containerPath"), host_path: field("hostPath"), ..v1::Mount::default() };
    let mut flags = MountFlags { path: wanted.container_path.clone(), ..MountFlags::default() };
    if !matches!(field("type").as_str(), "" | "bind" | "none") {
        let kind = field("type");
        return Err(Error::Invalid(format!("CDI device {device}: mounts of type {kind} are not supported")));
    }
    for option in mount["options"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        match option {
            "ro" => wanted.readonly = true,
            "rw" | "bind" | "rbind" | "private" | "rprivate" | "suid" | "dev" | "exec" => {}
            "nosuid" => flags.nosuid = true,
            "nodev" => flags.nodev = true,
            "noexec" => flags.noexec = true,
            "rslave" | "slave" => wanted.propagation = v1::MountPropagation::PropagationHostToContainer as i32,
            "rshared" | "shared" => wanted.propagation = v1::MountPropagation::PropagationBidirectional as i32,
            other => {
                return Err(Error::Invalid(format!("CDI device {device}: mount option {other} is not supported")));
            }
        }
    }
    edits.mounts.push(flags);
    config.mounts.push(wanted);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"
cdiVersion: "0.6.0"
kind: example.com/gpu
containerEdits:
  env: ["GPUS=here"]
devices:
- name: zero
  containerEdits:
    env: ["GPU=zero"]
    deviceNodes:
    - {path: /dev/gpu0, hostPath: /dev/null, permissions: r, uid: 7, fileMode: 384}
    mounts:
    - {hostPath: /usr/lib, containerPath: /opt/gpu, options: [ro, nosuid, nodev, rbind]}
    additionalGids: [44]
- name: hooked
  containerEdits:
    hooks: [{hookName: createContainer, path: /bin/true}]
"#;

    fn config(names: &[&str]) -> v1::ContainerConfig {
        let cdi_devices = names.iter().map(|name| v1::CdiDevice { name: (*name).into() }).collect();
        v1::ContainerConfig { cdi_devices, ..v1::ContainerConfig::default() }
    }

    fn applied(names: &[&str]) -> Result<(v1::ContainerConfig, Edits), Error> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("gpu.yaml"), SPEC).expect("a spec");
        let mut config = config(names);
        let edits = apply(&mut config, &[folder.path().to_path_buf(), "/no/such/folder".into()])?;
        Ok((config, edits))
    }

    #[test]
    fn a_named_device_brings_all_edits_of_its_spec() {
        let (config, edits) = applied(&["example.com/gpu=zero"]).expect("a device");
        let envs: Vec<_> = config.envs.iter().map(|env| env.key.as_str()).collect();
        assert_eq!(envs, ["GPU", "GPUS"]);
        assert_eq!(config.devices[0].host_path, "/dev/null");
        assert_eq!(config.devices[0].permissions, "r");
        assert!(config.mounts[0].readonly);
        let expected = MountFlags { path: "/opt/gpu".to_owned(), nosuid: true, nodev: true, noexec: false };
        assert_eq!(edits.mounts, [expected]);
        assert_eq!((edits.nodes[0].uid, edits.nodes[0].mode, edits.nodes[0].major), (7, 0o600, 1));
        let security = config.linux.and_then(|linux| linux.security_context).expect("groups");
        assert_eq!(security.supplemental_groups, [44]);
    }

    #[test]
    fn unsupported_edits_are_refused_by_name() {
        for (name, expected) in [
            ("example.com/gpu=one", "unresolvable CDI devices example.com/gpu=one"),
            ("example.com/gpu=hooked", "CDI device example.com/gpu=hooked: hooks are not supported by this runtime"),
            ("nonsense", "unqualified CDI device name \"nonsense\""),
        ] {
            assert_eq!(applied(&[name]).expect_err("refused").to_string(), expected);
        }
    }

    #[test]
    fn a_container_without_devices_reads_no_specs() {
        assert_eq!(apply(&mut config(&[]), &[]).expect("nothing"), Edits::default());
    }
}
