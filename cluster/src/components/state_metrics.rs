//! The metrics of the state of objects, as the API server shows them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use corten_apiserver::{ListObjects, ObjectMetrics};
use corten_controllers::Schedule;
use corten_meta::Object;
use corten_state_metrics::{AllowList, Lister, StateMetrics};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::access_options::AccessOptions;
use crate::tasks::Tasks;

/// The interval at which metrics that no client scrapes are forgotten.
const CHECK: Duration = Duration::from_secs(300);

#[derive(Debug)]
struct Page(Arc<StateMetrics>);

impl ObjectMetrics for Page {
    fn page(&self, list: ListObjects<'_>) -> String {
        self.0.page(&Listed(list)).unwrap_or_else(|error| format!("# {error}\n"))
    }
}

/// The caches of the API server.
struct Listed<'a>(ListObjects<'a>);

impl Lister for Listed<'_> {
    fn list(&self, group: &str, version: &str, plural: &str) -> Vec<Arc<Object>> {
        self.0(group, version, plural)
    }
}

/// Returns the page of metrics, which is forgotten while no client asks for it.
pub fn page(options: &AccessOptions, tasks: &mut Tasks) -> Result<Arc<dyn ObjectMetrics>> {
    let list = |flag: &str, text: &Option<String>| {
        let parsed = AllowList::parse(text.as_deref().unwrap_or_default());
        parsed.map_err(|error| anyhow!("{flag}: {error}"))
    };
    let labels = list("--metric-labels-allowlist", &options.metric_labels_allowlist)?;
    let annotations = list("--metric-annotations-allowlist", &options.metric_annotations_allowlist)?;
    let metrics = Arc::new(StateMetrics::new(next_schedule).allowing(labels, annotations));
    let kept = Arc::clone(&metrics);
    let shutdown = tasks.shutdown();
    tasks.spawn("state metrics", async move {
        while shutdown.run_until_cancelled(tokio::time::sleep(CHECK)).await.is_some() {
            kept.forget_if_unused();
        }
        Ok::<(), anyhow::Error>(())
    });
    Ok(Arc::new(Page(metrics)))
}

/// Returns the next time of a CronJob's schedule.
fn next_schedule(schedule: &str, zone: Option<&str>, after: Timestamp) -> Option<Timestamp> {
    let zone = zone.map_or(Ok(TimeZone::UTC), TimeZone::get).ok()?;
    Schedule::parse(schedule).ok()?.next(after, &zone)
}
