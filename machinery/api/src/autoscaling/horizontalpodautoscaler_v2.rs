//! HorizontalPodAutoscaler, version 2: the stored version.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use crate::cells::{age, list, name, number, text};
use crate::defaulting::{default_at, object_at, put};
use crate::kind::{Behaviour, Kind};
use crate::rules;

/// The behaviour, shared with version 1, which is converted first.
pub(super) struct HorizontalPodAutoscaler;

/// The columns, shared with version 1.
pub(super) const TABLE: &str = "Name, Reference, Targets, MinPods, MaxPods, Replicas, Age";

pub fn kind() -> Kind {
    Kind::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .category("all")
        .status()
        .is_owned_as_sent()
        .table(TABLE)
        .behaviour(HorizontalPodAutoscaler)
}

impl Behaviour for HorizontalPodAutoscaler {
    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/minReplicas", 1);
        if list(object, "/spec/metrics").is_empty() {
            let cpu = json!([{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            put(object, "/spec/metrics", cpu);
        }
        if let Some(behavior) = object_at(object, "/spec/behavior") {
            let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]});
            let down =
                json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
            default_rules(behavior, "/scaleUp", &up);
            default_rules(behavior, "/scaleDown", &down);
        }
    }

    fn rules(&self) -> &'static str {
        ".autoscaling.v2.HorizontalPodAutoscaler"
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), object, Some(object))
    }

    fn validate_new(&self, object: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        rules::validate(self.rules(), new, Some(old))
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let target =
            format!("{}/{}", text(object, "/spec/scaleTargetRef/kind"), text(object, "/spec/scaleTargetRef/name"));
        let min = match object.pointer("/spec/minReplicas").and_then(Value::as_i64) {
            Some(min) => min.to_string(),
            None => "<unset>".to_string(),
        };
        vec![
            name(object),
            target.into(),
            metrics(object).into(),
            min.into(),
            number(object, "/spec/maxReplicas").into(),
            number(object, "/status/currentReplicas").into(),
            age(object, now),
        ]
    }
}

fn default_rules(behavior: &mut Value, at: &str, defaults: &Json) {
    default_at(behavior, at, json!({}));
    for (field, value) in defaults.as_object().into_iter().flatten() {
        default_at(behavior, &format!("{at}/{field}"), value.clone());
    }
}

/// Returns the current and target values of the first two metrics.
fn metrics(object: &Value) -> String {
    const SHOWN: usize = 2;
    let specs = list(object, "/spec/metrics");
    if specs.is_empty() {
        return "<none>".to_string();
    }
    let statuses = list(object, "/status/currentMetrics");
    let all: Vec<String> = specs.iter().enumerate().map(|(at, spec)| metric(spec, statuses.get(at))).collect();
    if all.len() > SHOWN {
        return format!("{} + {} more...", all[..SHOWN].join(", "), all.len() - SHOWN);
    }
    all.join(", ")
}

fn metric(spec: &Value, status: Option<&Value>) -> String {
    let (field, named) = match text(spec, "/type") {
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        _ => return "<unknown type>".to_string(),
    };
    let target = |what: &str| show(spec.pointer(&format!("/{field}/target/{what}")));
    let reported = status.and_then(|s| s.pointer(&format!("/{field}/current")));
    // A metric without a value differs from a metric that is not reported.
    let absent = if reported.is_some() { "<nil>" } else { "<unknown>" };
    let current = |what: &str, absent: &str| {
        show(reported.and_then(|current| current.get(what))).unwrap_or_else(|| absent.to_string())
    };
    let prefix = if named { format!("{}: ", text(spec, &format!("/{field}/name"))) } else { String::new() };
    let percent = |shown: String| if shown.starts_with('<') { shown } else { format!("{shown}%") };
    if let Some(average) = target("averageValue") {
        let (mark, absent) =
            if matches!(field, "external" | "object") { (" (avg)", "<unknown>") } else { ("", absent) };
        return format!("{prefix}{}/{average}{mark}", current("averageValue", absent));
    }
    if named {
        let wanted = target("averageUtilization").map_or_else(|| "<auto>".to_string(), &percent);
        return format!("{prefix}{}/{wanted}", percent(current("averageUtilization", "<unknown>")));
    }
    format!("{}/{}", current("value", absent), target("value").unwrap_or_else(|| "0".to_string()))
}

fn show(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
