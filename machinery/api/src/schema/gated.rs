//! Fields of features that Kubernetes v1.36 has but disables, and of some that it has abandoned. The published schema
//! lists them, and clients may send them; the server drops them before it validates or stores an object, as upstream
//! does. Only the fields listed here are dropped. A StatefulSet's `maxUnavailable`, a beta that upstream disables, is
//! not among them: it works here.

use corten_meta::Value;

use super::{FieldType, Type, schema};

/// The fields by their types, without the common part of the name.
const GATED: [(&str, &[&str]); 12] = [
    ("coordination.v1.LeaseSpec", &["preferredHolder", "strategy"]),
    ("core.v1.Lifecycle", &["stopSignal"]),
    ("core.v1.NodeSpec", &["configSource"]),
    ("core.v1.NodeStatus", &["config"]),
    ("core.v1.PodSpec", &["schedulingGroup"]),
    ("core.v1.PodStatus", &["nodeAllocatableResourceClaimStatuses"]),
    ("core.v1.VolumeMountStatus", &["volumeStatus"]),
    ("core.v1.VolumeProjection", &["clusterTrustBundle", "podCertificate"]),
    ("discovery.v1.Endpoint", &["deprecatedTopology"]),
    ("resource.v1.Device", &["nodeAllocatableResourceMappings"]),
    ("resource.v1.DeviceAttribute", &["bools", "ints", "strings", "versions"]),
    ("storage.v1.CSIDriverSpec", &["preventPodSchedulingIfMissing"]),
];
/// A struct that is dropped if its last field is.
const VANISHING: &str = "core.v1.Lifecycle";

/// Returns the gated fields of a type.
pub(super) fn fields_of(type_name: &str) -> &'static [&'static str] {
    let name = type_name.strip_prefix("io.k8s.api.").unwrap_or_default();
    GATED.iter().find(|(gated, _)| *gated == name).map_or(&[], |(_, fields)| fields)
}

/// Drops the gated fields of an object of the named type.
pub fn drop_gated(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        drop_of(t, value);
    }
}

/// Drops the gated fields of a value. Reports whether there was one.
fn drop_of(t: &Type, value: &mut Value) -> bool {
    let Some(object) = value.as_object_mut() else { return false };
    let mut dropped = false;
    let gated = fields_of(&t.name);
    for field in t.gated.iter().map(|at| &t.fields[*at]) {
        let Some(inner) = object.get_mut(&field.name) else { continue };
        if gated.contains(&field.name.as_str()) {
            object.remove(&field.name);
            dropped = true;
        } else if drop_in(&field.kind, inner)
            && is_vanishing(&field.kind)
            && inner.as_object().is_some_and(|o| o.is_empty())
        {
            object.remove(&field.name);
        }
    }
    dropped
}

fn drop_in(kind: &FieldType, value: &mut Value) -> bool {
    match kind {
        FieldType::Ref(id) => return drop_of(schema().get(*id), value),
        FieldType::List(items) => value.as_array_mut().into_iter().flatten().for_each(|item| {
            drop_in(items, item);
        }),
        FieldType::Map(values) => value.as_object_mut().into_iter().flatten().for_each(|(_, item)| {
            drop_in(values, item);
        }),
        _ => {}
    }
    false
}

fn is_vanishing(kind: &FieldType) -> bool {
    matches!(kind, FieldType::Ref(id) if schema().get(*id).name.ends_with(VANISHING))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_gated_field_is_in_the_table() {
        for (name, fields) in GATED {
            let t = schema().type_(&format!("io.k8s.api.{name}")).unwrap_or_else(|| panic!("{name}"));
            for field in fields {
                assert!(t.field(field).is_some(), "{name}.{field}");
            }
        }
    }

    #[test]
    fn only_gated_fields_are_dropped() {
        let mut set = json!({"spec": {
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}},
            "template": {"spec": {
                "schedulingGroup": {},
                "containers": [
                    {"name": "a", "lifecycle": {"stopSignal": "SIGTERM"}},
                    {"name": "b", "lifecycle": {"stopSignal": "SIGTERM", "preStop": {}}},
                    {"name": "c", "lifecycle": {}},
                ],
                "volumes": [{"projected": {"sources": [{"podCertificate": {"keyType": "x"}}]}}],
            }},
        }});
        drop_gated("io.k8s.api.apps.v1.StatefulSet", &mut set);
        let template = json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "lifecycle": {"preStop": {}}}, {"name": "c", "lifecycle": {}}],
            "volumes": [{"projected": {"sources": [{}]}}],
        }});
        let strategy = json!({"rollingUpdate": {"maxUnavailable": 2}});
        assert_eq!(set, json!({"spec": {"updateStrategy": strategy, "template": template}}));
    }
}
