//! The ordered list of the built-in kinds, and its lookups.

use std::sync::{Arc, LazyLock};

use crate::emulation::{MinorVersion, RELAXED_SERVICE_NAMES};
use crate::kind::{Kind, NameRule};

/// The kinds that a default v1.36 API server serves, group by group in the order of discovery.
static KINDS: LazyLock<Vec<Arc<Kind>>> = LazyLock::new(|| {
    [
        crate::core::kinds(),
        crate::apiregistration::kinds(),
        crate::apps::kinds(),
        crate::events::kinds(),
        crate::authentication::kinds(),
        crate::authorization::kinds(),
        crate::autoscaling::kinds(),
        crate::batch::kinds(),
        crate::certificates::kinds(),
        crate::networking::kinds(),
        crate::policy::kinds(),
        crate::rbac::kinds(),
        crate::storage::kinds(),
        crate::admissionregistration::kinds(),
        crate::apiextensions::kinds(),
        crate::scheduling::kinds(),
        crate::coordination::kinds(),
        crate::node::kinds(),
        crate::discovery::kinds(),
        crate::resource::kinds(),
        crate::flowcontrol::kinds(),
    ]
    .into_iter()
    .flatten()
    .map(Arc::new)
    .collect()
});

/// Returns all built-in kinds, in the order of discovery.
pub fn kinds() -> &'static [Arc<Kind>] {
    &KINDS
}

/// A resource, by its group and version, and the minor version that introduced it.
struct Introduced {
    api_version: &'static str,
    plural: &'static str,
    since: MinorVersion,
}

/// The served resources that are younger than [`MinorVersion::OLDEST`].
const RESOURCES: [Introduced; 7] = [
    resource("admissionregistration.k8s.io/v1", "mutatingadmissionpolicies", 36),
    resource("admissionregistration.k8s.io/v1", "mutatingadmissionpolicybindings", 36),
    resource("resource.k8s.io/v1", "deviceclasses", 34),
    resource("resource.k8s.io/v1", "resourceclaims", 34),
    resource("resource.k8s.io/v1", "resourceclaimtemplates", 34),
    resource("resource.k8s.io/v1", "resourceslices", 34),
    resource("storage.k8s.io/v1", "volumeattributesclasses", 34),
];

const fn resource(api_version: &'static str, plural: &'static str, minor: u16) -> Introduced {
    Introduced { api_version, plural, since: MinorVersion::new(minor) }
}

/// Returns the built-in kinds of a version, in the order of discovery.
pub fn kinds_at(version: MinorVersion) -> Vec<Arc<Kind>> {
    if version == MinorVersion::NEWEST {
        return kinds().to_vec();
    }
    let is_served = |kind: &&Arc<Kind>| {
        let is_it = |row: &&Introduced| row.plural == kind.plural && row.api_version == kind.api_version();
        RESOURCES.iter().find(is_it).is_none_or(|row| row.since <= version)
    };
    kinds().iter().filter(is_served).map(|kind| Arc::new(emulating(kind, version))).collect()
}

/// Returns a kind as the version has it.
fn emulating(kind: &Kind, version: MinorVersion) -> Kind {
    let mut kind = Kind { emulated: version, ..kind.clone() };
    if kind.kind == "Service" && version < RELAXED_SERVICE_NAMES {
        kind.rules.name_rule = NameRule::Label1035;
    }
    kind
}

