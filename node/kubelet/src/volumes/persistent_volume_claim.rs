//! `persistentVolumeClaim` and `ephemeral`: the volume that the claim is bound to, on this node (`hostPath` and
//! `local`), of an NFS server or of a CSI driver. It never binds a claim and never waits for one: the worker tries again.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::{
    Container, LocalVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod,
};
use jiff::Timestamp;

use super::csi;
use super::expansion::{CHECK_INTERVAL, Expansion, Outcome, Refused};
use super::{Context, LOCAL_VOLUME, Mounted, empty_dir, fs_group, host_path, local_device, nfs, volume_dir};
use crate::config::LOCAL_VOLUMES;
use crate::error::{Error, Result};
use crate::pod::spec;

/// Returns the name of the claim of an ephemeral volume.
pub fn ephemeral_claim(context: &Context<'_>, volume: &str) -> String {
    format!("{}-{volume}", spec::name(context.pod))
}

pub async fn set_up(
    context: &Context<'_>,
    name: &str,
    claim: &str,
    read_only: bool,
    refresh_at: &mut Option<Timestamp>,
) -> Result<Mounted> {
    let namespace = spec::namespace(context.pod);
    let (claim, volume) = bound_volume(context, claim)
        .await
        .map_err(|error| Error::pod(format!("error processing PVC {namespace}/{claim}: {error}")))?;
    check_mode(context.pod, name, &volume)?;
    if let Some(source) = csi::Source::persistent(&volume, read_only) {
        let request = csi::Request { volume: name, source, bound: Some((&claim, &volume)) };
        let (mounted, look_again) = context.csi.set_up(context, &request).await?;
        super::earlier(refresh_at, look_again);
        return Ok(mounted);
    }
    let name = volume.metadata.name.clone().unwrap_or_default();
    let source = volume.spec.clone().unwrap_or_default();
    let block = source.volume_mode.as_deref() == Some("Block");
    let options = source.mount_options.as_deref().unwrap_or_default();
    let mut mounted = match (&source.host_path, &source.local, &source.nfs) {
        (Some(source), ..) if !block => host_path::set_up(source)?,
        (_, Some(source), _) if block => local_device(source)?,
        (_, Some(local), _) => set_up_local(context, &name, local, options).await?,
        (.., Some(export)) if !block => nfs::set_up(context, &name, export, options, read_only).await?,
        _ => {
            return Err(Error::pod(format!(
                "no volume plugin matched: persistent volume {name:?} is not on this node"
            )));
        }
    };
    if let Some(local) = source.local.as_ref().filter(|_| !read_only) {
        let path = (!block).then(|| PathBuf::from(&local.path));
        expand(context, &claim, &volume, path, mounted.path.clone()).await?;
        super::earlier(refresh_at, context.now.checked_add(CHECK_INTERVAL).ok());
    }
    mounted.writable &= !read_only;
    Ok(mounted)
}

/// Grows the file system of a volume of this node after the volume itself, and records the result in the claim's
/// status. Without a path the volume has no file system of this node.
async fn expand(
    context: &Context<'_>,
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    path: Option<PathBuf>,
    mounted_at: PathBuf,
) -> Result<()> {
    let Some(expansion) = Expansion::due(claim, volume) else { return Ok(()) };
    expansion.begin(context).await?;
    let grow = move || path.map_or(Ok(()), |path| local_device::grow(&path, &mounted_at));
    match in_background(grow).await {
        Ok(()) => expansion.succeed(context).await,
        Err(error) => {
            let refused = Refused { message: error.to_string(), outcome: Outcome::Final };
            expansion.fail(context, refused, false).await
        }
    }
}

/// Returns the claim and its volume if both agree that they are bound.
async fn bound_volume(context: &Context<'_>, claim: &str) -> Result<(PersistentVolumeClaim, PersistentVolume)> {
    let namespace = spec::namespace(context.pod);
    let claim = context.client.get::<PersistentVolumeClaim>(namespace, claim).await?;
    let name = bound_name(&claim)?;
    let volume = context.client.get::<PersistentVolume>("", name).await?;
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
    if holder != claim.metadata.uid {
        return Err(Error::pod(format!("PV {name:?} is bound to another claim")));
    }
    Ok((claim, volume))
}

fn bound_name(claim: &PersistentVolumeClaim) -> Result<&str> {
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(Error::pod("PVC is being deleted"));
    }
    let bound = claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"));
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).filter(|name| !name.is_empty());
    name.filter(|_| bound).ok_or_else(|| Error::pod("PVC is not bound"))
}

/// Refuses a volume that a container uses in another way than its `volumeMode` says.
fn check_mode(pod: &Pod, name: &str, volume: &PersistentVolume) -> Result<()> {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem");
    let wrong = if mode == "Block" { "volumeMounts" } else { "volumeDevices" };
    let is_wrong = |container: &Container| match mode {
        "Block" => container.volume_mounts.iter().flatten().any(|mount| mount.name == name),
        _ => container.volume_devices.iter().flatten().any(|device| device.name == name),
    };
    match spec::containers(pod).any(|declared| is_wrong(&declared.container)) {
        true => Err(Error::pod(format!("volume {name} has volumeMode {mode}, but is specified in {wrong}"))),
        false => Ok(()),
    }
}

