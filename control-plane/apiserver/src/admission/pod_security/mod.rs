//! PodSecurity: the Pod Security Standards, as the labels of a namespace ask for them.
//!
//! `enforce` refuses pods; `warn` also speaks up for workloads whose pods would be refused later. The checks are
//! pure functions on a pod spec, one list for each level.

mod baseline;
mod restricted;

use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::{Attributes, Operation, Plugin};

const PREFIX: &str = "pod-security.kubernetes.io/";

/// What a check found: the reason in short, and the detail.
pub struct Violation {
    pub reason: String,
    pub detail: String,
}

/// One check; `None` is a pass.
pub type Check = fn(&Pod<'_>) -> Option<Violation>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Level {
        match text {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            // What cannot be understood is read as the safest, as upstream does.
            _ => Level::Restricted,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }
}

/// A pod spec and the annotations beside it.
pub struct Pod<'a> {
    pub spec: &'a Value,
    pub annotations: std::collections::BTreeMap<String, String>,
}

impl<'a> Pod<'a> {
    fn new(template: &'a Value) -> Pod<'a> {
        Pod { spec: &template["spec"], annotations: corten_meta::annotations(template) }
    }

    /// All containers of all kinds.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| spec[list].as_array().into_iter().flatten())
    }

    pub fn is_windows(&self) -> bool {
        self.spec.pointer("/os/name").and_then(Value::as_str) == Some("windows")
    }

    /// The names of the containers that fail a test.
    pub fn bad(&self, test: impl Fn(&Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|c| test(c)).map(|c| c["name"].as_str().unwrap_or_default()).collect()
    }
}

pub struct PodSecurity;

impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let ephemeral = a.operation == Operation::Update && a.is("", "pods", "ephemeralcontainers");
            if a.creates("", "pods") || ephemeral {
                return check_pod(a);
            }
            if let Some(template) = template_of(a) {
                warn_of(a, template);
            }
            Ok(())
        })
    }
}

/// The level and version of a mode, from the labels of the namespace.
fn mode(a: &Attributes<'_>, mode: &str) -> (Level, String) {
    let namespace = a.target.server.cached("", "v1", "namespaces", "", a.target.namespace);
    let label = |name: String| namespace.as_ref().and_then(|n| n.header.labels.get(&name).cloned());
    let level = label(format!("{PREFIX}{mode}")).map_or(Level::Privileged, |text| Level::parse(&text));
    (level, label(format!("{PREFIX}{mode}-version")).unwrap_or_else(|| "latest".to_owned()))
}

fn check_pod(a: &Attributes<'_>) -> Result<(), Status> {
    let pod = Pod::new(&a.object);
    let (level, version) = mode(a, "enforce");
    if let Some(found) = evaluate(level, &pod) {
        return Err(a.forbidden(format!("violates PodSecurity \"{}:{version}\": {found}", level.word())));
    }
    warn_of(a, &a.object);
    Ok(())
}

fn warn_of(a: &Attributes<'_>, template: &Value) {
    let (level, version) = mode(a, "warn");
    if let Some(found) = evaluate(level, &Pod::new(template)) {
        a.target.context.warn(format!("would violate PodSecurity \"{}:{version}\": {found}", level.word()));
    }
}

/// The pod template of a workload.
fn template_of<'a>(a: &'a Attributes<'_>) -> Option<&'a Value> {
    let kind = &a.target.resource.kind;
    let workload = matches!(kind.group.as_str(), "apps" | "batch")
        || (kind.group.is_empty() && matches!(kind.plural.as_str(), "replicationcontrollers" | "podtemplates"));
    if !workload || a.operation == Operation::Delete || !a.subresource().is_empty() {
        return None;
    }
    let object = &a.object;
    ["/spec/jobTemplate/spec/template", "/spec/template", "/template"].into_iter().find_map(|at| object.pointer(at))
}

/// Everything that breaks a level, in one line; `None` if nothing does.
fn evaluate(level: Level, pod: &Pod<'_>) -> Option<String> {
    let checks: Vec<Check> = match level {
        Level::Privileged => return None,
        Level::Baseline => baseline::CHECKS.iter().chain(baseline::LENIENT).copied().collect(),
        Level::Restricted => baseline::CHECKS.iter().chain(restricted::CHECKS).copied().collect(),
    };
    let found: Vec<String> = checks
        .into_iter()
        .filter_map(|check| check(pod))
        .map(|v| if v.detail.is_empty() { v.reason } else { format!("{} ({})", v.reason, v.detail) })
        .collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// A violation, if there is something bad.
pub fn violation(bad: bool, reason: &str, detail: impl FnOnce() -> String) -> Option<Violation> {
    bad.then(|| Violation { reason: reason.to_owned(), detail: detail() })
}

/// `"a", "b"`.
pub fn quoted<T: AsRef<str>>(words: &[T]) -> String {
    words.iter().map(|word| format!("{:?}", word.as_ref())).collect::<Vec<_>>().join(", ")
}

/// `container "a"` or `containers "a", "b"`.
pub fn containers(names: &[&str]) -> String {
    format!("{} {}", plural("container", names.len()), quoted(names))
}

pub fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// `use` or `uses`.
pub fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's fixtures, where they are at hand: each file is a pod that passes or fails its level.
    #[test]
    fn fixtures_pass_and_fail_as_upstream_says() {
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
                    let found = evaluate(level, &Pod::new(&pod));
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
            evaluate(Level::Restricted, &Pod::new(&pod)).unwrap(),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        assert_eq!(evaluate(Level::Baseline, &Pod::new(&pod)), None);
    }
}
