//! A driver that is killed at random moments loses nothing that it has answered, and leaks nothing.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::harness::{Driver, MIB, capability, from_snapshot, from_volume, volume};

const ROUNDS: u64 = 12;
/// The longest time from a restart to the next kill.
const LONGEST: u64 = 400;

/// The things that the driver has confirmed: names and ids.
#[derive(Default)]
struct Known {
    volumes: BTreeMap<String, String>,
    snapshots: BTreeMap<String, String>,
}

/// A small generator, so that a seed repeats a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Creates, clones, snapshots and deletes until the driver is gone; returns what may or may not have happened.
async fn work(driver: &Driver, known: &mut Known, random: &mut Random, source: &str) -> Option<String> {
    let mut number = 0;
    loop {
        number += 1;
        let name = format!("{}-{number}", random.0);
        let wanted = volume(&name, 16 * MIB, Some("ext4"));
        let snapshot = known.snapshots.iter().next().map(|(name, id)| (name.clone(), id.clone()));
        let existing = known.volumes.iter().next().map(|(name, id)| (name.clone(), id.clone()));
        let done = match (random.below(6), snapshot, existing) {
            (0, _, _) => driver.create(wanted).await.map(|made| known.volumes.insert(name.clone(), made.volume_id)),
            (1, _, _) => {
                let created = driver.create(from_volume(wanted, source)).await;
                created.map(|made| known.volumes.insert(name.clone(), made.volume_id))
            }
            (2, Some((_, id)), _) => {
                let created = driver.create(from_snapshot(wanted, &id)).await;
                created.map(|made| known.volumes.insert(name.clone(), made.volume_id))
            }
            (3, _, Some((old, id))) => {
                known.volumes.remove(&old);
                driver.delete(&id).await.map(|()| None)
            }
            (4, Some((old, id)), _) => {
                known.snapshots.remove(&old);
                driver.delete_snapshot(&id).await.map(|()| None)
            }
            _ => {
                let taken = driver.snapshot(&name, source).await;
                taken.map(|taken| known.snapshots.insert(name.clone(), taken.snapshot_id))
            }
        };
        if let Err(error) = done {
            return Some(error.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_driver_loses_nothing_and_leaks_nothing() {
    let Some(mut driver) = Driver::start().await else { return };
    let mut random = Random(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    eprintln!("seed {}", random.0);
    let mut known = Known::default();
    let source = driver.create(volume("source", 16 * MIB, Some("ext4"))).await.unwrap().volume_id;
    let target = driver.publish(&source, &capability(Some("ext4"))).await.unwrap();
    std::fs::write(target.join("file"), b"content").unwrap();
    for _ in 0..ROUNDS {
        let pause = Duration::from_millis(random.below(LONGEST));
        let _ = tokio::time::timeout(pause, work(&driver, &mut known, &mut random, &source)).await;
        driver.kill();
        driver.restart().await;
        // Whatever the driver did last, the volume in use goes on: it is not frozen.
        let file = std::fs::OpenOptions::new().write(true).open(target.join("file")).unwrap();
        file.write_all_at(b"content", 0).unwrap();
        file.sync_all().unwrap();
        let volumes = driver.volumes().await;
        let snapshots = driver.snapshots().await;
        let lost: Vec<&String> = known.volumes.values().filter(|id| !volumes.contains(id)).collect();
        assert!(lost.is_empty() && volumes.contains(&source), "volumes {lost:?} are lost");
        let lost: Vec<&String> = known.snapshots.values().filter(|id| !snapshots.contains(id)).collect();
        assert!(lost.is_empty(), "snapshots {lost:?} are lost");
        let mut expected: Vec<String> = volumes.iter().chain(&snapshots).map(|id| format!("{id}.img")).collect();
        expected.sort();
        assert_eq!(driver.data(), expected, "the data are those of the records");
    }
    driver.unpublish(&source).await.unwrap();
    for id in driver.snapshots().await {
        driver.delete_snapshot(&id).await.unwrap();
    }
    for id in driver.volumes().await {
        driver.delete(&id).await.unwrap();
    }
    assert!(driver.data().is_empty() && driver.devices().is_empty(), "{:?} {:?}", driver.data(), driver.devices());
}
