//! PodSecurity: the Pod Security Standards, as the labels of a namespace select them.
//!
//! `enforce` refuses pods; `audit` annotates and `warn` reports violations, also of workloads whose pods are created
//! later. The checks are pure functions on a pod spec, one list for each level; a namespace may select those of an
//! older version.

mod baseline;
mod policy;
mod restricted;

use std::collections::{BTreeMap, HashSet};

use corten_meta::quote::quote;
use corten_meta::{Object, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;
use crate::metrics::POD_SECURITY_EVALUATIONS;
use policy::{Level, LevelVersion, PREFIX, Policy, Version};

/// The maximum number of a namespace's pods that are checked when the namespace selects a stricter level.
const MOST_PODS: usize = 3000;

/// A violation of a level: the short reason, and the detail.
pub struct Violation {
    pub reason: String,
    pub detail: String,
}

/// A check; `None` is a pass.
pub type Check = fn(&Pod<'_>) -> Option<Violation>;

/// A pod spec, its annotations, and the version of the checks.
pub struct Pod<'a> {
    pub spec: &'a Value,
    pub annotations: BTreeMap<String, String>,
    pub version: Version,
}

impl<'a> Pod<'a> {
    fn new(template: &'a Value, version: Version) -> Pod<'a> {
        Pod { spec: &template["spec"], annotations: corten_meta::annotations(template), version }
    }

    /// Returns the containers of all kinds.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| spec[list].as_array().into_iter().flatten())
    }

    /// Reports whether the pod is for Windows, which skips the checks of fields that do not exist there.
    pub fn is_windows(&self) -> bool {
        self.version.since(25) && self.spec.pointer("/os/name").and_then(Value::as_str) == Some("windows")
    }

    /// Reports whether the pod is in a user namespace of its own: its root has no privileges on the node.
    pub fn has_own_users(&self) -> bool {
        self.version.since(35) && self.spec["hostUsers"] == false
    }

    /// Returns the names of the containers that fail a test.
    pub fn bad(&self, test: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| test(c)).map(|c| c["name"].as_str().unwrap_or_default()).collect()
    }
}

pub struct PodSecurity;

impl Plugin for PodSecurity {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !matches!(a.operation, Operation::Create | Operation::Update) {
                return Ok(());
            }
            if a.is("", "namespaces", "") {
                return check_namespace(a);
            }
            if ["", "ephemeralcontainers", "resize"].iter().any(|subresource| a.is("", "pods", subresource)) {
                let changes = a.old.as_ref().is_none_or(|old| is_significant(&a.object, old));
                return if changes { check(a, &a.object, true) } else { Ok(()) };
            }
            template_of(a).map_or(Ok(()), |template| check(a, template, false))
        })
    }
}

/// Reports whether a change of a pod can violate a level: other containers or other images.
fn is_significant(new: &Value, old: &Value) -> bool {
    let images = |pod: &Value, list: &str| -> Vec<Value> {
        pod["spec"][list].as_array().into_iter().flatten().map(|container| container["image"].clone()).collect()
    };
    ["containers", "initContainers", "ephemeralContainers"].iter().any(|list| images(new, list) != images(old, list))
}

/// Checks a pod, or a workload's pod template, against the levels of its namespace.
fn check(a: &Attributes<'_>, template: &Value, is_pod: bool) -> Result<(), Status> {
    let namespace = a.target.core.objects.cached("", "namespaces", "", a.target.namespace);
    let (policy, errors) =
        namespace.map(|found| Policy::of(&found.header.labels)).unwrap_or_else(|| Policy::of(&BTreeMap::new()));
    if errors.is_empty() && policy.is_privileged() {
        if is_pod {
            count(a, policy.enforce, "enforce", "allow", is_pod);
        }
        return Ok(());
    }
    let note = |key: &str, value: &str| a.target.context.annotate(&format!("{PREFIX}{key}"), value);
    if let Some(why) = corten_meta::field::aggregate(&errors) {
        note("error", &format!("Failed to parse policy: {why}"));
    }
    let mut refused = None;
    if is_pod {
        note("enforce-policy", &policy.enforce.to_string());
        let found = evaluate(policy.enforce, template);
        count(a, policy.enforce, "enforce", if found.is_some() { "deny" } else { "allow" }, is_pod);
        refused = found.map(|found| a.forbidden(format!("violates PodSecurity \"{}\": {found}", policy.enforce)));
    }
    if let Some(found) = evaluate(policy.audit, template) {
        count(a, policy.audit, "audit", "deny", is_pod);
        note("audit-violations", &format!("would violate PodSecurity \"{}\": {found}", policy.audit));
    }
    if let Some(status) = refused {
        return Err(status);
    }
    if let Some(found) = evaluate(policy.warn, template) {
        count(a, policy.warn, "warn", "deny", is_pod);
        a.target.context.warn(format!("would violate PodSecurity \"{}\": {found}", policy.warn));
    }
    Ok(())
}

