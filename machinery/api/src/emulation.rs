//! Emulation of an earlier minor version of Kubernetes, as upstream's `--emulated-version`: kinds and fields that came
//! later are not served, so that a cluster can still return to a binary of that version.

use std::sync::Arc;

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use crate::kind::{Kind, NameRule};
use crate::registry;
use crate::schema::introduced;

/// A minor version of Kubernetes 1 that the server can emulate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorVersion(u16);

impl MinorVersion {
    /// The version of the served API.
    pub const NEWEST: MinorVersion = MinorVersion(36);
    /// The earliest version that can be emulated.
    pub const OLDEST: MinorVersion = MinorVersion(33);

    /// Returns the minor number.
    pub fn minor(self) -> u16 {
        self.0
    }

    /// Returns the latest version that this one is compatible with.
    pub fn min_compatibility(self) -> MinorVersion {
        MinorVersion(self.0.saturating_sub(1)).max(MinorVersion::OLDEST)
    }

    pub(crate) const fn new(minor: u16) -> MinorVersion {
        MinorVersion(minor)
    }
}

impl Default for MinorVersion {
    fn default() -> Self {
        MinorVersion::NEWEST
    }
}

impl std::fmt::Display for MinorVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

impl std::str::FromStr for MinorVersion {
    type Err = String;

    /// Reads `1.35` or `kube=1.35`.
    fn from_str(given: &str) -> Result<MinorVersion, String> {
        let version = given.strip_prefix("kube=").unwrap_or(given);
        let digits = version.strip_prefix("1.").filter(|minor| minor.bytes().all(|byte| byte.is_ascii_digit()));
        let minor = digits.and_then(|minor| minor.parse().ok());
        let minor = minor.ok_or_else(|| format!("{given:?} is no version of the form major.minor"))?;
        let emulated = MinorVersion(minor);
        if (MinorVersion::OLDEST..=MinorVersion::NEWEST).contains(&emulated) {
            return Ok(emulated);
        }
        let range = format!("[{}, {}]", MinorVersion::OLDEST, MinorVersion::NEWEST);
        Err(format!("emulation version {emulated} is not between {range}"))
    }
}

/// The version since which a Service may have any DNS label as its name.
const RELAXED_SERVICE_NAMES: MinorVersion = MinorVersion(36);
/// The version since which a container's exit may restart all containers of the pod.
const RESTART_ALL_CONTAINERS: MinorVersion = MinorVersion(36);

/// The version since which a Service may prefer endpoints of the same node or zone.
const TRAFFIC_TO_THE_SAME: MinorVersion = MinorVersion(34);

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
        return registry::kinds().to_vec();
    }
    let is_served = |kind: &&Arc<Kind>| {
        let is_it = |row: &&Introduced| row.plural == kind.plural && row.api_version == kind.api_version();
        RESOURCES.iter().find(is_it).is_none_or(|row| row.since <= version)
    };
    registry::kinds().iter().filter(is_served).map(|kind| Arc::new(emulating(kind, version))).collect()
}

/// Returns a kind as the version has it.
fn emulating(kind: &Kind, version: MinorVersion) -> Kind {
    let mut kind = Kind { emulated: version, ..kind.clone() };
    if kind.kind == "Service" && version < RELAXED_SERVICE_NAMES {
        kind.rules.name_rule = NameRule::Label1035;
    }
    kind
}

/// Removes the fields that the emulated version does not have, unless the stored object uses them.
pub(crate) fn drop_later_fields(kind: &Kind, object: &mut Value, old: Option<&Value>) {
    if kind.emulated < MinorVersion::NEWEST {
        introduced::drop_later(&kind.schema, kind.emulated, object, old);
    }
}

/// Returns the errors of values that are valid only in versions after the emulated one.
pub(crate) fn validate(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if kind.emulated >= RESTART_ALL_CONTAINERS {
        return Vec::new();
    }
    let spec = Path::root("spec");
    match kind.kind.as_str() {
        "Service" if kind.emulated < TRAFFIC_TO_THE_SAME => validate_traffic_distribution(new, old),
        "Pod" if old.is_none() => validate_restart_rules(&new["spec"], &spec),
        "ReplicationController" | "ReplicaSet" | "Deployment" | "StatefulSet" | "DaemonSet" | "Job"
            if old.is_none_or(|old| old["spec"]["template"] != new["spec"]["template"]) =>
        {
            validate_restart_rules(&new["spec"]["template"]["spec"], &spec.child("template").child("spec"))
        }
        _ => Vec::new(),
    }
}

/// Refuses the distributions of traffic that came later, unless the stored Service has one of them.
fn validate_traffic_distribution(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let wanted = &new["spec"]["trafficDistribution"];
    let is_kept = old.is_some_and(|old| old["spec"]["trafficDistribution"] == *wanted);
    match wanted.as_str() {
        Some(value @ ("PreferSameZone" | "PreferSameNode")) if !is_kept => {
            let path = Path::root("spec").child("trafficDistribution");
            vec![FieldError::not_supported(&path, value, &["PreferClose"])]
        }
        _ => Vec::new(),
    }
}

/// Refuses the action that restarts all containers of a pod.
fn validate_restart_rules(pod: &Value, path: &Path) -> Vec<FieldError> {
    const ACTION: &str = "RestartAllContainers";
    let mut errors = Vec::new();
    for list in ["initContainers", "containers"] {
        for (at, container) in pod[list].as_array().into_iter().flatten().enumerate() {
            let rules = path.child(list).index(at).child("restartPolicyRules");
            for (number, rule) in container["restartPolicyRules"].as_array().into_iter().flatten().enumerate() {
                if rule["action"] == ACTION {
                    errors.push(FieldError::not_supported(&rules.index(number).child("action"), ACTION, &["Restart"]));
                }
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind_at(version: &str, plural: &str) -> Option<Arc<Kind>> {
        kinds_at(version.parse().unwrap()).into_iter().find(|kind| kind.plural == plural)
    }

    #[test]
    fn a_version_is_read_and_bounded() {
        assert_eq!("1.36".parse(), Ok(MinorVersion::NEWEST));
        assert_eq!("kube=1.34".parse(), Ok(MinorVersion(34)));
        for refused in
            ["1.37", "1.32", "2.0", "1", "1.", "1.+35", "1.35.2", "v1.35", "wardle=1.35", "", "1.99999999999"]
        {
            assert!(refused.parse::<MinorVersion>().is_err(), "{refused}");
        }
    }

    #[test]
    fn every_resource_of_the_table_is_served_since_its_version() {
        for row in &RESOURCES {
            let earlier = MinorVersion(row.since.0 - 1);
            let serves = |version| kinds_at(version).iter().any(|kind| kind.plural == row.plural);
            assert!(serves(row.since) && !serves(earlier), "{}", row.plural);
        }
        assert_eq!(kinds_at(MinorVersion::NEWEST).len(), registry::kinds().len());
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

    #[test]
    fn restarting_all_containers_needs_1_36() {
        let pod = json!({"spec": {"containers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]}});
        let at = |version| validate(&kind_at(version, "pods").unwrap(), &pod, None);
        assert_eq!(at("1.36"), []);
        let path = "spec.containers[0].restartPolicyRules[0].action";
        assert_eq!(at("1.35").iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [path]);
    }
}
