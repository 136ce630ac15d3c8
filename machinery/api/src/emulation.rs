//! Emulation of an earlier minor version of Kubernetes, as upstream's `--emulated-version`: kinds and fields that came
//! later are not served, so that a cluster can still return to a binary of that version.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

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
        let minor = minor.ok_or_else(|| format!("\"{given}\" is no version of the form major.minor"))?;
        let emulated = MinorVersion(minor);
        if (MinorVersion::OLDEST..=MinorVersion::NEWEST).contains(&emulated) {
            return Ok(emulated);
        }
        let range = format!("[{}, {}]", MinorVersion::OLDEST, MinorVersion::NEWEST);
        Err(format!("emulation version {emulated} is not between {range}"))
    }
}

/// The version since which a Service may have any DNS label as its name.
pub(crate) const RELAXED_SERVICE_NAMES: MinorVersion = MinorVersion(36);
/// The version since which a container's exit may restart all containers of the pod.
const RESTART_ALL_CONTAINERS: MinorVersion = MinorVersion(36);

/// The version since which a Service may prefer endpoints of the same node or zone.
const TRAFFIC_TO_THE_SAME: MinorVersion = MinorVersion(34);

/// Returns the errors of values that are valid only in versions after the emulated one.
pub(crate) fn validate(version: MinorVersion, kind: &str, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    if version >= RESTART_ALL_CONTAINERS {
        return Vec::new();
    }
    let spec = Path::root("spec");
    match kind {
        "Service" if version < TRAFFIC_TO_THE_SAME => validate_traffic_distribution(new, old),
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
    fn restarting_all_containers_needs_1_36() {
        let pod = json!({"spec": {"containers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]}});
        let at = |version: &str| validate(version.parse().unwrap(), "Pod", &pod, None);
        assert_eq!(at("1.36"), []);
        let path = "spec.containers[0].restartPolicyRules[0].action";
        assert_eq!(at("1.35").iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [path]);
    }
}
