//! The driver as a process, over its socket, with real loop devices and file systems.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod crash;
mod harness;
mod metadata;
mod writer;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use corten_plugins::csi;
use harness::{Driver, MIB, capability, from_snapshot, from_volume, programs, volume};
use tonic::Code;

fn total_bytes(path: &Path) -> i64 {
    let found = nix::sys::statvfs::statvfs(path).unwrap();
    (found.blocks() * found.fragment_size()).cast_signed()
}

fn write_synced(path: &Path, content: &[u8]) {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_and_clones_have_the_content_of_their_moment() {
    let Some(driver) = Driver::start().await else { return };
    for file_system in ["ext4", "xfs"] {
        let wanted =
            |name: &str, mebibytes| volume(&format!("{file_system}-{name}"), mebibytes * MIB, Some(file_system));
        let capability = capability(Some(file_system));
        let source = driver.create(wanted("source", 400)).await.unwrap();
        let target = driver.publish(&source.volume_id, &capability).await.unwrap();
        write_synced(&target.join("file"), b"first");
        let snapshot = driver.snapshot(&format!("{file_system}-1"), &source.volume_id).await.unwrap();
        assert!(snapshot.ready_to_use);
        write_synced(&target.join("file"), b"second");

        let restored = driver.create(from_snapshot(wanted("restored", 800), &snapshot.snapshot_id)).await.unwrap();
        let clone = driver.create(from_volume(wanted("clone", 400), &source.volume_id)).await.unwrap();
        let at = driver.publish(&restored.volume_id, &capability).await.unwrap();
        assert_eq!(std::fs::read(at.join("file")).unwrap(), b"first");
        assert!(total_bytes(&at) > 600 * MIB, "a larger volume has a larger file system: {}", total_bytes(&at));
        let at = driver.publish(&clone.volume_id, &capability).await.unwrap();
        assert_eq!(std::fs::read(at.join("file")).unwrap(), b"second");

        // The snapshot stays when its volume is deleted.
        driver.unpublish(&source.volume_id).await.unwrap();
        driver.delete(&source.volume_id).await.unwrap();
        let late = driver.create(from_snapshot(wanted("late", 400), &snapshot.snapshot_id)).await.unwrap();
        let at = driver.publish(&late.volume_id, &capability).await.unwrap();
        assert_eq!(std::fs::read(at.join("file")).unwrap(), b"first");
        for id in [&restored.volume_id, &clone.volume_id, &late.volume_id] {
            assert_eq!(driver.delete(id).await.unwrap_err().code(), Code::FailedPrecondition, "in use");
            driver.unpublish(id).await.unwrap();
            driver.delete(id).await.unwrap();
        }
        driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    }
    assert!(driver.data().is_empty(), "{:?}", driver.data());
    driver.wait_for_no_devices().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_full_at_its_size() {
    let Some(driver) = Driver::start().await else { return };
    let created = driver.create(volume("small", 32 * MIB, Some("ext4"))).await.unwrap();
    let target = driver.publish(&created.volume_id, &capability(Some("ext4"))).await.unwrap();
    let file = OpenOptions::new().create_new(true).write(true).open(target.join("large")).unwrap();
    let block = vec![7; MIB as usize];
    let full = (0..64).find_map(|at| file.write_all_at(&block, at * MIB as u64).err()).unwrap();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: created.volume_id.clone(),
        volume_path: target.display().to_string(),
        ..csi::NodeGetVolumeStatsRequest::default()
    };
    let stats = driver.node().node_get_volume_stats(request).await.unwrap().into_inner();
    assert!(stats.usage[0].total <= 32 * MIB && stats.usage[0].available < MIB, "{stats:?}");
    assert!(!stats.volume_condition.unwrap().abnormal);
}

#[tokio::test(flavor = "multi_thread")]
async fn block_volumes_are_cloned_as_they_are() {
    let Some(driver) = Driver::start().await else { return };
    let created = driver.create(volume("block", 16 * MIB, None)).await.unwrap();
    let device = driver.publish(&created.volume_id, &capability(None)).await.unwrap();
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    open(&device).write_all_at(b"raw data", 8 * MIB as u64).unwrap();
    open(&device).sync_all().unwrap();
    let snapshot = driver.snapshot("block", &created.volume_id).await.unwrap();
    let restored = driver.create(from_snapshot(volume("copy", 0, None), &snapshot.snapshot_id)).await.unwrap();
    assert_eq!(restored.capacity_bytes, 16 * MIB);
    let copy = driver.publish(&restored.volume_id, &capability(None)).await.unwrap();
    let mut read = [0; 8];
    open(&copy).read_exact_at(&mut read, 8 * MIB as u64).unwrap();
    assert_eq!(&read, b"raw data");
    // The data of a device are never overwritten by a file system.
    let mounted = from_snapshot(volume("mounted", 0, Some("ext4")), &snapshot.snapshot_id);
    let mounted = driver.create(mounted).await.unwrap();
    let refused = driver.publish(&mounted.volume_id, &capability(Some("ext4"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for id in [&created.volume_id, &restored.volume_id] {
        driver.unpublish(id).await.unwrap();
    }
    driver.wait_for_no_devices().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_grow() {
    let Some(driver) = Driver::start().await else { return };
    for (file_system, online) in [("xfs", true), ("ext4", false)] {
        let capability = capability(Some(file_system));
        let created = driver.create(volume(file_system, 400 * MIB, Some(file_system))).await.unwrap();
        let id = created.volume_id;
        let target = driver.publish(&id, &capability).await.unwrap();
        write_synced(&target.join("file"), b"kept");
        let range = Some(csi::CapacityRange { required_bytes: 800 * MIB, limit_bytes: 0 });
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: range,
            ..csi::ControllerExpandVolumeRequest::default()
        };
        let expanded = driver.controller().controller_expand_volume(request).await.unwrap().into_inner();
        assert_eq!((expanded.capacity_bytes, expanded.node_expansion_required), (800 * MIB, true));
        let request = csi::NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: target.display().to_string(),
            ..csi::NodeExpandVolumeRequest::default()
        };
        let grown = driver.node().node_expand_volume(request).await;
        if online {
            grown.unwrap();
        } else if let Err(error) = grown {
            // The kernel lets only some processes grow a mounted ext4; then the next use does.
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
            driver.unpublish(&id).await.unwrap();
            driver.publish(&id, &capability).await.unwrap();
        }
        assert!(total_bytes(&target) > 600 * MIB, "{file_system}: {}", total_bytes(&target));
        assert_eq!(std::fs::read(target.join("file")).unwrap(), b"kept");
        driver.unpublish(&id).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_promised_that_is_not_there() {
    let Some(driver) = Driver::start().await else { return };
    let capacity = || async {
        let answer = driver.controller().get_capacity(csi::GetCapacityRequest::default()).await;
        answer.unwrap().into_inner().available_capacity
    };
    let created = driver.create(volume("first", 1 << 30, Some("ext4"))).await.unwrap();
    let before = capacity().await;
    let refused = driver.create(volume("all", before + (1 << 30), Some("ext4"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let other = driver.create(volume("second", 1 << 30, Some("ext4"))).await.unwrap();
    let after = capacity().await;
    assert!(before - after > 900 * MIB, "{before} {after}");
    driver.delete(&created.volume_id).await.unwrap();
    driver.delete(&other.volume_id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inline_volume_ends_with_its_pod() {
    let Some(driver) = Driver::start().await else { return };
    let id = format!("csi-{}", "0f".repeat(32));
    let target = driver.path("pods/inline").display().to_string();
    let attribute = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let request = csi::NodePublishVolumeRequest {
        volume_id: id.clone(),
        target_path: target.clone(),
        volume_capability: Some(capability(Some(""))),
        volume_context: [attribute("csi.storage.k8s.io/ephemeral", "true"), attribute("size", "64Mi")].into(),
        ..csi::NodePublishVolumeRequest::default()
    };
    driver.node().node_publish_volume(request.clone()).await.unwrap();
    driver.node().node_publish_volume(request).await.unwrap();
    assert!(total_bytes(Path::new(&target)) <= 64 * MIB);
    assert!(driver.volumes().await.is_empty(), "no controller knows inline volumes");
    assert_eq!(driver.data().len(), 1);
    let request = csi::NodeUnpublishVolumeRequest { volume_id: id, target_path: target };
    driver.node().node_unpublish_volume(request.clone()).await.unwrap();
    driver.node().node_unpublish_volume(request).await.unwrap();
    assert!(driver.data().is_empty());
    driver.wait_for_no_devices().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_mkfs_xfs_volumes_have_no_snapshots() {
    let Some(driver) = Driver::start_without(programs("mkfs.xfs")).await else { return };
    let created = driver.create(volume("files", 16 * MIB, Some("ext4"))).await.unwrap();
    driver.publish(&created.volume_id, &capability(Some("ext4"))).await.unwrap();
    let refused = driver.snapshot("none", &created.volume_id).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("install xfsprogs"), "{refused}");
    driver.unpublish(&created.volume_id).await.unwrap();
    driver.delete(&created.volume_id).await.unwrap();
    assert!(driver.data().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_loop_devices_volumes_are_directories() {
    let Some(driver) = Driver::start_without(vec!["/dev/loop-control".into()]).await else { return };
    let created = driver.create(volume("directory", 16 * MIB, Some("ext4"))).await.unwrap();
    let id = created.volume_id;
    driver.publish(&id, &capability(Some("ext4"))).await.unwrap();
    assert_eq!(driver.data(), std::slice::from_ref(&id));
    assert_eq!(driver.delete(&id).await.unwrap_err().code(), Code::FailedPrecondition, "in use");
    let refused = driver.create(volume("block", 16 * MIB, None)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    driver.unpublish(&id).await.unwrap();
    driver.delete(&id).await.unwrap();
    assert!(driver.data().is_empty());
}
