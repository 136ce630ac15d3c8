//! The node's half on loop devices, with a `/sys` and a `/dev` of the test. Needs root, losetup and mkfs.ext4.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corten_ebs::{Config, Instance, NodeHalf, Roots};
use corten_plugins::csi;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::harness::map;

const MIB: u64 = 1 << 20;

/// A node whose devices, mounts and directories end with the test.
struct TestNode {
    root: tempfile::TempDir,
    client: NodeClient<Channel>,
    devices: Vec<PathBuf>,
    _shutdown: DropGuard,
}

impl Drop for TestNode {
    fn drop(&mut self) {
        for name in ["pod", "other", "block", "staging"] {
            let _ = Command::new("umount").arg(self.root.path().join(name)).stderr(Stdio::null()).status();
        }
        for device in &self.devices {
            let _ = Command::new("losetup").arg("-d").arg(device).status();
        }
    }
}

impl TestNode {
    /// Starts a node; none, with a sentence, where there are no loop devices.
    async fn start() -> Option<TestNode> {
        let can = Command::new("losetup").arg("-f").output().is_ok_and(|output| output.status.success());
        if !can {
            eprintln!("skipped: there are no loop devices");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let roots = Roots { sys: root.path().join("sys"), dev: root.path().join("dev") };
        std::fs::create_dir_all(roots.sys.join("block")).unwrap();
        std::fs::create_dir_all(&roots.dev).unwrap();
        let instance = Instance { id: "i-0123".to_owned(), zone: "eu-central-1b".to_owned(), most_volumes: 26 };
        let socket = root.path().join("csi.sock");
        let config = Config {
            controller: None,
            node: Some(NodeHalf::new(instance, roots)),
            socket: socket.clone(),
            registration: None,
        };
        let shutdown = CancellationToken::new();
        let running = corten_ebs::run(config, shutdown.clone());
        tokio::spawn(running);
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        let client = NodeClient::new(corten_plugins::connect_lazy(&socket).unwrap());
        Some(TestNode { root, client, devices: Vec::new(), _shutdown: shutdown.drop_guard() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Attaches an empty volume as a device of a name, as on Xen; returns its loop device.
    fn attach_by_name(&mut self, volume: &str, name: &str) -> PathBuf {
        let file = self.path(volume);
        File::create(&file).unwrap().set_len(64 * MIB).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(&file).output().unwrap();
        let device = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        std::os::unix::fs::symlink(&device, self.path("dev").join(name)).unwrap();
        self.devices.push(device.clone());
        device
    }

    /// Attaches an empty volume as an NVMe device; returns its loop device.
    fn attach(&mut self, volume: &str, number: usize) -> PathBuf {
        let name = format!("nvme{number}n1");
        let directory = self.path("sys").join("block").join(&name).join("device");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("serial"), format!("{}\n", volume.replace('-', ""))).unwrap();
        self.attach_by_name(volume, &name)
    }

    /// Doubles the size of a volume, as a modification does.
    fn double(&self, volume: &str, device: &Path) {
        File::options().write(true).open(self.path(volume)).unwrap().set_len(128 * MIB).unwrap();
        assert!(Command::new("losetup").arg("-c").arg(device).status().unwrap().success());
    }

    async fn stage(&mut self, volume: &str, capability: csi::VolumeCapability) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: map(&[("devicePath", "/dev/xvdba")]),
            staging_target_path: self.text("staging"),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.client.node_stage_volume(request).await.map(drop)
    }

    async fn unstage(&mut self, volume: &str) -> Result<(), Status> {
        let request =
            csi::NodeUnstageVolumeRequest { volume_id: volume.to_owned(), staging_target_path: self.text("staging") };
        self.client.node_unstage_volume(request).await.map(drop)
    }

    async fn publish(&mut self, volume: &str, target: &str, capability: csi::VolumeCapability) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            publish_context: map(&[("devicePath", "/dev/xvdba")]),
            staging_target_path: self.text("staging"),
            target_path: self.text(target),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.client.node_publish_volume(request).await.map(drop)
    }

    async fn unpublish(&mut self, volume: &str, target: &str) -> Result<(), Status> {
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume.to_owned(), target_path: self.text(target) };
        self.client.node_unpublish_volume(request).await.map(drop)
    }

    /// Returns the total bytes of a volume at a path.
    async fn total(&mut self, volume: &str, path: &str) -> Result<i64, Status> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.to_owned(),
            volume_path: self.text(path),
            ..Default::default()
        };
        Ok(self.client.node_get_volume_stats(request).await?.into_inner().usage[0].total)
    }

    async fn expand(&mut self, volume: &str, path: &str) -> Result<i64, Status> {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume.to_owned(),
            volume_path: self.text(path),
            ..Default::default()
        };
        Ok(self.client.node_expand_volume(request).await?.into_inner().capacity_bytes)
    }
}

fn capability(access_type: AccessType) -> csi::VolumeCapability {
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter as i32 });
    csi::VolumeCapability { access_type: Some(access_type), access_mode }
}

fn mounted() -> csi::VolumeCapability {
    capability(AccessType::Mount(MountVolume { fs_type: "ext4".to_owned(), ..MountVolume::default() }))
}

fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_formatted_once_mounted_and_grown() {
    let Some(mut node) = TestNode::start().await else { return };
    let info = node.client.node_get_info(csi::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("i-0123", 26));
    let zones = info.accessible_topology.unwrap().segments;
    assert_eq!(zones["topology.ebs.csi.aws.com/zone"], zones["topology.kubernetes.io/zone"]);

    let device = node.attach("vol-0a", 1);
    node.attach("vol-0b", 2);
    for _ in 0..2 {
        node.stage("vol-0a", mounted()).await.unwrap();
        node.publish("vol-0a", "pod", mounted()).await.unwrap();
    }
    let error = node.stage("vol-0b", mounted()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "another volume is mounted there: {error}");
    std::fs::write(node.path("pod").join("file"), "data").unwrap();
    let before = node.total("vol-0a", "pod").await.unwrap();
    assert!(before > 40 << 20, "{before}");
    assert_eq!(node.total("vol-0b", "pod").await.unwrap_err().code(), Code::NotFound);

    node.double("vol-0a", &device);
    match node.expand("vol-0a", "pod").await {
        Ok(bytes) => assert_eq!(bytes, 128 << 20),
        // The kernel lets this process not grow what is mounted: the next staging does it.
        Err(error) => assert_eq!(error.code(), Code::FailedPrecondition, "{error}"),
    }
    for _ in 0..2 {
        node.unpublish("vol-0a", "pod").await.unwrap();
        node.unstage("vol-0a").await.unwrap();
    }
    assert!(!node.path("pod").exists() && !is_mounted(&node.path("staging")));
    node.stage("vol-0a", mounted()).await.unwrap();
    node.publish("vol-0a", "pod", mounted()).await.unwrap();
    let after = node.total("vol-0a", "pod").await.unwrap();
    assert!(after > 2 * before - (16 << 20), "{after}");
    assert_eq!(std::fs::read_to_string(node.path("pod").join("file")).unwrap(), "data", "it is formatted once");
    node.unpublish("vol-0a", "pod").await.unwrap();
    node.unstage("vol-0a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn block_devices_are_bound_and_data_of_others_are_not_formatted() {
    let Some(mut node) = TestNode::start().await else { return };
    node.attach("vol-0c", 3);
    let block = || capability(AccessType::Block(BlockVolume {}));
    for _ in 0..2 {
        node.stage("vol-0c", block()).await.unwrap();
        node.publish("vol-0c", "block", block()).await.unwrap();
    }
    assert!(std::fs::metadata(node.path("block")).unwrap().file_type().is_block_device());
    assert_eq!(node.total("vol-0c", "block").await.unwrap(), 64 << 20);
    // A partition table.
    let disk = File::options().write(true).open(node.path("block")).unwrap();
    disk.write_all_at(&[0, 0, 2, 0, 0x83, 1, 1, 0, 1, 0, 0, 0, 16, 0, 0, 0], 446).unwrap();
    disk.write_all_at(&[0x55, 0xaa], 510).unwrap();
    disk.sync_all().unwrap();
    drop(disk);
    node.unpublish("vol-0c", "block").await.unwrap();
    node.unstage("vol-0c").await.unwrap();
    let error = node.stage("vol-0c", mounted()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().ends_with("holds data that are neither ext4 nor xfs, and is not formatted"), "{error}");
    let mut wrong = mounted();
    wrong.access_mode = Some(AccessMode { mode: Mode::MultiNodeMultiWriter as i32 });
    assert_eq!(node.stage("vol-0c", wrong).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_found_by_its_name_is_measured_and_grown() {
    let Some(mut node) = TestNode::start().await else { return };
    let device = node.attach_by_name("vol-0d", "xvdba");
    node.stage("vol-0d", mounted()).await.unwrap();
    node.publish("vol-0d", "pod", mounted()).await.unwrap();
    let before = node.total("vol-0d", "pod").await.unwrap();
    node.double("vol-0d", &device);
    match node.expand("vol-0d", "pod").await {
        Ok(bytes) => assert_eq!(bytes, 128 << 20),
        Err(error) => assert_eq!(error.code(), Code::FailedPrecondition, "the kernel forbids it: {error}"),
    }
    node.unpublish("vol-0d", "pod").await.unwrap();
    assert_eq!(node.expand("vol-0d", "pod").await.unwrap_err().code(), Code::NotFound);
    node.unstage("vol-0d").await.unwrap();
    node.stage("vol-0d", mounted()).await.unwrap();
    let after = node.total("vol-0d", "staging").await.unwrap();
    assert!(after > 2 * before - (16 << 20), "{after}");
    node.unstage("vol-0d").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_one_pod_is_published_once() {
    let Some(mut node) = TestNode::start().await else { return };
    node.attach("vol-0e", 5);
    let single = || csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeSingleWriter as i32 }),
        ..mounted()
    };
    node.stage("vol-0e", single()).await.unwrap();
    for _ in 0..2 {
        node.publish("vol-0e", "pod", single()).await.unwrap();
    }
    let error = node.publish("vol-0e", "other", single()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(!node.path("other").exists());
    node.unpublish("vol-0e", "pod").await.unwrap();
    node.publish("vol-0e", "other", single()).await.unwrap();
    node.unpublish("vol-0e", "other").await.unwrap();
    node.unstage("vol-0e").await.unwrap();
}
