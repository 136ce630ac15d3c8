//! The mounts of a container: its volumes with subPath and propagation, the hosts file, the file of its termination
//! message.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::{Container, VolumeMount};
use corten_cri::v1 as cri;

use super::environment::Environment;
use super::expansion::expand_strict;
use crate::error::{Error, Result};
use crate::users::Range;
use crate::volumes::{MountedVolumes, sub_path};

const HOSTS_PATH: &str = "/etc/hosts";
const DEFAULT_TERMINATION_PATH: &str = "/dev/termination-log";

/// The paths of a container's mounts on the node.
pub struct MountSources<'a> {
    pub volumes: &'a MountedVolumes,
    /// The images that are mounted as volumes, by the volume's name.
    pub image_volumes: &'a HashMap<String, String>,
    pub pod_dir: &'a Path,
    pub hosts_file: &'a Path,
    pub termination_file: &'a Path,
    /// The ids of a pod in a user namespace: the files of its volumes are mapped to them.
    pub users: Option<Range>,
}

pub fn mounts(container: &Container, environment: &Environment, sources: &MountSources<'_>) -> Result<Vec<cri::Mount>> {
    let mut mounts = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        mounts.push(match sources.image_volumes.get(&mount.name) {
            Some(image) => image_mount(mount, image, environment)?,
            None => volume_mount(container, mount, index, environment, sources)?,
        });
    }
    if !mounts.iter().any(|mount| mount.container_path == HOSTS_PATH) {
        mounts.push(file_mount(HOSTS_PATH, sources.hosts_file));
    }
    let message_path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    mounts.push(file_mount(message_path.unwrap_or(DEFAULT_TERMINATION_PATH), sources.termination_file));
    Ok(mounts)
}

/// Returns the block devices of the container's volumes.
pub fn devices(container: &Container, volumes: &MountedVolumes) -> Result<Vec<cri::Device>> {
    let declared = container.volume_devices.iter().flatten();
    declared
        .map(|device| {
            let volume = volumes.by_name.get(&device.name).filter(|volume| volume.device).ok_or_else(|| {
                Error::pod(format!("cannot find block device {:?} for container {:?}", device.name, container.name))
            })?;
            Ok(cri::Device {
                container_path: device.device_path.clone(),
                host_path: volume.path.display().to_string(),
                permissions: if volume.writable { "rwm" } else { "r" }.into(),
            })
        })
        .collect()
}

fn file_mount(container_path: &str, host_path: &Path) -> cri::Mount {
    cri::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        ..cri::Mount::default()
    }
}

/// Returns the mount of an image, which the runtime resolves; it is read-only.
fn image_mount(mount: &VolumeMount, image: &str, environment: &Environment) -> Result<cri::Mount> {
    Ok(cri::Mount {
        container_path: absolute(&mount.mount_path),
        image: Some(cri::ImageSpec { image: image.to_owned(), ..cri::ImageSpec::default() }),
        image_sub_path: sub_path_of(mount, environment)?.unwrap_or_default(),
        readonly: true,
        ..cri::Mount::default()
    })
}

fn volume_mount(
    container: &Container,
    mount: &VolumeMount,
    index: usize,
    environment: &Environment,
    sources: &MountSources<'_>,
) -> Result<cri::Mount> {
    let volume = sources.volumes.by_name.get(&mount.name).ok_or_else(|| {
        Error::pod(format!("cannot find volume {:?} to mount into container {:?}", mount.name, container.name))
    })?;
    if volume.device {
        return Err(Error::pod(format!(
            "volume {:?} is a block device: it belongs in volumeDevices, not in volumeMounts",
            mount.name
        )));
    }
    let host_path = match sub_path_of(mount, environment)? {
        None => volume.path.clone(),
        Some(inside) => {
            let name = format!("{}/{}/{index}", mount.name, container.name);
            let target: PathBuf = sources.pod_dir.join("volume-subpaths").join(name);
            sub_path::bind(&volume.path, &inside, &target).map_err(|error| {
                Error::pod(format!(
                    "failed to prepare subPath for volumeMount {:?} of container {:?}: {error}",
                    mount.name, container.name
                ))
            })?
        }
    };
    Ok(cri::Mount {
        container_path: absolute(&mount.mount_path),
        host_path: host_path.display().to_string(),
        readonly: mount.read_only == Some(true) || !volume.writable,
        propagation: propagation(mount.mount_propagation.as_deref()) as i32,
        recursive_read_only: mount.recursive_read_only.as_deref() == Some("Enabled"),
        uid_mappings: sources.users.map(Range::mapping).unwrap_or_default(),
        gid_mappings: sources.users.map(Range::mapping).unwrap_or_default(),
        ..cri::Mount::default()
    })
}

fn sub_path_of(mount: &VolumeMount, environment: &Environment) -> Result<Option<String>> {
    if let Some(expression) = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
        return expand_strict(expression, environment)
            .map(Some)
            .map_err(|name| Error::pod(format!("missing value for {name:?} in subPathExpr {expression:?}")));
    }
    Ok(mount.sub_path.clone().filter(|path| !path.is_empty()))
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn propagation(mode: Option<&str>) -> cri::MountPropagation {
    match mode {
        Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
        _ => cri::MountPropagation::PropagationPrivate,
    }
}
