//! ResourceQuota.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::quota_validation::{validate_quota, validate_quota_status, validate_quota_update};
use super::volume_cells::quantity;
use crate::cells::{age, name};
use crate::kind::{Behaviour, Kind};

struct ResourceQuota;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ResourceQuota", "resourcequotas")
        .short(&["quota"])
        .status()
        .table("Name, Request, Limit, Age")
        .returns_deleted()
        .behaviour(ResourceQuota)
}

impl Behaviour for ResourceQuota {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validate_quota(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validate_quota_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        validate_quota_status(new)
    }

    /// Warns of a request quota that is not below the limit quota.
    fn warnings(&self, quota: &Value, old: Option<&Value>) -> Vec<String> {
        let hard = crate::check::At::object(quota).get("spec").get("hard");
        let warning = |resource: &&str| {
            let request = format!("requests.{resource}");
            let limit = format!("limits.{resource}");
            let is_bare = !hard.get(&request).is_set() && matches!(*resource, "cpu" | "memory");
            let request = if is_bare { (*resource).to_owned() } else { request };
            let requested = hard.get(&request).quantity()?;
            let most = hard.get(&limit).quantity()?;
            let messages = format!("ResourceQuota {request} ({requested}) should be less than {limit} ({most})");
            (requested > most).then_some(messages)
        };
        let resources = ["cpu", "memory", "storage", "ephemeral-storage"];
        resources.iter().filter(|_| old.is_none()).filter_map(warning).collect()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let hard = object.pointer("/status/hard").and_then(Value::as_object);
        let mut resources: Vec<&String> = hard.into_iter().flat_map(|h| h.keys()).collect();
        resources.sort_unstable();
        let (limits, requests): (Vec<_>, Vec<_>) = resources.into_iter().partition(|r| r.starts_with("limits."));
        let line = |resources: Vec<&String>| {
            let part = |r: &&String| {
                let key = r.replace('~', "~0").replace('/', "~1");
                let used = quantity(object, &format!("/status/used/{key}"));
                format!("{r}: {used}/{}", quantity(object, &format!("/status/hard/{key}")))
            };
            resources.iter().map(part).collect::<Vec<_>>().join(", ")
        };
        vec![name(object), line(requests).into(), line(limits).into(), age(object, now)]
    }
}
