//! The metrics of the state of objects, as the API server shows them.

use std::sync::Arc;
use std::time::Duration;

use corten_apiserver::{ListObjects, ObjectMetrics};
use corten_controllers::Schedule;
use corten_meta::Object;
use corten_state_metrics::{Lister, StateMetrics};
use jiff::Timestamp;
use jiff::tz::TimeZone;

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
pub fn page(tasks: &mut Tasks) -> Arc<dyn ObjectMetrics> {
    let metrics = Arc::new(StateMetrics::new(next_schedule));
    let kept = Arc::clone(&metrics);
    let shutdown = tasks.shutdown();
    tasks.spawn("state metrics", async move {
        while shutdown.run_until_cancelled(tokio::time::sleep(CHECK)).await.is_some() {
            kept.forget_if_unused();
        }
        Ok::<(), anyhow::Error>(())
    });
    Arc::new(Page(metrics))
}

/// Returns the next time of a CronJob's schedule.
fn next_schedule(schedule: &str, zone: Option<&str>, after: Timestamp) -> Option<Timestamp> {
    let zone = zone.map_or(Ok(TimeZone::UTC), TimeZone::get).ok()?;
    Schedule::parse(schedule).ok()?.next(after, &zone)
}
