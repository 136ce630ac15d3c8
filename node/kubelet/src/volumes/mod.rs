//! The volumes of a pod: mounted before its containers start, kept up to date while it runs, unmounted after it. One
//! file per volume type; this one lists the types and the order of the steps.
//!
//! Mounting is idempotent: the worker repeats it whenever the content of a volume has changed. A volume type that is
//! not listed here is refused with its name, never ignored.

pub mod atomic_writer;
mod config_map;
pub mod csi;
mod downward_api;
mod empty_dir;
pub mod expansion;
pub mod fs_group;
mod host_path;
mod local_device;
mod nfs;
mod persistent_volume_claim;
mod projected;
mod secret;
pub mod sub_path;
pub mod teardown;
mod token;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{KeyToPath, Pod, Volume};
use corten_client::Client;
use jiff::Timestamp;

pub use token::Tokens;

use crate::error::{Error, Result};
use crate::events::Events;
use crate::metrics::{self, Metrics};
use crate::pod::downward_api::Downward;
use crate::pod::spec;
use crate::pod::waker::Waker;
use csi::Csi;

/// A file of a volume whose content the kubelet writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
    /// The owner of a token that only the pod's user may read.
    pub owner: Option<u32>,
}

/// Files by their path relative to the volume's root.
pub type Payload = BTreeMap<String, File>;

/// A mounted volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    pub path: PathBuf,
    /// Whether containers may write to it.
    pub writable: bool,
    /// Whether the path is a block device, not a directory.
    pub device: bool,
}

impl Mounted {
    /// Returns a directory that containers may write to.
    pub fn writable(path: PathBuf) -> Mounted {
        Mounted { path, writable: true, device: false }
    }
}

/// The mounted volumes of a pod, and the time of their next reconcile (a token expires).
#[derive(Clone, Debug, Default)]
pub struct MountedVolumes {
    pub by_name: HashMap<String, Mounted>,
    pub refresh_at: Option<Timestamp>,
}

/// The parts that the volume types use.
pub struct Context<'a> {
    pub client: &'a Client,
    pub tokens: &'a Tokens,
    pub csi: &'a Csi,
    pub events: &'a Events,
    pub metrics: &'a Metrics,
    pub waker: &'a Waker,
    pub pod: &'a Pod,
    pub pod_dir: &'a Path,
    pub downward: &'a Downward,
    pub now: Timestamp,
}

/// Mounts every volume of the pod; the error names the volume that failed.
pub async fn set_up(context: &Context<'_>) -> Result<MountedVolumes> {
    let mut result = MountedVolumes::default();
    // The runtime mounts an image volume; its image is pulled with the images of the containers.
    for volume in spec::spec(context.pod).volumes.iter().flatten().filter(|volume| volume.image.is_none()) {
        let begun = Instant::now();
        let set_up = set_up_volume(context, volume, &mut result.refresh_at).await;
        note(context, volume, &set_up, begun);
        let mounted = set_up.map_err(|error| match error {
            Error::Waiting(_) | Error::Admission { .. } => error,
            _ => Error::pod(format!("MountVolume.SetUp failed for volume {:?} : {error}", volume.name)),
        })?;
        result.by_name.insert(volume.name.clone(), mounted);
    }
    Ok(result)
}

/// Observes the duration; a volume that only waits is no operation yet.
fn note(context: &Context<'_>, volume: &Volume, set_up: &Result<Mounted>, begun: Instant) {
    let status = match set_up {
        Ok(_) => "success",
        Err(Error::Waiting(_)) => return,
        Err(_) => "fail-unknown",
    };
    let labels = ["false", "volume_mount", status, plugin_of(volume)];
    context.metrics.observe(&metrics::STORAGE_SECONDS, &labels, begun.elapsed());
}

fn plugin_of(volume: &Volume) -> &'static str {
    match volume {
        Volume { empty_dir: Some(_), .. } => "kubernetes.io/empty-dir",
        Volume { host_path: Some(_), .. } => "kubernetes.io/host-path",
        Volume { config_map: Some(_), .. } => "kubernetes.io/configmap",
        Volume { secret: Some(_), .. } => "kubernetes.io/secret",
        Volume { downward_api: Some(_), .. } => "kubernetes.io/downward-api",
        Volume { projected: Some(_), .. } => "kubernetes.io/projected",
        Volume { csi: Some(_), .. } => "kubernetes.io/csi",
        Volume { nfs: Some(_), .. } => "kubernetes.io/nfs",
        _ => "kubernetes.io/persistent-claim",
    }
}