/// Mounts a directory or file system of this node. The first time that a pod uses it, it gets the pod's group.
async fn set_up_local(
    context: &Context<'_>,
    name: &str,
    source: &LocalVolumeSource,
    options: &[String],
) -> Result<Mounted> {
    let path = PathBuf::from(&source.path);
    // The directory of the cluster's own provisioner is beside those of pods.
    let root = context.pod_dir.parent().and_then(Path::parent);
    if root.is_some_and(|root| path.parent() == Some(&root.join(LOCAL_VOLUMES))) {
        make_directory(&path).map_err(Error::file("create", &path))?;
    }
    let Ok(found) = fs::metadata(&path) else {
        return Err(Error::pod(format!("path {:?} does not exist", source.path)));
    };
    let seen = volume_dir(context, LOCAL_VOLUME, name);
    let is_device = found.file_type().is_block_device();
    let new = match is_device {
        true => mount_device(&path, &seen, source.fs_type.as_deref(), options).await?,
        false => !seen.exists(),
    };
    let path = if is_device { seen.clone() } else { path };
    if new {
        fs_group::give_to_group(context.pod, &path)?;
        fs::create_dir_all(&seen).map_err(Error::file("create", &seen))?;
    }
    Ok(Mounted::writable(path))
}

/// Mounts the device, unless it is mounted already; returns whether the mount is new.
async fn mount_device(device: &Path, target: &Path, fs_type: Option<&str>, options: &[String]) -> Result<bool> {
    fs::create_dir_all(target).map_err(Error::file("create", target))?;
    if empty_dir::is_mount_point(target)? {
        return Ok(false);
    }
    let device = device.to_path_buf();
    let target = target.to_path_buf();
    let fs_type = fs_type.map(str::to_owned);
    let options = options.to_vec();
    in_background(move || local_device::mount(&device, &target, fs_type.as_deref(), &options)).await?;
    Ok(true)
}

/// Runs work on another thread: formatting or growing a large disk takes long.
async fn in_background(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::pod(format!("work on the device ended: {error}"))))
}

/// Returns a block device of this node, for a claim with `volumeMode: Block`.
fn local_device(source: &LocalVolumeSource) -> Result<Mounted> {
    let path = PathBuf::from(&source.path);
    let path = path.canonicalize().map_err(Error::file("look at device", &path))?;
    let kind = fs::metadata(&path).map_err(Error::file("look at device", &path))?.file_type();
    if !kind.is_block_device() {
        return Err(Error::pod(format!("path {:?} is not a block device", source.path)));
    }
    Ok(Mounted { device: true, ..Mounted::writable(path) })
}

/// Makes a directory of the cluster's own provisioner on first use. Every user may write to it, because the user of a
/// pod is not known before.
fn make_directory(path: &Path) -> std::io::Result<()> {
    if let Some(place) = path.parent() {
        // Pods get the directories inside; no other user of the machine has access to them.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o777)),
    }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_directory_is_made_once_for_all_pods() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("local-volumes").join("pvc-1_default_data");
        make_directory(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o777, 0o700));
        // A pod may have changed the mode since.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        make_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o750);
    }

    #[test]
    fn only_a_bound_claim_names_its_volume() {
        for (claim, expected) in [
            (json!({"spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}), "v"),
            (json!({"spec": {"volumeName": "v"}, "status": {"phase": "Pending"}}), "PVC is not bound"),
            (json!({"spec": {}, "status": {"phase": "Bound"}}), "PVC is not bound"),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"volumeName": "v"},
                       "status": {"phase": "Bound"}}),
                "PVC is being deleted",
            ),
        ] {
            let claim = PersistentVolumeClaim::from_value(claim).unwrap();
            assert_eq!(bound_name(&claim).map_or_else(|error| error.to_string(), str::to_owned), expected);
        }
    }
    #[test]
    fn a_volume_is_used_as_its_mode_says() {
        let pod = |field: &str| {
            let container = json!({"name": "c", field: [{"name": "data", "mountPath": "/d", "devicePath": "/d"}]});
            Pod::from_value(json!({"spec": {"containers": [container]}})).unwrap()
        };
        let volume = |mode: &str| PersistentVolume::from_value(json!({"spec": {"volumeMode": mode}})).unwrap();
        let check = |field: &str, mode: &str| check_mode(&pod(field), "data", &volume(mode));
        assert!(check("volumeMounts", "Filesystem").is_ok() && check("volumeDevices", "Block").is_ok());
        let refused = |field: &str, mode: &str| check(field, mode).unwrap_err().to_string();
        let expected = "volume data has volumeMode Block, but is specified in volumeMounts";
        assert_eq!(refused("volumeMounts", "Block"), expected);
        let expected = "volume data has volumeMode Filesystem, but is specified in volumeDevices";
        assert_eq!(refused("volumeDevices", "Filesystem"), expected);
    }
}
