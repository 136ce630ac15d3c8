//! HorizontalPodAutoscaler, version 1: the same objects, with one field for the CPU and annotations for the rest.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::annotations::{
    current_cpu, decode_behavior, decode_metrics, decode_rows, encode_behavior, encode_conditions, encode_metrics,
    take_cpu,
};
use super::horizontalpodautoscaler_v2::{HorizontalPodAutoscaler as Version2, TABLE};
use crate::cells::{list, text};
use crate::defaulting::{default_at, put, remove};
use crate::kind::{Behaviour, Kind};

/// The annotations for the fields that version 1 lacks: metrics, behavior, current metrics, conditions.
const ANNOTATED: [&str; 4] = [
    "autoscaling.alpha.kubernetes.io~1metrics",
    "autoscaling.alpha.kubernetes.io~1behavior",
    "autoscaling.alpha.kubernetes.io~1current-metrics",
    "autoscaling.alpha.kubernetes.io~1conditions",
];

/// The target CPU utilization without any metric, in percent.
const DEFAULT_UTILIZATION: i64 = 80;

struct HorizontalPodAutoscaler;

pub fn kind() -> Kind {
    Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .category("all")
        .status()
        .is_owned_as_sent()
        .stored_as("/registry/horizontalpodautoscalers", "autoscaling", "v2")
        .table(TABLE)
        .behaviour(HorizontalPodAutoscaler)
}

/// Restores the old values of annotations.
fn restore_annotations(new: &mut Value, old: &Value, annotations: &[&str]) {
    for annotation in annotations {
        let pointer = format!("/metadata/annotations/{annotation}");
        match old.pointer(&pointer).cloned() {
            Some(value) => {
                default_at(new, "/metadata/annotations", json!({}));
                put(new, &pointer, value);
            }
            None => {
                remove(new, &pointer);
            }
        }
    }
    drop_no_annotations(new);
}

/// Removes an empty map of annotations.
fn drop_no_annotations(object: &mut Value) {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    if annotations.is_some_and(serde_json::Map::is_empty) {
        remove(object, "/metadata/annotations");
    }
}

impl Behaviour for HorizontalPodAutoscaler {
    fn annotations_of_version(&self) -> &'static [&'static str] {
        &[
            "autoscaling.alpha.kubernetes.io/metrics",
            "autoscaling.alpha.kubernetes.io/behavior",
            "autoscaling.alpha.kubernetes.io/current-metrics",
            "autoscaling.alpha.kubernetes.io/conditions",
        ]
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/minReplicas", 1);
        // Upstream converts through the other version, which drops unreadable annotations.
        let current = format!("/metadata/annotations/{}", ANNOTATED[2]);
        let is_only_cpu = decode_metrics(text(object, &current), "current").is_none();
        self.to_stored(object);
        self.from_stored(object);
        // The annotation would repeat a lone CPU utilization.
        if is_only_cpu {
            remove(object, &current);
        }
        drop_no_annotations(object);
    }

    /// Drops the annotations of the status from a new object.
    fn prepare_create(&self, object: &mut Value) {
        restore_annotations(object, &Value::Null, &ANNOTATED[2..]);
    }

    /// Keeps the annotations of the status.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        restore_annotations(new, old, &ANNOTATED[2..]);
    }

    /// Keeps the annotations of the spec.
    fn prepare_status_update(&self, new: &mut Value, old: &Value, _now: Timestamp) {
        restore_annotations(new, old, &ANNOTATED[..2]);
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
        let mut new = new.clone();
        let mut old = old.clone();
        self.to_stored(&mut new);
        self.to_stored(&mut old);
        Version2.validate_update(&new, &old)
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
        let mut kept = |annotation: &str| {
            let pointer = format!("/metadata/annotations/{annotation}");
            remove(object, &pointer).and_then(|value| value.as_str().map(str::to_string))
        };
        let [metrics, behavior, current, conditions] = ANNOTATED.map(&mut kept);
        let cpu = |side: &str, value: Value| json!({"type": "Resource", "resource": {"name": "cpu", side: value}});
        let mut all = metrics.and_then(|text| decode_metrics(&text, "target")).unwrap_or_default();
        if let Some(percent) = remove(object, "/spec/targetCPUUtilizationPercentage").filter(|p| !p.is_null()) {
            all.push(cpu("target", json!({"type": "Utilization", "averageUtilization": percent})));
        }
        if all.is_empty() {
            let usual = json!({"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION});
            all.push(cpu("target", usual));
        }
        put(object, "/spec/metrics", all);
        if let Some(behavior) = behavior.and_then(|text| decode_behavior(&text)) {
            put(object, "/spec/behavior", behavior);
        }
        let messages = remove(object, "/status/currentCPUUtilizationPercentage").filter(|p| !p.is_null());
        let messages = messages.map(|p| vec![cpu("current", json!({"averageUtilization": p}))]);
        // The annotation has more than the field.
        if let Some(current) = current.and_then(|text| decode_metrics(&text, "current")).or(messages) {
            put(object, "/status/currentMetrics", current);
        }
        if let Some(conditions) = conditions.and_then(|text| decode_rows(&text)) {
            put(object, "/status/conditions", conditions);
        }
        put(object, "/apiVersion", "autoscaling/v2");
    }

    fn from_stored(&self, object: &mut Value) {
        for annotation in ANNOTATED {
            remove(object, &format!("/metadata/annotations/{annotation}"));
        }
        let (cpu, others) = take_cpu(list(object, "/spec/metrics"));
        let current = current_cpu(object).cloned();
        for (value, field) in
            [(cpu, "/spec/targetCPUUtilizationPercentage"), (current, "/status/currentCPUUtilizationPercentage")]
        {
            if let Some(value) = value {
                put(object, field, value);
            }
        }
        let current = list(object, "/status/currentMetrics");
        let conditions = list(object, "/status/conditions");
        let behavior = object.pointer("/spec/behavior").filter(|behavior| behavior.is_object());
        let kept = [
            (!others.is_empty()).then(|| encode_metrics(&others, "target")),
            behavior.map(encode_behavior),
            (!current.is_empty()).then(|| encode_metrics(current, "current")),
            (!conditions.is_empty()).then(|| encode_conditions(conditions)),
        ];
        for field in ["/spec/metrics", "/spec/behavior", "/status/currentMetrics", "/status/conditions"] {
            remove(object, field);
        }
        for (annotation, text) in ANNOTATED.into_iter().zip(kept) {
            if let Some(text) = text {
                default_at(object, "/metadata/annotations", json!({}));
                put(object, &format!("/metadata/annotations/{annotation}"), text);
            }
        }
        put(object, "/apiVersion", "autoscaling/v1");
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
