//! A driver of its own for a test: a process, its pool, and clients over its socket. Everything ends with it, also when
//! the test fails: the process, its mounts and its loop devices.

use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use corten_plugins::csi;
use csi::controller_client::ControllerClient;
use csi::group_controller_client::GroupControllerClient;
use csi::node_client::NodeClient;
use csi::snapshot_metadata_client::SnapshotMetadataClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use nix::mount::{MsFlags, mount};
use nix::sched::CloneFlags;
use tempfile::TempDir;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tonic::Status;
use tonic::transport::Channel;

pub const MIB: i64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Drivers in a mount namespace of their own run alone: the namespace would hold the mounts of the other tests.
static NAMESPACES: RwLock<()> = RwLock::const_new(());

pub struct Driver {
    root: TempDir,
    child: Child,
    channel: Channel,
    _others: Option<RwLockReadGuard<'static, ()>>,
    _alone: Option<RwLockWriteGuard<'static, ()>>,
}

/// Reports why this machine cannot run the tests, if it cannot.
pub fn unavailable() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("skipped: only root has loop devices and mounts".into());
    }
    let missing = ["mkfs.xfs", "mkfs.ext4"].into_iter().find(|name| programs(name).is_empty());
    let no_loops = || (!Path::new("/dev/loop-control").exists()).then(|| "skipped: no loop devices".to_owned());
    missing.map(|name| format!("skipped: {name} is not installed")).or_else(no_loops)
}

/// Returns all paths at which the driver may find a program.
pub fn programs(name: &str) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let further = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let all = std::env::split_paths(&path).chain(further).map(|directory| directory.join(name));
    all.filter(|program| program.is_file()).collect()
}

impl Driver {
    /// Starts a driver, or explains why not.
    pub async fn start() -> Option<Driver> {
        Driver::start_without(Vec::new()).await
    }

    /// Starts a driver that does not find some files of the machine. Its mounts are its own.
    pub async fn start_without(hidden: Vec<PathBuf>) -> Option<Driver> {
        if let Some(why) = unavailable() {
            eprintln!("{why}");
            return None;
        }
        let mut others = None;
        let mut alone = None;
        match hidden.is_empty() {
            true => others = Some(NAMESPACES.read().await),
            false => alone = Some(NAMESPACES.write().await),
        }
        let root = tempfile::tempdir().unwrap();
        let child = spawn(root.path(), hidden);
        let channel = corten_plugins::connect_lazy(&root.path().join("csi.sock")).unwrap();
        let driver = Driver { root, child, channel, _others: others, _alone: alone };
        driver.ready().await;
        Some(driver)
    }

    pub fn pool(&self) -> PathBuf {
        self.root.path().join("pool")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Waits until the driver answers.
    async fn ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        let request = || csi::GetCapacityRequest::default();
        while let Err(error) = self.controller().get_capacity(request()).await {
            assert!(Instant::now() < deadline, "the driver does not answer: {error}");
            tokio::task::yield_now().await;
        }
    }

    /// Kills the driver as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Starts the driver again.
    pub async fn restart(&mut self) {
        self.child = spawn(self.root.path(), Vec::new());
        self.ready().await;
    }

    pub fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub fn group_controller(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub fn snapshot_metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    pub fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    pub async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        Ok(self.controller().create_volume(request).await?.into_inner().volume.unwrap())
    }

    pub async fn delete(&self, volume_id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest { volume_id: volume_id.into(), secrets: HashMap::new() };
        self.controller().delete_volume(request).await.map(drop)
    }

