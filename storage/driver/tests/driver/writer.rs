//! Snapshots of volumes that a program writes to: each holds everything that was synced before it, and a group is of one
//! moment.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use corten_plugins::csi;

use crate::harness::{Driver, MIB, capability, from_snapshot, volume};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;

/// Returns the block with a number: every word of it is derived from the number and from its place.
fn block(number: u64) -> Vec<u8> {
    let words = (0..BLOCK as u64 / 8).map(|word| number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes numbered blocks in a ring through both files, the first one first, each synced; confirms the last number.
fn write(files: &[File], confirmed: &AtomicU64, stop: &AtomicBool) {
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        for file in files {
            file.write_all_at(&block(number), number % BLOCKS * BLOCK as u64).unwrap();
            file.sync_data().unwrap();
        }
        confirmed.store(number, Ordering::Release);
    }
}

/// Returns the newest number in a file, after it has checked every block.
fn newest(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let words = |at: u64| {
        let mut bytes = vec![0; BLOCK];
        file.read_exact_at(&mut bytes, at * BLOCK as u64).map(|()| bytes)
    };
    let inverse = 0xF1DE_83E1_9937_733D_u64;
    let mut numbers: Vec<u64> = Vec::new();
    for at in 0..BLOCKS {
        let Ok(bytes) = words(at) else { continue };
        let first = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let number = first.wrapping_mul(inverse);
        if number == 0 {
            continue;
        }
        assert_eq!(bytes, block(number), "a torn block at {at}");
        assert_eq!(number % BLOCKS, at);
        numbers.push(number);
    }
    numbers.sort_unstable();
    let newest = numbers.last().copied().unwrap_or_default();
    let expected: Vec<u64> = (newest.saturating_sub(BLOCKS - 1).max(1)..=newest).collect();
    assert_eq!(numbers, expected, "no block before the newest is missing");
    newest
}

/// Waits until the writer has gone on.
async fn wait_for_more(confirmed: &AtomicU64) -> u64 {
    let before = confirmed.load(Ordering::Acquire);
    while confirmed.load(Ordering::Acquire) < before + 3 {
        tokio::task::yield_now().await;
    }
    confirmed.load(Ordering::Acquire)
}

/// Returns the newest number in the restored snapshot.
async fn newest_of(driver: &Driver, snapshot: &csi::Snapshot) -> u64 {
    let wanted = volume(&format!("restored-{}", snapshot.snapshot_id), 64 * MIB, Some("ext4"));
    let id = driver.create(from_snapshot(wanted, &snapshot.snapshot_id)).await.unwrap().volume_id;
    let target = driver.publish(&id, &capability(Some("ext4"))).await.unwrap();
    let newest = newest(&target.join("ring"));
    driver.unpublish(&id).await.unwrap();
    driver.delete(&id).await.unwrap();
    newest
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_hold_everything_that_was_synced_before_them() {
    let Some(driver) = Driver::start().await else { return };
    assert_eq!(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(0xF1DE_83E1_9937_733D), 1);
    let mut ids = Vec::new();
    let mut files = Vec::new();
    for name in ["first", "second"] {
        let id = driver.create(volume(name, 64 * MIB, Some("ext4"))).await.unwrap().volume_id;
        let target = driver.publish(&id, &capability(Some("ext4"))).await.unwrap();
        files.push(OpenOptions::new().create_new(true).write(true).open(target.join("ring")).unwrap());
        ids.push(id);
    }
    let confirmed = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let confirmed = Arc::clone(&confirmed);
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || write(&files, &confirmed, &stop))
    };
    let mut taken = Vec::new();
    let mut groups = Vec::new();
    for round in 0..4 {
        let before = wait_for_more(&confirmed).await;
        let snapshot = driver.snapshot(&format!("snapshot-{round}"), &ids[0]).await.unwrap();
        let after = confirmed.load(Ordering::Acquire) + 1;
        taken.push((snapshot, before..=after));
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: format!("group-{round}"),
            source_volume_ids: ids.clone(),
            ..csi::CreateVolumeGroupSnapshotRequest::default()
        };
        let group = driver.group_controller().create_volume_group_snapshot(request).await.unwrap().into_inner();
        groups.push(group.group_snapshot.unwrap());
    }
    stop.store(true, Ordering::Release);
    writer.join().unwrap();
    for (snapshot, expected) in taken {
        let newest = newest_of(&driver, &snapshot).await;
        assert!(expected.contains(&newest), "{newest} is not in {expected:?}");
    }
    for group in groups {
        let member = |id: &String| group.snapshots.iter().find(|one| one.source_volume_id == *id).unwrap();
        let first = newest_of(&driver, member(&ids[0])).await;
        let second = newest_of(&driver, member(&ids[1])).await;
        assert!(second == first || second + 1 == first, "{first} and {second} are not of one moment");
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id,
            ..csi::DeleteVolumeGroupSnapshotRequest::default()
        };
        driver.group_controller().delete_volume_group_snapshot(request).await.unwrap();
    }
    assert_eq!(driver.snapshots().await.len(), 4);
}
