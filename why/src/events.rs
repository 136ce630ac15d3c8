//! Warnings about an object, the newest first.

use corten_client::ListOptions;
use corten_meta::Value;

use crate::Sources;
use crate::objects::{self, text};

/// A warning about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub reason: String,
    pub message: String,
    time: String,
}

/// Returns the warnings about an object; none if the user may not read events.
pub async fn warnings(sources: Sources<'_>, object: &Value) -> Vec<Warning> {
    let options = ListOptions::fields(format!("involvedObject.uid={}", corten_meta::uid(object)));
    let namespace = corten_meta::namespace(object);
    let events = sources.objects.list(&objects::events(), namespace, options).await.unwrap_or_default();
    let mut warnings: Vec<Warning> = events
        .iter()
        .filter(|event| text(event, "/type") == "Warning")
        .map(|event| Warning {
            reason: text(event, "/reason").to_owned(),
            message: text(event, "/message").to_owned(),
            time: time(event).to_owned(),
        })
        .collect();
    warnings.sort_by(|a, b| b.time.cmp(&a.time));
    warnings
}

/// Returns the newest warning with one of the reasons.
pub fn newest<'a>(warnings: &'a [Warning], reasons: &[&str]) -> Option<&'a Warning> {
    warnings.iter().find(|warning| reasons.contains(&warning.reason.as_str()))
}

fn time(event: &Value) -> &str {
    ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"]
        .iter()
        .map(|pointer| text(event, pointer))
        .find(|time| !time.is_empty())
        .unwrap_or_default()
}