fn count(a: &Attributes<'_>, level: LevelVersion, mode: &str, decision: &str, is_pod: bool) {
    let version = if level.level == Level::Privileged { Version::LATEST } else { level.version }.to_string();
    let operation = a.operation.word().to_lowercase();
    let resource = if is_pod { "pod" } else { "controller" };
    let labels = [decision, mode, level.level.word(), &version, &operation, resource, a.subresource()];
    a.target.core.metrics.series(&POD_SECURITY_EVALUATIONS, &labels).add(1.0);
}

/// Validates the labels of a namespace, and warns of existing pods that violate a newly enforced level.
fn check_namespace(a: &Attributes<'_>) -> Result<(), Status> {
    let (policy, errors) = Policy::of(&corten_meta::labels(&a.object));
    let (before, old_errors) = match &a.old {
        Some(old) => Policy::of(&corten_meta::labels(old)),
        None => (policy, Vec::new()),
    };
    if !errors.is_empty() && errors != old_errors {
        return Err(Status::invalid(&a.target.resource.group_kind(), a.name(), errors));
    }
    let new = policy.enforce;
    let old = before.enforce;
    let relaxed = new.version == old.version && new.level <= old.level;
    if a.old.is_some() && new.level != Level::Privileged && !relaxed {
        let pods = a.target.core.objects.cached_list("", "pods", a.name());
        warnings(a.name(), new, pods).into_iter().for_each(|warning| a.target.context.warn(warning));
    }
    Ok(())
}

/// Returns the warnings about existing pods that violate the level that their namespace newly enforces.
fn warnings(namespace: &str, level: LevelVersion, pods: Vec<std::sync::Arc<Object>>) -> Vec<String> {
    let total = pods.len();
    // One pod of each controller comes before the others, which are like it.
    let mut seen = HashSet::new();
    let (mut first, rest): (Vec<Value>, Vec<Value>) = pods.iter().map(|pod| pod.value()).partition(|pod| {
        let owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners.into_iter().find(|owner| owner["controller"] == true);
        controller.is_none_or(|owner| seen.insert(owner["uid"].as_str().unwrap_or_default().to_owned()))
    });
    first.extend(rest);
    first.truncate(MOST_PODS);
    let mut broken: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in &first {
        let reasons: Vec<String> = violations(level, pod).into_iter().map(|found| found.reason).collect();
        if !reasons.is_empty() {
            let name = corten_meta::name(pod);
            let (least, count) = broken.entry(reasons.join(", ")).or_insert_with(|| (name.to_owned(), 0));
            *count += 1;
            if name < least.as_str() {
                name.clone_into(least);
            }
        }
    }
    let mut messages = Vec::new();
    if first.len() < total {
        let checked = first.len();
        messages.push(format!(
            "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
        ));
    }
    if !broken.is_empty() {
        messages.push(format!(
            "existing pods in namespace {} violate the new PodSecurity enforce level \"{level}\"",
            quote(namespace)
        ));
    }
    let mut each: Vec<String> = broken
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            many => format!("{name} (and {} other pods): {reasons}", many - 1),
        })
        .collect();
    each.sort_unstable();
    messages.extend(each);
    messages
}

/// Returns the pod template of a workload.
fn template_of<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    if !a.subresource().is_empty() {
        return None;
    }
    let object = &a.object;
    ["/spec/jobTemplate/spec/template", "/spec/template", "/template"].into_iter().find_map(|at| object.pointer(at))
}

fn violations(level: LevelVersion, template: &Value) -> Vec<Violation> {
    let pod = Pod::new(template, level.version);
    let own: &[Check] = match level.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => baseline::LENIENT,
        Level::Restricted => restricted::CHECKS,
    };
    baseline::CHECKS.iter().chain(own).filter_map(|check| check(&pod)).collect()
}

