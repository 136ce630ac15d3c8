//! Changed blocks: nothing that has data or differs is left out, and a small change is a small part.

use std::os::unix::fs::FileExt;

use corten_plugins::csi;
use tonic::Code;

use crate::harness::{Driver, MIB, capability, from_snapshot, volume};

const SIZE: i64 = 32 * MIB;
const BLOCK: usize = 4096;

/// Returns the parts of a snapshot with data, in messages of at most three.
async fn allocated(driver: &Driver, snapshot_id: &str, starting_offset: i64) -> Vec<csi::BlockMetadata> {
    let request = csi::GetMetadataAllocatedRequest {
        snapshot_id: snapshot_id.to_owned(),
        starting_offset,
        max_results: 3,
        ..csi::GetMetadataAllocatedRequest::default()
    };
    let mut messages = driver.snapshot_metadata().get_metadata_allocated(request).await.unwrap().into_inner();
    let mut parts = Vec::new();
    while let Some(message) = messages.message().await.unwrap() {
        assert_eq!(message.volume_capacity_bytes, SIZE);
        assert!(message.block_metadata.len() <= 3, "{message:?}");
        parts.extend(message.block_metadata);
    }
    parts
}

/// Returns the parts in which two snapshots differ.
async fn changed(driver: &Driver, base: &str, target: &str) -> Vec<csi::BlockMetadata> {
    let request = csi::GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        ..csi::GetMetadataDeltaRequest::default()
    };
    let mut messages = driver.snapshot_metadata().get_metadata_delta(request).await.unwrap().into_inner();
    let mut parts = Vec::new();
    while let Some(message) = messages.message().await.unwrap() {
        parts.extend(message.block_metadata);
    }
    parts
}

fn covers(parts: &[csi::BlockMetadata], offset: usize) -> bool {
    let offset = i64::try_from(offset).unwrap();
    parts.iter().any(|part| part.byte_offset <= offset && offset < part.byte_offset + part.size_bytes)
}

fn bytes_of(parts: &[csi::BlockMetadata]) -> i64 {
    assert!(parts.is_sorted_by(|one, next| one.byte_offset + one.size_bytes <= next.byte_offset), "{parts:?}");
    parts.iter().map(|part| part.size_bytes).sum()
}

/// Returns the content of a snapshot, by a volume that is made of it.
async fn content(driver: &Driver, snapshot_id: &str) -> Vec<u8> {
    let name = format!("of-{snapshot_id}");
    let restored = driver.create(from_snapshot(volume(&name, SIZE, None), snapshot_id)).await.unwrap();
    let device = driver.publish(&restored.volume_id, &capability(None)).await.unwrap();
    let mut content = vec![0; SIZE as usize];
    std::fs::File::open(device).unwrap().read_exact_at(&mut content, 0).unwrap();
    driver.unpublish(&restored.volume_id).await.unwrap();
    driver.delete(&restored.volume_id).await.unwrap();
    content
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_blocks_of_snapshots_are_complete_and_few() {
    let Some(driver) = Driver::start().await else { return };
    let created = driver.create(volume("source", SIZE, None)).await.unwrap();
    let device = driver.publish(&created.volume_id, &capability(None)).await.unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&device).unwrap();
    let write = |block: u64, content: u8| {
        file.write_all_at(&[content; BLOCK], block * BLOCK as u64).unwrap();
        file.sync_all().unwrap();
    };
    for block in (0..2048).step_by(16) {
        write(block, 1);
    }
    let first = driver.snapshot("first", &created.volume_id).await.unwrap().snapshot_id;
    for block in [0, 17, 160, 4000, 8191] {
        write(block, 2);
    }
    let second = driver.snapshot("second", &created.volume_id).await.unwrap().snapshot_id;

    let old = content(&driver, &first).await;
    let new = content(&driver, &second).await;
    let with_data = allocated(&driver, &first, 0).await;
    let differing = changed(&driver, &first, &second).await;
    for offset in (0..SIZE as usize).step_by(BLOCK) {
        let of_old = &old[offset..offset + BLOCK];
        assert!(of_old.iter().all(|byte| *byte == 0) || covers(&with_data, offset), "{offset} has data");
        assert!(*of_old == new[offset..offset + BLOCK] || covers(&differing, offset), "{offset} differs");
    }
    assert!(bytes_of(&with_data) < SIZE / 2, "{with_data:?}");
    assert!(bytes_of(&differing) <= MIB, "{differing:?}");
    assert!(!differing.is_empty() && changed(&driver, &first, &first).await.is_empty());
    let late = allocated(&driver, &first, 5 * MIB).await;
    assert!(late.iter().all(|part| part.byte_offset >= 5 * MIB) && covers(&late, 5 * MIB as usize), "{late:?}");
    questions_without_an_answer(&driver, &first).await;

    drop(file);
    driver.unpublish(&created.volume_id).await.unwrap();
    driver.delete(&created.volume_id).await.unwrap();
    driver.wait_for_no_devices().await;
}

async fn questions_without_an_answer(driver: &Driver, snapshot: &str) {
    let other = driver.create(volume("other", SIZE, None)).await.unwrap();
    let device = driver.publish(&other.volume_id, &capability(None)).await.unwrap();
    std::fs::write(device, b"x").unwrap();
    let foreign = driver.snapshot("foreign", &other.volume_id).await.unwrap().snapshot_id;
    driver.unpublish(&other.volume_id).await.unwrap();
    for (snapshot_id, starting_offset, max_results, expected) in [
        ("", 0, 0, Code::InvalidArgument),
        ("none", 0, 0, Code::NotFound),
        (snapshot, SIZE, 0, Code::OutOfRange),
        (snapshot, -1, 0, Code::OutOfRange),
        (snapshot, 0, -1, Code::InvalidArgument),
    ] {
        let request = csi::GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id.to_owned(),
            starting_offset,
            max_results,
            ..csi::GetMetadataAllocatedRequest::default()
        };
        let refused = driver.snapshot_metadata().get_metadata_allocated(request).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
    }
    for (base, target, expected) in [
        ("", snapshot, Code::InvalidArgument),
        (snapshot, "", Code::InvalidArgument),
        ("none", snapshot, Code::NotFound),
        (foreign.as_str(), snapshot, Code::InvalidArgument),
    ] {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            ..csi::GetMetadataDeltaRequest::default()
        };
        let refused = driver.snapshot_metadata().get_metadata_delta(request).await.unwrap_err();
        assert_eq!(refused.code(), expected, "{refused}");
    }
}