/// Returns the kind served at a group, version and resource name.
pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Arc<Kind>> {
    kinds().iter().find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// Returns the kind of this group, version and kind name.
pub fn by_gvk(group: &str, version: &str, kind: &str) -> Option<&'static Arc<Kind>> {
    kinds().iter().find(|k| k.group == group && k.version == version && k.kind == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_default_api_is_complete() {
        let groups: std::collections::BTreeSet<_> = kinds().iter().map(|k| k.api_version()).collect();
        let subresources: usize = kinds().iter().map(|k| k.subresources.len()).sum();
        assert_eq!((groups.len(), kinds().len(), subresources), (22, 68, 45));
    }

    #[test]
    fn every_kind_is_found_by_both_names() {
        for kind in kinds() {
            assert!(Arc::ptr_eq(kind, lookup(&kind.group, &kind.version, &kind.plural).expect("by plural")));
            assert!(Arc::ptr_eq(kind, by_gvk(&kind.group, &kind.version, &kind.kind).expect("by kind")));
        }
    }

    #[test]
    fn a_row_has_a_cell_for_every_column() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        for kind in kinds() {
            let empty = json!({"metadata": {"name": "x"}});
            let cells = kind.cells(&empty, now);
            let more = usize::from(kind.kind == "IPAddress");
            assert_eq!(cells.len(), kind.columns.len() + more, "{kind:?}: {cells:?}");
            let has_sources = kind.columns.iter().all(|column| !column.source.is_empty());
            assert!(has_sources || !kind.behaviour.cells(&empty, now).is_empty(), "{kind:?}");
            assert!(!has_sources || cells.iter().all(|cell| !cell.is_null()), "{kind:?}: {cells:?}");
        }
    }

    fn kind_at(version: &str, plural: &str) -> Option<Arc<Kind>> {
        kinds_at(version.parse().unwrap()).into_iter().find(|kind| kind.plural == plural)
    }

    #[test]
    fn every_resource_of_the_table_is_served_since_its_version() {
        for row in &RESOURCES {
            let earlier = MinorVersion::new(row.since.minor() - 1);
            let serves = |version| kinds_at(version).iter().any(|kind| kind.plural == row.plural);
            assert!(serves(row.since) && !serves(earlier), "{}", row.plural);
        }
        assert_eq!(kinds_at(MinorVersion::NEWEST).len(), kinds().len());
    }

    #[test]
    fn a_service_name_is_strict_before_1_36() {
        let service = json!({
            "metadata": {"name": "1a", "namespace": "x"},
            "spec": {"type": "ExternalName", "externalName": "example.com", "sessionAffinity": "None"},
        });
        assert_eq!(kind_at("1.36", "services").unwrap().validate(&service), []);
        let errors = kind_at("1.35", "services").unwrap().validate(&service);
        assert!(errors.iter().any(|error| error.body().contains("DNS-1035")), "{errors:?}");
    }

    #[test]
    fn a_later_field_is_dropped_unless_the_stored_object_uses_it() {
        let pods = kind_at("1.34", "pods").unwrap();
        let sent = json!({"spec": {
            "hostnameOverride": "web",
            "containers": [{"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "a"}}}]}],
        }});
        let mut created = sent.clone();
        pods.drop_gated(&mut created, None);
        assert_eq!(created, json!({"spec": {"containers": [{"env": [{"name": "A", "valueFrom": {}}]}]}}));
        let mut updated = sent.clone();
        pods.drop_gated(&mut updated, Some(&json!({"spec": {"hostnameOverride": "old"}})));
        assert_eq!(updated["spec"]["hostnameOverride"], "web");
        assert_eq!(updated["spec"]["containers"], created["spec"]["containers"]);
        let mut image = json!({"spec": {
            "containers": [{"restartPolicy": "Never", "volumeMounts": [{"name": "v"}, {"name": "w"}]}],
            "initContainers": [{"restartPolicy": "Always"}],
            "volumes": [{"name": "v", "image": {"reference": "x"}}, {"name": "w", "emptyDir": {}}],
        }});
        pods.drop_gated(&mut image, None);
        assert_eq!(
            image,
            json!({"spec": {
                "containers": [{"volumeMounts": [{"name": "w"}]}],
                "initContainers": [{"restartPolicy": "Always"}],
                "volumes": [{"name": "w", "emptyDir": {}}],
            }})
        );
        let mut newest = sent.clone();
        kind_at("1.36", "pods").unwrap().drop_gated(&mut newest, None);
        assert_eq!(newest, sent);
    }
}