/// Returns the violations in one line; `None` if there are none.
fn evaluate(level: LevelVersion, template: &Value) -> Option<String> {
    let found: Vec<String> = violations(level, template)
        .into_iter()
        .map(|v| if v.detail.is_empty() { v.reason } else { format!("{} ({})", v.reason, v.detail) })
        .collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// Returns a violation if `bad` holds.
pub fn violation(bad: bool, reason: &str, detail: impl FnOnce() -> String) -> Option<Violation> {
    bad.then(|| Violation { reason: reason.to_owned(), detail: detail() })
}

/// Formats names as `"a", "b"`.
pub fn quoted<T: AsRef<str>>(words: &[T]) -> String {
    words.iter().map(quote).collect::<Vec<_>>().join(", ")
}

/// Formats names as `container "a"` or `containers "a", "b"`.
pub fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", names.len()), quoted(names))
}

pub fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// Returns `use` or `uses`.
pub fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks upstream's fixtures, if they are available: each file is a pod that passes or fails its level.
    #[test]
    fn fixtures_pass_and_fail_as_upstream() {
        let Ok(directory) = std::env::var("KUBERNETES_FACTS") else {
            eprintln!("skipped: KUBERNETES_FACTS does not name a directory with pod-security/");
            return;
        };
        let mut wrong = Vec::new();
        let mut checked = 0;
        for level in [Level::Baseline, Level::Restricted] {
            for (folder, passes) in [("pass", true), ("fail", false)] {
                let path = format!("{directory}/pod-security/{}/{folder}", level.word());
                for file in std::fs::read_dir(path).expect("a folder of fixtures") {
                    let file = file.expect("a fixture").path();
                    let pod = corten_meta::decode_yaml(&std::fs::read(&file).expect("a file")).expect("a pod");
                    let found = evaluate(LevelVersion { level, version: Version::LATEST }, &pod);
                    if found.is_none() != passes {
                        wrong.push(format!("{} {found:?}", file.display()));
                    }
                    checked += 1;
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(checked > 100, "{checked}");
    }

    #[test]
    fn the_message_is_upstreams() {
        let pod = serde_json::json!({ "spec": { "containers": [{ "name": "c" }] } });
        assert_eq!(
            evaluate(LevelVersion { level: Level::Restricted, version: Version::LATEST }, &pod).unwrap(),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        assert_eq!(evaluate(LevelVersion { level: Level::Baseline, version: Version::LATEST }, &pod), None);
    }

    #[test]
    fn older_versions_have_fewer_checks() {
        let check = |pod: Value, label: &str, expected: Option<&str>| {
            let labels = [("enforce", "restricted"), ("enforce-version", label)];
            let labels = labels.map(|(key, value)| (format!("{PREFIX}{key}"), value.to_owned())).into();
            let found = evaluate(Policy::of(&labels).0.enforce, &pod);
            assert_eq!(found.is_some(), expected.is_some(), "{label} {found:?}");
            if let (Some(found), Some(expected)) = (found, expected) {
                assert!(found.contains(expected), "{found}");
            }
        };
        let secure = serde_json::json!({ "allowPrivilegeEscalation": false, "runAsNonRoot": true });
        let pod = |context: Value| serde_json::json!({ "spec": { "containers": [{ "name": "c", "securityContext": context }] } });
        check(pod(secure.clone()), "v1.18", None);
        check(pod(secure.clone()), "v1.19", Some("seccompProfile"));
        check(pod(secure.clone()), "v1.22", Some("unrestricted capabilities"));
        let mut adds = secure;
        adds["capabilities"] = serde_json::json!({ "add": ["SYS_ADMIN"] });
        check(pod(adds), "v1.18", Some("non-default capabilities"));
    }

    #[test]
    fn a_stricter_level_warns_of_existing_pods() {
        let pod = |name: &str, privileged: bool| {
            let context = serde_json::json!({ "privileged": privileged });
            let pod = serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "n" },
                "spec": { "containers": [{ "name": "c", "securityContext": context }] } });
            std::sync::Arc::new(Object::from_value(&pod, 1).unwrap())
        };
        let level = LevelVersion { level: Level::Baseline, version: Version::LATEST };
        let pods = vec![pod("b", true), pod("a", true), pod("good", false)];
        assert_eq!(
            warnings("n", level, pods),
            [
                "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 1 other pod): privileged",
            ]
        );
    }
}
