//! Deployment.

use corten_meta::Value;
use jiff::Timestamp;
use serde_json::json;

use crate::cells::{age, containers, format_selector, name, number, text};
use crate::core::pod_spec::default_template;
use crate::defaulting::{default_at, put};
use crate::kind::{Behaviour, Kind, ScalePaths};

struct Deployment;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "Deployment", "deployments")
        .short(&["deploy"])
        .category("all")
        .scale()
        .status()
        .status_keeps_labels()
        .generation()
        .table("Name, Ready, Up-to-date, Available, Age; Containers, Images, Selector")
        .behaviour(Deployment)
}

impl Behaviour for Deployment {
    fn rules(&self) -> &'static str {
        ".apps.v1.Deployment"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/replicas", 1);
        default_at(object, "/spec/strategy/type", "RollingUpdate");
        if text(object, "/spec/strategy/type") == "RollingUpdate" {
            default_at(object, "/spec/strategy/rollingUpdate", json!({}));
            default_at(object, "/spec/strategy/rollingUpdate/maxUnavailable", "25%");
            default_at(object, "/spec/strategy/rollingUpdate/maxSurge", "25%");
        }
        default_at(object, "/spec/revisionHistoryLimit", 10);
        default_at(object, "/spec/progressDeadlineSeconds", 600);
        default_template(object, "/spec/template");
    }

    /// Counts a changed annotation as a change of the spec, because annotations are copied to ReplicaSets.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        let same = |field: &str| new.pointer(field) == old.pointer(field);
        if !same("/metadata/annotations") && same("/spec") {
            put(new, "/metadata/generation", number(old, "/metadata/generation") + 1);
        }
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        let mut out = crate::core::pod_warnings::of_names(new, old);
        out.extend(crate::core::pod_warnings::of_template(new, old, "/spec/template", &path));
        out
    }

    fn empty(&self, object: &mut Value) {
        put(object, "/spec/replicas", 0);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = containers(object, "/spec/template/spec");
        let ready = number(object, "/status/readyReplicas");
        vec![
            name(object),
            format!("{ready}/{}", number(object, "/spec/replicas")).into(),
            number(object, "/status/updatedReplicas").into(),
            number(object, "/status/availableReplicas").into(),
            age(object, now),
            names,
            images,
            format_selector(object.pointer("/spec/selector")).into(),
        ]
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(super::scale_paths())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimal_deployment_gets_its_defaults() {
        let mut object = json!({
            "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
                "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
        });
        kind().default(&mut object);
        assert_eq!(
            object,
            json!({
                "metadata": {"name": "d"},
                "spec": {
                    "replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
                    "selector": {"matchLabels": {"a": "b"}},
                    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
                        "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "resources": {},
                            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                        "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                        "securityContext": {}, "terminationGracePeriodSeconds": 30}},
                },
                "status": {},
            })
        );
    }
}
