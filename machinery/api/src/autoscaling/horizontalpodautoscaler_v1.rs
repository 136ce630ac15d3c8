//! HorizontalPodAutoscaler, version 1: the same objects, with one field for the CPU and annotations for the rest.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::horizontalpodautoscaler_v2::{HorizontalPodAutoscaler as Version2, TABLE};
use crate::cells::list;
use crate::defaulting::{absent, default_at, put, remove};
use crate::kind::{Behaviour, Kind};

/// Each annotation holds as JSON what version 1 has no field for: (annotation, field in version 2).
const ANNOTATED: [(&str, &str); 4] = [
    ("autoscaling.alpha.kubernetes.io~1metrics", "/spec/metrics"),
    ("autoscaling.alpha.kubernetes.io~1behavior", "/spec/behavior"),
    ("autoscaling.alpha.kubernetes.io~1current-metrics", "/status/currentMetrics"),
    ("autoscaling.alpha.kubernetes.io~1conditions", "/status/conditions"),
];

/// The load to keep to when nothing else is said, in percent.
const DEFAULT_UTILIZATION: i64 = 80;

struct HorizontalPodAutoscaler;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .category("all")
        .status()
        .stored_as("/registry/horizontalpodautoscalers", "autoscaling", "v2")
        .table(TABLE)
        .behaviour(HorizontalPodAutoscaler)
}

impl Behaviour for HorizontalPodAutoscaler {
    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/minReplicas", 1);
        // Without any metric it is the load of the processors that counts.
        if absent(object, &format!("/metadata/annotations/{}", ANNOTATED[0].0)) {
            default_at(object, "/spec/targetCPUUtilizationPercentage", DEFAULT_UTILIZATION);
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut version2 = object.clone();
        self.to_stored(&mut version2);
        Version2.validate(&version2)
    }

    fn validate_new(&self, object: &Value) -> Vec<FieldError> {
        let mut version2 = object.clone();
        self.to_stored(&mut version2);
        Version2.validate_new(&version2)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        Version2.validate_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        Version2.validate_status_update(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let mut version2 = object.clone();
        self.to_stored(&mut version2);
        Version2.cells(&version2, now)
    }

    fn to_stored(&self, object: &mut Value) {
        for (annotation, field) in ANNOTATED {
            let kept = remove(object, &format!("/metadata/annotations/{annotation}"));
            let parsed = kept.and_then(|k| serde_json::from_str::<Value>(k.as_str()?).ok());
            if let Some(value) = parsed {
                put(object, field, value);
            }
        }
        if let Some(percent) = remove(object, "/spec/targetCPUUtilizationPercentage").filter(|p| !p.is_null()) {
            push_first(
                object,
                "/spec/metrics",
                cpu("target", json!({"type": "Utilization", "averageUtilization": percent})),
            );
        }
        if let Some(percent) = remove(object, "/status/currentCPUUtilizationPercentage").filter(|p| !p.is_null()) {
            push_first(
                object,
                "/status/currentMetrics",
                cpu("current", json!({"averageUtilization": percent, "averageValue": "0"})),
            );
        }
        Version2.default(object);
        put(object, "/apiVersion", "autoscaling/v2");
    }

    fn from_stored(&self, object: &mut Value) {
        take_cpu(object, "/spec/metrics", "target", "/spec/targetCPUUtilizationPercentage");
        take_cpu(object, "/status/currentMetrics", "current", "/status/currentCPUUtilizationPercentage");
        for (annotation, field) in ANNOTATED {
            let rest = remove(object, field).filter(|v| v.as_array().is_none_or(|a| !a.is_empty()) && !v.is_null());
            if let Some(rest) = rest {
                default_at(object, "/metadata/annotations", json!({}));
                put(object, &format!("/metadata/annotations/{annotation}"), rest.to_string());
            }
        }
        put(object, "/apiVersion", "autoscaling/v1");
    }
}

fn cpu(side: &str, value: Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", side: value}})
}

fn push_first(object: &mut Value, pointer: &str, metric: Value) {
    let mut all = list(object, pointer).to_vec();
    all.insert(0, metric);
    put(object, pointer, all);
}

/// Moves the first CPU utilization out of a list of metrics into its field.
fn take_cpu(object: &mut Value, metrics: &str, side: &str, field: &str) {
    let mut all = list(object, metrics).to_vec();
    let pointer = format!("/resource/{side}/averageUtilization");
    let is_cpu = |m: &Value| m.pointer("/resource/name").is_some_and(|n| n == "cpu") && !absent(m, &pointer);
    if let Some(at) = all.iter().position(is_cpu) {
        let metric = all.remove(at);
        put(object, field, metric.pointer(&pointer).cloned().unwrap_or_default());
        put(object, metrics, all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_versions_convert() {
        let first = json!({"apiVersion": "autoscaling/v1", "metadata": {"name": "h"},
            "spec": {"minReplicas": 2, "maxReplicas": 5, "targetCPUUtilizationPercentage": 60}, "status": {}});
        let mut object = first.clone();
        HorizontalPodAutoscaler.to_stored(&mut object);
        assert_eq!(object["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
        HorizontalPodAutoscaler.from_stored(&mut object);
        assert_eq!(object, first);
    }

    #[test]
    fn other_metrics_survive_in_annotations() {
        let pods = json!([{"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}]);
        let second = json!({"apiVersion": "autoscaling/v2", "metadata": {}, "spec": {"minReplicas": 1, "metrics": pods}, "status": {}});
        let mut object = second.clone();
        HorizontalPodAutoscaler.from_stored(&mut object);
        assert!(object["spec"].get("metrics").is_none());
        HorizontalPodAutoscaler.to_stored(&mut object);
        assert_eq!(object["spec"]["metrics"], second["spec"]["metrics"]);
    }
}