async fn set_up_volume(context: &Context<'_>, volume: &Volume, refresh_at: &mut Option<Timestamp>) -> Result<Mounted> {
    let name = volume.name.as_str();
    if let Some(source) = &volume.empty_dir {
        return empty_dir::set_up(context, name, source);
    }
    if let Some(source) = &volume.host_path {
        return host_path::set_up(source);
    }
    if let Some(source) = &volume.config_map {
        let payload = config_map::payload(context, source).await?;
        return write_payload(context, "kubernetes.io~configmap", name, Medium::Disk, &payload);
    }
    if let Some(source) = &volume.secret {
        let payload = secret::payload(context, source).await?;
        return write_payload(context, "kubernetes.io~secret", name, Medium::Memory, &payload);
    }
    if let Some(source) = &volume.downward_api {
        let default_mode = mode(source.default_mode, 0o644);
        let payload = downward_api::payload(context, source.items.as_deref().unwrap_or_default(), default_mode)?;
        return write_payload(context, "kubernetes.io~downward-api", name, Medium::Memory, &payload);
    }
    if let Some(source) = &volume.projected {
        let payload = projected::payload(context, source, refresh_at).await?;
        return write_payload(context, "kubernetes.io~projected", name, Medium::Memory, &payload);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let read_only = source.read_only == Some(true);
        return persistent_volume_claim::set_up(context, name, &source.claim_name, read_only, refresh_at).await;
    }
    if volume.ephemeral.is_some() {
        let claim = persistent_volume_claim::ephemeral_claim(context, name);
        return persistent_volume_claim::set_up(context, name, &claim, false, refresh_at).await;
    }
    if let Some(source) = &volume.nfs {
        return nfs::set_up(context, name, source, &[], false).await;
    }
    if let Some(source) = csi::Source::inline(context.pod, volume) {
        let request = csi::Request { volume: name, source, bound: None };
        let (mounted, look_again) = context.csi.set_up(context, &request).await?;
        earlier(refresh_at, look_again);
        return Ok(mounted);
    }
    Err(Error::pod("no volume plugin matched: this type of volume is not supported by this node"))
}

/// Keeps the earlier of two times.
fn earlier(at: &mut Option<Timestamp>, other: Option<Timestamp>) {
    *at = [*at, other].into_iter().flatten().min();
}

/// The directory of `local` volumes in a pod's directory.
pub const LOCAL_VOLUME: &str = "kubernetes.io~local-volume";

/// The medium of a volume's files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Medium {
    Disk,
    Memory,
}

/// Returns the directory of a volume in upstream's layout.
fn volume_dir(context: &Context<'_>, plugin: &str, name: &str) -> PathBuf {
    context.pod_dir.join("volumes").join(plugin).join(name)
}

fn write_payload(
    context: &Context<'_>,
    plugin: &str,
    name: &str,
    medium: Medium,
    payload: &Payload,
) -> Result<Mounted> {
    let path = volume_dir(context, plugin, name);
    std::fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
    if medium == Medium::Memory {
        empty_dir::mount_tmpfs(&path, None)?;
    }
    let group = fs_group::fs_group(context.pod);
    atomic_writer::write(&path, payload, group)?;
    Ok(Mounted { writable: false, ..Mounted::writable(path) })
}

fn mode(mode: Option<i32>, default: u32) -> u32 {
    mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default) & 0o777
}

/// Reads a ConfigMap or Secret; `None` if it is optional and does not exist.
async fn read<K: Typed>(context: &Context<'_>, name: &str, optional: bool) -> Result<Option<K>> {
    match context.client.get(spec::namespace(context.pod), name).await.map_err(Error::from) {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() && optional => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the keys of a ConfigMap or Secret as files: all of them, or those in `items`.
fn project_keys(
    data: &BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    default_mode: u32,
    optional: bool,
) -> Result<Payload> {
    let mut payload = Payload::new();
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        for (key, content) in data {
            payload.insert(key.clone(), File { content: content.clone(), mode: default_mode, owner: None });
        }
        return Ok(payload);
    };
    for item in items {
        match data.get(&item.key) {
            Some(content) => {
                let mode = mode(item.mode, default_mode);
                payload.insert(item.path.clone(), File { content: content.clone(), mode, owner: None });
            }
            None if optional => {}
            None => return Err(Error::pod(format!("references non-existent config key: {}", item.key))),
        }
    }
    Ok(payload)
}

/// Returns the ConfigMaps and Secrets whose changes the pod's volumes must show.
pub fn references(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let mut config_maps = Vec::new();
    let mut secrets = Vec::new();
    for volume in spec::spec(pod).volumes.iter().flatten() {
        config_maps.extend(volume.config_map.as_ref().map(|source| source.name.clone()));
        secrets.extend(volume.secret.as_ref().and_then(|source| source.secret_name.clone()));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            config_maps.extend(source.config_map.as_ref().map(|source| source.name.clone()));
            secrets.extend(source.secret.as_ref().map(|source| source.name.clone()));
        }
    }
    (config_maps, secrets)
}
