//! Events of the repair: one for each finding, and a series while the same is found again and again.

use std::collections::HashMap;

use corten_managed_fields::own_created;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::core::Core;
use crate::registry::Written;

/// The time after which a finding begins a new Event; upstream's.
const SERIES: SignedDuration = SignedDuration::from_mins(6);

/// The content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The reference to the object.
    pub regarding: Value,
    pub controller: &'static str,
    pub action: &'static str,
    pub reason: &'static str,
    pub note: String,
}

impl Finding {
    /// Returns the reference to a Service.
    pub fn service(object: &Object) -> Value {
        reference("v1", "Service", object)
    }

    /// Returns the reference to an IPAddress.
    pub fn ip_address(object: &Object) -> Value {
        reference("networking.k8s.io/v1", "IPAddress", object)
    }

    fn key(&self) -> String {
        format!("{} {} {}", self.regarding["uid"], self.reason, self.note)
    }
}

fn reference(api_version: &str, kind: &str, object: &Object) -> Value {
    let header = &object.header;
    let mut reference = json!({
        "apiVersion": api_version,
        "kind": kind,
        "name": header.name,
        "uid": header.uid,
        "resourceVersion": object.revision.to_string(),
    });
    if !header.namespace.is_empty() {
        reference["namespace"] = header.namespace.clone().into();
    }
    reference
}

/// An Event that was written.
struct Recorded {
    name: String,
    namespace: String,
    last: Timestamp,
    count: i64,
}

/// Writes Events.
pub struct Recorder {
    host: String,
    recorded: HashMap<String, Recorded>,
}

impl Recorder {
    pub fn new(host: &str) -> Recorder {
        Recorder { host: host.to_owned(), recorded: HashMap::new() }
    }

    /// Writes the Event of a finding, or counts it in the one that exists.
    pub async fn record(&mut self, core: &Core, finding: &Finding) -> Result<(), Status> {
        let now = Timestamp::now();
        tracing::warn!(object = finding.regarding["name"].as_str(), reason = finding.reason, "{}", finding.note);
        self.recorded.retain(|_, recorded| now.duration_since(recorded.last) <= SERIES);
        let key = finding.key();
        if let Some(recorded) = self.recorded.get_mut(&key) {
            recorded.count += 1;
            recorded.last = now;
            return count(core, recorded, now).await;
        }
        let name = format!("{}.{:x}", finding.regarding["name"].as_str().unwrap_or_default(), now.as_nanosecond());
        let namespace = finding.regarding["namespace"].as_str().unwrap_or("default").to_owned();
        let resource = core.registry.required("events.k8s.io", "v1", "events")?;
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": corten_meta::time::rfc3339(now),
            },
            "eventTime": corten_meta::time::rfc3339_micro(now),
            "reportingController": finding.controller,
            "reportingInstance": format!("{}-{}", finding.controller, self.host),
            "action": finding.action,
            "reason": finding.reason,
            "regarding": finding.regarding,
            "note": finding.note,
            "type": "Warning",
        });
        resource.kind.default(&mut event);
        own_created(&resource.kind, &mut event, "kube-apiserver", now);
        core.registry.write(&resource, &event, Expect::Absent, Vec::new()).await?;
        self.recorded.insert(key, Recorded { name, namespace, last: now, count: 1 });
        Ok(())
    }
}

/// Counts one more occurrence in an Event, unless it has expired.
async fn count(core: &Core, recorded: &Recorded, now: Timestamp) -> Result<(), Status> {
    let resource = core.registry.required("events.k8s.io", "v1", "events")?;
    let Some(present) = core.registry.read(&resource, &recorded.namespace, &recorded.name).await? else {
        return Ok(());
    };
    let revision = present.revision;
    let mut event = resource.serve(&present).await?.value();
    event["series"] = json!({
        "count": recorded.count,
        "lastObservedTime": corten_meta::time::rfc3339_micro(now),
    });
    let written = core.registry.write(&resource, &event, Expect::ModRevision(revision), Vec::new()).await?;
    if !matches!(written, Written::Done(_)) {
        tracing::debug!(event = recorded.name, "another writer changed the Event first");
    }
    Ok(())
}
