//! Keeps the number of volumes that a driver can attach to this node up to date: a driver whose CSIDriver object has
//! `nodeAllocatableUpdatePeriodSeconds` is queried at that interval, and at once after an attachment failed because the
//! node is full.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::warn;

use super::record::Record;
use super::{Csi, node_info};
use crate::error::{Error, Result};

/// The longest time until a change of a CSIDriver object takes effect; no shorter interval is valid.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
const LIMIT_EXCEEDED: &str = "VolumeAttachmentLimitExceeded";

/// Queries the drivers until shutdown.
pub async fn keep_allocatable(csi: Arc<Csi>, stop: CancellationToken) {
    let mut queried: HashMap<String, Instant> = HashMap::new();
    loop {
        let now = Instant::now();
        let drivers = csi.periods();
        queried.retain(|name, _| drivers.contains_key(name));
        for name in due(&drivers, &mut queried, now) {
            if let Err(error) = csi.query_allocatable(&name).await {
                warn!(%error, driver = name, "the CSI driver's limit of volumes is not known");
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(next(&drivers, &queried, Instant::now())) => {}
        }
    }
}

/// Returns the drivers whose interval is over. A new driver was queried when it registered.
fn due(drivers: &HashMap<String, Duration>, queried: &mut HashMap<String, Instant>, now: Instant) -> Vec<String> {
    let mut names = Vec::new();
    for (name, period) in drivers {
        let last = queried.entry(name.clone()).or_insert(now);
        if now.duration_since(*last) >= *period {
            *last = now;
            names.push(name.clone());
        }
    }
    names
}

/// Returns the time until the next query.
fn next(drivers: &HashMap<String, Duration>, queried: &HashMap<String, Instant>, now: Instant) -> Duration {
    let left = |(name, period): (&String, &Duration)| {
        let since = queried.get(name).map_or(Duration::ZERO, |last| now.duration_since(*last));
        period.saturating_sub(since)
    };
    drivers.iter().map(left).min().unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
}

fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = u64::try_from(driver.spec.node_allocatable_update_period_seconds?).ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// Reports whether the attachment failed because the node's limit is reached.
fn is_exhausted(attachment: &VolumeAttachment) -> bool {
    let status = attachment.status.as_ref();
    let code = status.and_then(|status| status.attach_error.as_ref()?.error_code);
    code == Some(Code::ResourceExhausted as i32)
}

impl Csi {
    /// Returns the drivers of this node that have an interval, with that interval.
    fn periods(&self) -> HashMap<String, Duration> {
        let names: Vec<String> = self.lock().drivers.keys().cloned().collect();
        names.into_iter().filter_map(|name| Some((name.clone(), period(&self.object(&name)?)?))).collect()
    }

    async fn query_allocatable(&self, name: &str) -> Result<()> {
        let info = self.driver(name)?.info().await?;
        node_info::set_limit(self, name, info.max_volumes_per_node).await
    }

    /// Rejects a pod whose volume exceeds the node's limit, if the driver's limit is kept up to date: the scheduler
    /// would otherwise choose this node again.
    pub(super) async fn check_room(&self, driver: Option<&CSIDriver>, record: &Record, volume: &str) -> Result<()> {
        if driver.and_then(period).is_none() {
            return Ok(());
        }
        let attachment = self.client.find::<VolumeAttachment>("", &record.attachment).await?;
        if !attachment.as_ref().is_some_and(is_exhausted) {
            return Ok(());
        }
        if let Err(error) = self.query_allocatable(&record.driver).await {
            warn!(%error, driver = record.driver, "the CSI driver's limit of volumes is not known");
        }
        let message = format!(
            "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{volume}], unattached \
             volumes=[{volume}], failed to process volumes=[]: the driver has no room for another volume on this node"
        );
        Err(Error::admission(LIMIT_EXCEEDED, message))
    }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_is_queried_when_its_interval_is_over() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let drivers = HashMap::from([("d".to_owned(), Duration::from_secs(12))]);
        let mut queried = HashMap::new();
        for (seconds, names, sleep) in [(0, 0, 10), (10, 0, 2), (12, 1, 10), (13, 0, 10), (24, 1, 10)] {
            assert_eq!(due(&drivers, &mut queried, after(seconds)).len(), names, "after {seconds} s");
            assert_eq!(next(&drivers, &queried, after(seconds)), Duration::from_secs(sleep), "after {seconds} s");
        }
        assert_eq!(next(&HashMap::new(), &queried, begun), LONGEST_SLEEP);
    }

    #[test]
    fn only_a_full_node_rejects_a_pod() {
        for (error, expected) in [
            (json!({"message": "full", "errorCode": 8}), true),
            (json!({"message": "down", "errorCode": 14}), false),
            (json!({"message": "old"}), false),
        ] {
            let attachment = VolumeAttachment::from_value(json!({
                "metadata": {"name": "a"},
                "spec": {"attacher": "d", "nodeName": "n", "source": {}},
                "status": {"attached": false, "attachError": error},
            }));
            assert_eq!(is_exhausted(&attachment.unwrap()), expected, "{error}");
        }
    }

    #[test]
    fn only_a_driver_with_an_update_period_is_queried_again() {
        for (spec, expected) in [(json!({"nodeAllocatableUpdatePeriodSeconds": 30}), Some(30)), (json!({}), None)] {
            let driver = CSIDriver::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
            assert_eq!(period(&driver), expected.map(Duration::from_secs));
        }
    }
}