    pub async fn snapshot(&self, name: &str, source: &str) -> Result<csi::Snapshot, Status> {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: source.into(),
            name: name.into(),
            ..csi::CreateSnapshotRequest::default()
        };
        Ok(self.controller().create_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    pub async fn delete_snapshot(&self, snapshot_id: &str) -> Result<(), Status> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: snapshot_id.into(), secrets: HashMap::new() };
        self.controller().delete_snapshot(request).await.map(drop)
    }

    /// Stages and publishes a volume; returns the path for its pod.
    pub async fn publish(&self, id: &str, capability: &csi::VolumeCapability) -> Result<PathBuf, Status> {
        let staging = self.path("staging").join(id);
        let target = self.path("pods").join(id).join("volume");
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: staging.display().to_string(),
            volume_capability: Some(capability.clone()),
            ..csi::NodeStageVolumeRequest::default()
        };
        self.node().node_stage_volume(request).await?;
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.into(),
            staging_target_path: staging.display().to_string(),
            target_path: target.display().to_string(),
            volume_capability: Some(capability.clone()),
            ..csi::NodePublishVolumeRequest::default()
        };
        self.node().node_publish_volume(request).await?;
        Ok(target)
    }

    /// Undoes [`Driver::publish`].
    pub async fn unpublish(&self, id: &str) -> Result<(), Status> {
        let staging_target_path = self.path("staging").join(id).display().to_string();
        let target_path = self.path("pods").join(id).join("volume").display().to_string();
        let request = csi::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path };
        self.node().node_unpublish_volume(request).await?;
        let request = csi::NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        self.node().node_unstage_volume(request).await.map(drop)
    }

    /// Returns the names of the files of all volumes and snapshots.
    pub fn data(&self) -> Vec<String> {
        let directories = [self.pool().join("files"), self.pool().join("pool/files")];
        let entries = directories.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Returns the ids of all volumes, page by page.
    pub async fn volumes(&self) -> Vec<String> {
        let mut ids = Vec::new();
        let mut starting_token = String::new();
        loop {
            let request = csi::ListVolumesRequest { max_entries: 2, starting_token };
            let page = self.controller().list_volumes(request).await.unwrap().into_inner();
            ids.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            if page.next_token.is_empty() {
                return ids;
            }
            starting_token = page.next_token;
        }
    }

    /// Returns the ids of all snapshots.
    pub async fn snapshots(&self) -> Vec<String> {
        let page = self.controller().list_snapshots(csi::ListSnapshotsRequest::default()).await.unwrap().into_inner();
        page.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
    }

    /// Waits until no volume has a device: a namespace that another process made may hold one for a while.
    pub async fn wait_for_no_devices(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.devices().is_empty() {
            assert!(Instant::now() < deadline, "devices are left: {:?}", self.devices());
            tokio::task::yield_now().await;
        }
    }

    /// Returns the loop devices below the test's directory, without the pool's own.
    fn devices(&self) -> Vec<String> {
        let own = self.root.path().display().to_string();
        let entries = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter_map(|path| std::fs::read_to_string(path.join("loop/backing_file")).ok());
        files.filter(|file| file.starts_with(&own) && !file.contains("pool.img")).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = corten_storage_driver::detach(&self.pool()) {
            eprintln!("not cleaned up: {error}");
        }
    }
}

/// Starts the example `driver`, which lies beside this test.
fn spawn(root: &Path, hidden: Vec<PathBuf>) -> Child {
    let own = std::env::current_exe().unwrap();
    let program = own.parent().unwrap().parent().unwrap().join("examples/driver");
    let mut command = Command::new(program);
    command.arg(root.join("pool")).arg(root.join("csi.sock"));
    if !hidden.is_empty() {
        // SAFETY: the calls are system calls on paths that exist already, which allocate nothing of note between fork and exec.
        unsafe { command.pre_exec(move || hide(&hidden)) };
    }
    command.spawn().unwrap()
}

/// Puts /dev/null over files, in a mount namespace of this process.
fn hide(paths: &[PathBuf]) -> std::io::Result<()> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    for path in paths {
        mount(Some("/dev/null"), path.as_path(), none, MsFlags::MS_BIND, none)?;
    }
    Ok(())
}

/// Returns a capability for one node; without a file system it is a block device.
pub fn capability(file_system: Option<&str>) -> csi::VolumeCapability {
    let access_type = match file_system {
        Some(name) => AccessType::Mount(MountVolume { fs_type: name.into(), ..MountVolume::default() }),
        None => AccessType::Block(BlockVolume {}),
    };
    let mode = Mode::SingleNodeMultiWriter as i32;
    csi::VolumeCapability { access_mode: Some(AccessMode { mode }), access_type: Some(access_type) }
}

/// Returns the request for a volume.
pub fn volume(name: &str, bytes: i64, file_system: Option<&str>) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability(file_system)],
        ..csi::CreateVolumeRequest::default()
    }
}

pub fn from_snapshot(request: csi::CreateVolumeRequest, id: &str) -> csi::CreateVolumeRequest {
    let source = Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
    csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
        ..request
    }
}

pub fn from_volume(request: csi::CreateVolumeRequest, id: &str) -> csi::CreateVolumeRequest {
    let source = Type::Volume(VolumeSource { volume_id: id.into() });
    csi::CreateVolumeRequest {
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
        ..request
    }
}
