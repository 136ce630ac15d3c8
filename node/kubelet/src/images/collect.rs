//! Image garbage collection: when the disk of images is nearly full, images without a container are removed, the least
//! recently used first; also images that were unused for a long time, if configured. An image that is pinned (the
//! runtime's own, or imported by hand) or in use is never removed.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_cri::v1 as cri;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::image_spec;
use crate::config::ImageCollection;
use crate::error::Result;
use crate::events::WARNING;
use crate::pod::observed::InstanceState;
use crate::pod::spec;
use crate::pod::view::Views;
use crate::services::Services;
use crate::stats::room;

/// The interval of collections: upstream's period.
const PERIOD: Duration = Duration::from_secs(300);

/// The times of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    first_seen: Timestamp,
    last_used: Option<Timestamp>,
    size: u64,
    pinned: bool,
}

/// The images of one node and the times of their last use.
#[derive(Clone)]
pub struct ImageCollector {
    services: Arc<Services>,
    views: Views,
    records: Arc<Mutex<HashMap<String, Record>>>,
}

impl ImageCollector {
    pub fn new(services: Arc<Services>, views: Views) -> ImageCollector {
        ImageCollector { services, views, records: Arc::default() }
    }

    /// Collects until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut failed_before = false;
        loop {
            if let Err(error) = self.collect().await {
                warn!(%error, "images not collected");
                // The first failure may be a runtime that has not measured its disk yet.
                if std::mem::replace(&mut failed_before, true) {
                    self.services.api.events.node(WARNING, "ImageGCFailed", &error.to_string());
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    async fn collect(&self) -> Result<()> {
        let now = Timestamp::now();
        let in_use = self.detect(now).await?;
        let policy = &self.services.config.image_collection;
        let old = choose_old(&self.records(), &in_use, policy, now);
        self.remove(&old).await?;
        let Some((used, capacity)) = self.disk().await? else { return Ok(()) };
        let Some(wanted) = bytes_to_free(used, capacity, policy) else { return Ok(()) };
        let (chosen, freed) = choose(&self.records(), &in_use, policy, now, wanted);
        info!(wanted, images = chosen.len(), "the disk of images is nearly full");
        self.remove(&chosen).await?;
        if freed < wanted {
            let message = format!(
                "Insufficient free disk space on the node's image filesystem ({:.1}% of {capacity} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
                used as f64 * 100.0 / capacity as f64,
            );
            self.services.api.events.node(WARNING, "FreeDiskSpaceFailed", &message);
        }
        Ok(())
    }

    /// Removes every image without a container, however full the disk is.
    pub async fn remove_unused(&self) -> Result<()> {
        let now = Timestamp::now();
        let in_use = self.detect(now).await?;
        let whenever = ImageCollection { minimum_age: Duration::ZERO, ..self.services.config.image_collection.clone() };
        let (chosen, _) = choose(&self.records(), &in_use, &whenever, now, u64::MAX);
        self.remove(&chosen).await
    }

    /// Removes exited containers whose pods do not need them any more.
    pub async fn remove_dead_containers(&self) {
        for view in self.views.all() {
            let mut newest: HashSet<&str> = HashSet::new();
            for instance in &view.observed.instances {
                let is_newest = newest.insert(&instance.name);
                if is_newest || instance.state != InstanceState::Exited {
                    continue;
                }
                if let Err(error) = self.services.runtime.client.remove_container(&instance.id).await {
                    warn!(%error, container = instance.id, "an ended container could not be removed");
                }
            }
        }
    }

    /// Updates the records from the runtime; returns the ids of the images in use.
    async fn detect(&self, now: Timestamp) -> Result<HashSet<String>> {
        let runtime = &self.services.runtime.client;
        let images = runtime.list_images().await?;
        let containers = runtime.list_containers(None).await?;
        let mut names: HashSet<String> = containers
            .into_iter()
            .flat_map(|container| {
                let named = container.image.map(|image| image.image);
                [Some(container.image_ref), Some(container.image_id), named].into_iter().flatten()
            })
            .collect();
        for view in self.views.all() {
            let volumes = spec::spec(&view.pod).volumes.iter().flatten();
            for reference in volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref()) {
                let image = runtime.image(image_spec(reference)).await?;
                names.extend(image.map(|image| image.id));
            }
        }
        let in_use: HashSet<String> =
            images.iter().filter(|image| is_named(image, &names)).map(|image| image.id.clone()).collect();
        let mut records = self.lock();
        records.retain(|id, _| images.iter().any(|image| image.id == *id));
        for image in images {
            let used = in_use.contains(&image.id);
            let record = records.entry(image.id).or_insert(Record {
                first_seen: now,
                last_used: None,
                size: image.size,
                pinned: image.pinned,
            });
            (record.size, record.pinned) = (image.size, image.pinned);
            record.last_used = if used { Some(now) } else { record.last_used };
        }
        Ok(in_use)
    }

    async fn remove(&self, ids: &[String]) -> Result<()> {
        for id in ids {
            info!(image = id, "removing an unused image");
            self.services
                .runtime
                .client
                .remove_image(cri::ImageSpec { image: id.clone(), ..Default::default() })
                .await?;
            self.lock().remove(id);
        }
        Ok(())
    }

    /// Returns the used and the usable bytes of the images' disk.
    async fn disk(&self) -> Result<Option<(u64, u64)>> {
        let info = self.services.runtime.client.image_file_systems().await?;
        let mount = info.image_filesystems.first().and_then(|usage| Some(usage.fs_id.as_ref()?.mountpoint.clone()));
        Ok(mount.and_then(|mount| room(Path::new(&mount))))
    }

    fn records(&self) -> HashMap<String, Record> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_named(image: &cri::Image, names: &HashSet<String>) -> bool {
    names.contains(&image.id) || image.repo_tags.iter().chain(&image.repo_digests).any(|name| names.contains(name))
}

/// Returns the bytes to free down to the low threshold; none below the high threshold.
fn bytes_to_free(used: u64, capacity: u64, policy: &ImageCollection) -> Option<u64> {
    let percent = |part: u64| part.saturating_mul(100) / capacity.max(1);
    if capacity == 0 || policy.high_threshold_percent >= 100 || percent(used) < u64::from(policy.high_threshold_percent)
    {
        return None;
    }
    Some(used.saturating_sub(capacity / 100 * u64::from(policy.low_threshold_percent)))
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// Returns the images to remove, the least recently used first, and the bytes that this frees.
fn choose(
    records: &HashMap<String, Record>,
    in_use: &HashSet<String>,
    policy: &ImageCollection,
    now: Timestamp,
    wanted: u64,
) -> (Vec<String>, u64) {
    let mut candidates: Vec<(&String, &Record)> =
        records.iter().filter(|(id, record)| !record.pinned && !in_use.contains(*id)).collect();
    candidates.sort_unstable_by_key(|(id, record)| (record.last_used, record.first_seen, (*id).clone()));
    let mut chosen = Vec::new();
    let mut freed = 0;
    for (id, record) in candidates {
        // An image that was just pulled belongs to a pod that is about to start.
        if freed >= wanted || age(record.first_seen, now) < policy.minimum_age {
            continue;
        }
        chosen.push(id.clone());
        freed += record.size;
    }
    (chosen, freed)
}

/// Returns the images that were unused for longer than the maximum age.
fn choose_old(
    records: &HashMap<String, Record>,
    in_use: &HashSet<String>,
    policy: &ImageCollection,
    now: Timestamp,
) -> Vec<String> {
    let Some(maximum) = policy.maximum_age else { return Vec::new() };
    let is_old = |record: &Record| age(record.last_used.unwrap_or(record.first_seen), now) > maximum;
    let unused = records.iter().filter(|(id, record)| !record.pinned && !in_use.contains(*id) && is_old(record));
    unused.map(|(id, _)| id.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(first_seen: i64, last_used: Option<i64>, size: u64) -> Record {
        Record { first_seen: at(first_seen), last_used: last_used.map(at), size, pinned: false }
    }

    fn records() -> HashMap<String, Record> {
        let pinned = Record { pinned: true, ..record(0, None, 100) };
        [
            ("pinned", pinned),
            ("used", record(0, Some(1000), 100)),
            ("lately", record(0, Some(900), 100)),
            ("long-ago", record(0, Some(100), 100)),
            ("never", record(50, None, 100)),
            ("new", record(995, None, 100)),
        ]
        .map(|(id, record)| (id.to_owned(), record))
        .into()
    }

    #[test]
    fn the_least_recently_used_images_are_removed_first_and_used_ones_never() {
        let in_use = HashSet::from(["used".to_owned()]);
        let policy = ImageCollection::default();
        let (chosen, freed) = choose(&records(), &in_use, &policy, at(1000), 150);
        assert_eq!((chosen, freed), (vec!["never".to_owned(), "long-ago".to_owned()], 200));
        let (all, _) = choose(&records(), &in_use, &policy, at(1000), u64::MAX);
        assert_eq!(all, ["never", "long-ago", "lately"], "not the pinned one, not one just pulled");
    }

    #[test]
    fn old_images_are_removed_only_if_configured() {
        let in_use = HashSet::from(["used".to_owned()]);
        let mut policy = ImageCollection::default();
        assert!(choose_old(&records(), &in_use, &policy, at(1000)).is_empty());
        policy.maximum_age = Some(Duration::from_secs(500));
        let mut old = choose_old(&records(), &in_use, &policy, at(1000));
        old.sort();
        assert_eq!(old, ["long-ago", "never"]);
    }

    #[test]
    fn nothing_is_freed_below_the_high_threshold() {
        let policy = ImageCollection::default();
        assert_eq!(bytes_to_free(84_999, 100_000, &policy), None);
        assert_eq!(bytes_to_free(85_000, 100_000, &policy), Some(5_000));
        assert_eq!(bytes_to_free(1, 0, &policy), None);
        let off = ImageCollection { high_threshold_percent: 100, ..policy };
        assert_eq!(bytes_to_free(100, 100, &off), None);
    }
}
