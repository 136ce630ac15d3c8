//! StatefulSet.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::validation;
use crate::cells::{age, containers, name, number, text};
use crate::check::At;
use crate::core::persistentvolumeclaim::default_claim;
use crate::core::pod_spec::default_template;
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind, NameRule, ScalePaths};

struct StatefulSet;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .category("all")
        .scale()
        .status()
        .generation()
        .name_rule(NameRule::Label)
        .table("Name, Ready, Age; Containers, Images")
        .behaviour(StatefulSet)
}

impl Behaviour for StatefulSet {
    fn rules(&self) -> &'static str {
        ".apps.v1.StatefulSet"
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/podManagementPolicy", "OrderedReady");
        if absent(object, "/spec/updateStrategy/type") {
            put(object, "/spec/updateStrategy/type", "RollingUpdate");
            default_at(object, "/spec/updateStrategy/rollingUpdate", json!({}));
        }
        if text(object, "/spec/updateStrategy/type") == "RollingUpdate" {
            default_at(object, "/spec/updateStrategy/rollingUpdate/partition", 0);
        }
        default_at(object, "/spec/persistentVolumeClaimRetentionPolicy", json!({}));
        default_at(object, "/spec/persistentVolumeClaimRetentionPolicy/whenDeleted", "Retain");
        default_at(object, "/spec/persistentVolumeClaimRetentionPolicy/whenScaled", "Retain");
        default_at(object, "/spec/replicas", 1);
        default_at(object, "/spec/revisionHistoryLimit", 10);
        for claim in items(object, "/spec/volumeClaimTemplates") {
            put(claim, "/apiVersion", "v1");
            put(claim, "/kind", "PersistentVolumeClaim");
            default_claim(claim);
        }
        default_template(object, "/spec/template");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_stateful_set(object, validation::Scope::All)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_stateful_set_update(new, old)
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let path = corten_meta::field::Path::root("spec").child("template");
        let mut out = crate::core::pod_warnings::of_template(new, old, "/spec/template", &path);
        // Upstream leaves the claim's spec out of the path.
        for claim in At::object(new).get("spec").get("volumeClaimTemplates").items() {
            let spec = claim.get("spec");
            let path = claim.path;
            let path = if old.is_some() { path.child("Spec") } else { path };
            crate::core::pod_warnings::of_claim_spec(&spec.with(path), &mut out);
        }
        if number(new, "/spec/revisionHistoryLimit") < 0 {
            let detail = "a negative value retains all historical revisions; a value >= 0 is recommended";
            out.push(format!("spec.revisionHistoryLimit: {detail}"));
        }
        out
    }

    fn empty(&self, object: &mut Value) {
        put(object, "/spec/replicas", 0);
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let [names, images] = containers(object, "/spec/template/spec");
        let ready = number(object, "/status/readyReplicas");
        let desired = number(object, "/spec/replicas");
        vec![name(object), format!("{ready}/{desired}").into(), age(object, now), names, images]
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(super::scale_paths())
    }
}
