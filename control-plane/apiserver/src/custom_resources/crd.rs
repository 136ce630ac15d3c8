//! Converts a CustomResourceDefinition to the kinds that it defines, and computes its conditions. Pure.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use corten_api::{Approval, Column, JsonPath, Kind, NameRule, ScalePaths};
use corten_meta::quote::quote;
use corten_meta::{FieldError, Path, Value};
use corten_structural::{CustomResource, PrinterColumn};
use serde_json::json;

use crate::version_priority::priority;

fn string<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn words(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the prefix of the keys of the objects.
pub fn prefix(crd: &Value) -> String {
    format!("/registry/{}/{}", string(crd, "/spec/group"), string(crd, "/spec/names/plural"))
}

/// The type of the condition that reports the API approval of groups in the community's domains.
const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";

/// The accepted names of a CRD, and its group.
pub struct Names {
    pub group: String,
    accepted: Value,
    settled: bool,
}

impl Names {
    pub fn of(crd: &Value) -> Names {
        let accepted = crd.pointer("/status/acceptedNames").cloned().unwrap_or_default();
        let settled = crd.pointer("/spec/names") == Some(&accepted)
            && holds(crd, "NamesAccepted")
            && is_established(crd)
            && approved(crd).is_none();
        Names { group: string(crd, "/spec/group").to_owned(), accepted, settled }
    }

    /// Reports whether names and conditions need no update.
    pub fn are_settled(&self) -> bool {
        self.settled
    }
}

/// The names that the CRDs of a group have taken.
#[derive(Default)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    /// Collects the names of all CRDs of a group, also those of the CRD itself, which may keep its names.
    pub fn in_group<'a>(group: &str, all: impl Iterator<Item = &'a Names>) -> Taken {
        let mut taken = Taken::default();
        for Names { accepted, .. } in all.filter(|names| names.group == group) {
            taken.resources.extend(["/plural", "/singular"].map(|field| string(accepted, field).to_owned()));
            taken.resources.extend(words(accepted, "/shortNames"));
            taken.kinds.extend(["/kind", "/listKind"].map(|field| string(accepted, field).to_owned()));
        }
        taken
    }

    /// Returns the accepted names of the requested ones, field by field, and the last conflict: its reason and message.
    fn accept(&self, requested: &Value, current: &Value) -> (Value, Option<(&'static str, String)>) {
        let mut names = if current.is_object() { current.clone() } else { json!({}) };
        let mut conflict = None;
        let in_use = |name: &str| format!("{} is already in use", quote(name));
        let mut one = |field: &str, taken: &BTreeSet<String>, reason: &'static str| {
            let name = requested[field].as_str().unwrap_or_default();
            match requested.get(field) == current.get(field) || !taken.contains(name) {
                true => take(&mut names, requested, field),
                false => conflict = Some((reason, in_use(name))),
            }
        };
        one("plural", &self.resources, "PluralConflict");
        one("singular", &self.resources, "SingularConflict");
        one("kind", &self.kinds, "KindConflict");
        one("listKind", &self.kinds, "ListKindConflict");
        let own = words(current, "/shortNames");
        let is_taken = |name: &String| !own.contains(name) && self.resources.contains(name);
        let taken: Vec<String> = words(requested, "/shortNames").into_iter().filter(is_taken).collect();
        let messages: Vec<String> = taken.iter().map(|name| in_use(name)).collect();
        // A conflict of kinds precedes that of short names.
        let is_of_kinds = |(reason, _): &(&str, String)| reason.contains("Kind");
        match messages.as_slice() {
            [] => take(&mut names, requested, "shortNames"),
            _ if conflict.as_ref().is_some_and(is_of_kinds) => {}
            [one] => conflict = Some(("ShortNamesConflict", one.clone())),
            many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
        }
        take(&mut names, requested, "categories");
        (names, conflict)
    }
}

/// Copies a field, or removes it if it is absent.
fn take(into: &mut Value, from: &Value, field: &str) {
    match (into.as_object_mut(), from.get(field)) {
        (Some(into), Some(value)) => drop(into.insert(field.to_owned(), value.clone())),
        (Some(into), None) => drop(into.remove(field)),
        (None, _) => {}
    }
}

/// Returns the names that a CRD is served under: the accepted ones, if there are any.
pub fn served_names(crd: &Value) -> &Value {
    let accepted =
        crd.pointer("/status/acceptedNames").filter(|_| !string(crd, "/status/acceptedNames/plural").is_empty());
    accepted.or(crd.pointer("/spec/names")).unwrap_or(&Value::Null)
}

/// Returns the CRD with updated conditions and accepted names; `None` if it is up to date.
pub fn accepted(crd: &Value, taken: &Taken, now: jiff::Timestamp) -> Option<Value> {
    let mut new = crd.clone();
    let current = &crd["status"]["acceptedNames"];
    let (accepted, conflict) = taken.accept(&crd["spec"]["names"], current);
    corten_meta::set(&mut new, "/status/acceptedNames", accepted);
    let mut set = |condition: Condition<'_>| set_condition(&mut new, condition, now);
    match conflict {
        None => {
            set(Condition {
                kind: "NamesAccepted",
                is_true: true,
                reason: "NoConflicts",
                message: "no conflicts found",
            });
            if !is_established(crd) && has_invalid_bundle(crd) {
                let message = "The conversion webhook CABundle is invalid";
                set(Condition { kind: "Established", is_true: false, reason: "InvalidCABundle", message });
            } else {
                let message = "the initial names have been accepted";
                set(Condition { kind: "Established", is_true: true, reason: "InitialNamesAccepted", message });
            }
        }
        Some((reason, message)) => {
            set(Condition { kind: "NamesAccepted", is_true: false, reason, message: &message });
            // An existing condition stays: an established CRD remains established, under its accepted names.
            if !has_condition(crd, "Established") {
                let message = "not all names are accepted";
                set(Condition { kind: "Established", is_true: false, reason: "NotAccepted", message });
            }
        }
    }
    if let Some((approval, is_approved)) = approved(crd) {
        set(Condition {
            kind: APPROVED,
            is_true: is_approved,
            reason: approval.reason(),
            message: &approval.message(),
        });
    }
    (new != *crd).then_some(new)
}

/// Reports whether the CRD has a condition of this type.
fn has_condition(crd: &Value, kind: &str) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind)
}

/// Reports whether a condition is true.
fn holds(crd: &Value, kind: &str) -> bool {
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

/// Returns the API approval if its condition is not up to date, and whether the API is approved.
fn approved(crd: &Value) -> Option<(Approval, bool)> {
    let approval = Approval::of(crd)?;
    let conditions = crd.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == APPROVED);
    let is_current = |old: &Value| old["reason"] == approval.reason() && old["message"] == approval.message();
    let is_approved = matches!(approval, Approval::Given(_));
    (!condition.is_some_and(is_current)).then_some((approval, is_approved))
}

/// Reports whether the CRD's objects are served, which begins when its names are accepted.
pub fn is_served(crd: &Value) -> bool {
    is_established(crd) || holds(crd, "NamesAccepted")
}

/// Reports whether a CRD is established, which never changes back.
pub fn is_established(crd: &Value) -> bool {
    holds(crd, "Established")
}

/// Reports whether its objects are being deleted.
pub fn is_terminating(crd: &Value) -> bool {
    holds(crd, "Terminating")
}

/// Returns the CRD with an updated Terminating condition; `None` if it is up to date. The time is that of the last
/// transition of the condition.
pub fn terminating(crd: &Value, is_true: bool, reason: &str, message: &str) -> Option<Value> {
    let mut new = crd.clone();
    let now = corten_meta::time::rfc3339(jiff::Timestamp::now());
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == "Terminating")?;
    let status = if is_true { "True" } else { "False" };
    if condition["status"] != status {
        condition["lastTransitionTime"] = now.into();
    }
    for (field, word) in [("status", status), ("reason", reason), ("message", message)] {
        condition[field] = word.into();
    }
    (new != *crd).then_some(new)
}

/// Validates the CA bundle of an established CRD's webhook, if the old CRD had a valid bundle or none.
pub fn validate_bundle(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let Some(old) = old.filter(|old| is_established(old) && !has_invalid_bundle(old)) else { return Vec::new() };
    if string(new, "/spec/conversion/strategy") != "Webhook" || old.pointer("/spec") == new.pointer("/spec") {
        return Vec::new();
    }
    let client = new.pointer("/spec/conversion/webhook/clientConfig").unwrap_or(&Value::Null);
    let path = Path::root("spec").child("conversion").child("webhookClientConfig").child("caBundle");
    let why = crate::outbound::bundle_error(client);
    why.map(|why| FieldError::invalid(&path, client["caBundle"].clone(), why)).into_iter().collect()
}

/// Reports whether the CA bundle of a CRD's webhook is invalid.
fn has_invalid_bundle(crd: &Value) -> bool {
    let client = crd.pointer("/spec/conversion/webhook/clientConfig");
    client.and_then(crate::outbound::bundle_error).is_some()
}

/// A condition of a CRD without its transition time.
struct Condition<'a> {
    kind: &'a str,
    is_true: bool,
    reason: &'a str,
    message: &'a str,
}

fn set_condition(crd: &mut Value, condition: Condition<'_>, now: jiff::Timestamp) {
    let Condition { kind, is_true, reason, message } = condition;
    let mut conditions: Vec<Value> =
        crd.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let status = if is_true { "True" } else { "False" };
    let mut condition = json!({ "type": kind, "status": status, "reason": reason, "message": message,
                                "lastTransitionTime": corten_meta::time::rfc3339(now) });
    match conditions.iter_mut().find(|old| old["type"] == kind) {
        // The transition time stays while the status does, even if the reason changes.
        Some(old) if old["status"] == status => {
            condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            *old = condition;
        }
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
    corten_meta::set(crd, "/status/conditions", json!(conditions));
}

/// The verbs of a custom resource, in the order of discovery.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Returns the kinds of all versions, for the CRD at this revision. A version that is not served may still be the
/// storage version.
pub fn kinds(crd: &Value, revision: u64) -> Vec<Kind> {
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(storage) = versions.iter().find(|v| v["storage"] == true) else { return Vec::new() };
    let stored = storage["name"].as_str().unwrap_or_default().to_owned();
    versions.iter().map(|version| kind(crd, version, &stored, revision)).collect()
}

fn kind(crd: &Value, version: &Value, stored: &str, revision: u64) -> Kind {
    let group = string(crd, "/spec/group");
    let plural = string(crd, "/spec/names/plural");
    let name = version["name"].as_str().unwrap_or_default();
    let names = served_names(crd);
    let mut kind = Kind::new(group, name, string(names, "/kind"), plural);
    kind = if name == stored { kind.stored_at(&prefix(crd)) } else { kind.stored_as(&prefix(crd), group, stored) };
    if string(crd, "/spec/scope") == "Cluster" {
        kind = kind.cluster();
    }
    kind = kind.verbs(if version["served"] == true { VERBS } else { &[] });
    if version.pointer("/subresources/status").is_some_and(|s| !s.is_null()) {
        kind = kind.status();
    }
    let scale = version.pointer("/subresources/scale").filter(|s| s.is_object()).map(scale_paths);
    if scale.is_some() {
        kind = kind.scale();
    }
    // Discovery lists the status of a custom resource before its scale, unlike those of built-in ones.
    kind.subresources.reverse();
    let columns = printer_columns(version);
    let name = Column::new("Name", "string").format("name");
    kind.columns = std::iter::once(name).chain(columns.iter().map(PrinterColumn::column)).collect();
    kind.list_kind = string(names, "/listKind").to_owned();
    kind.singular = string(names, "/singular").to_owned();
    kind.short_names = words(names, "/shortNames");
    kind.categories = words(names, "/categories");
    kind.deprecation = deprecation(crd, version).map(Into::into);
    kind.schema = String::new();
    kind.rules.generation = true;
    kind.rules.is_owned_as_sent = true;
    kind.rules.is_defaulted_as_sent = true;
    kind.rules.status_keeps_metadata = true;
    kind.rules.allow_unconditional_update = false;
    kind.rules.name_rule = NameRule::Subdomain;
    let schema = version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or(Value::Null);
    let selectable = version["selectableFields"].as_array().into_iter().flatten();
    let selectable = selectable.filter_map(|field| field["jsonPath"].as_str());
    kind.selectable_fields = selectable.map(|path| path.trim_start_matches('.').to_owned()).collect();
    let has_status = kind.rules.has_status;
    let by_webhook = string(crd, "/spec/conversion/strategy") == "Webhook";
    let conversion = crd.pointer("/spec/conversion/webhook").filter(|_| by_webhook).cloned();
    let defined_at = revision;
    let rules = OnceLock::new();
    kind.behaviour = Arc::new(CustomResource { schema, columns, scale, has_status, conversion, defined_at, rules });
    kind
}

/// Returns the warning for clients of a deprecated version: the CRD's own, or one that names a newer version.
fn deprecation(crd: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true || version["served"] != true {
        return None;
    }
    if let Some(warning) = version["deprecationWarning"].as_str() {
        return Some(warning.to_owned());
    }
    let group = string(crd, "/spec/group");
    let kind = string(crd, "/spec/names/kind");
    let name = version["name"].as_str().unwrap_or_default();
    let versions = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let current_versions = versions.filter(|other| other["served"] == true && other["deprecated"] != true);
    let names = current_versions.filter_map(|other| other["name"].as_str());
    let newest = names.max_by_key(|name| priority(name)).filter(|newest| priority(newest) > priority(name));
    let instead = newest.map(|newest| format!("; use {group}/{newest} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

fn scale_paths(scale: &Value) -> ScalePaths {
    let path = |key: &str| scale[key].as_str().unwrap_or_default().to_owned();
    let selector = scale["labelSelectorPath"].as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    ScalePaths { spec_replicas: path("specReplicasPath"), status_replicas: path("statusReplicasPath"), selector }
}

/// Returns the columns of a version, up to the first with an invalid path.
fn printer_columns(version: &Value) -> Vec<PrinterColumn> {
    let columns = version["additionalPrinterColumns"].as_array().filter(|list| !list.is_empty());
    let Some(columns) = columns else {
        return vec![PrinterColumn::new("Age", "date", JsonPath::read(".metadata.creationTimestamp"), 0, "", "")];
    };
    columns
        .iter()
        .map_while(|c| {
            let word = |key: &str| c[key].as_str().unwrap_or_default();
            let priority = c["priority"].as_i64().unwrap_or(0) as i32;
            let path = word("jsonPath");
            let description = word("description");
            let default_description = format!("Custom resource definition column (in JSONPath format): {path}");
            let description = if description.is_empty() { &default_description } else { description };
            let path = JsonPath::parse(path).ok()?;
            Some(PrinterColumn::new(word("name"), word("type"), path, priority, word("format"), description))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(name: &str, plural: &str, kind: &str) -> Value {
        json!({ "metadata": { "name": name }, "spec": { "group": "a.b", "names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List") } } })
    }

    #[test]
    fn columns_end_at_an_invalid_path() {
        let column = |path: &str| json!({ "name": path, "type": "string", "jsonPath": path });
        let columns = |paths: &[&str]| {
            let columns: Vec<Value> = paths.iter().map(|path| column(path)).collect();
            printer_columns(&json!({ "additionalPrinterColumns": columns })).len()
        };
        assert_eq!(columns(&[".a", ".b['c']"]), 2);
        assert_eq!(columns(&[".a", ".b[\"c\"]", ".d"]), 1);
        assert_eq!(columns(&[]), 1);
    }

    #[test]
    fn a_deprecated_version_has_a_warning() {
        let version = |name: &str, deprecated: bool, warning: Value| json!({ "name": name, "served": true, "deprecated": deprecated, "deprecationWarning": warning });
        let mut foo = crd("foos.a.b", "foos", "Foo");
        foo["spec"]["versions"] = json!([
            version("v1", false, Value::Null),
            version("v2beta1", true, Value::Null),
            version("v0", true, Value::Null),
            version("v3", true, "go".into())
        ]);
        let warned: Vec<Option<String>> =
            foo["spec"]["versions"].as_array().unwrap().iter().map(|version| deprecation(&foo, version)).collect();
        let expected =
            ["a.b/v2beta1 Foo is deprecated; use a.b/v1 Foo", "a.b/v0 Foo is deprecated; use a.b/v1 Foo", "go"];
        assert_eq!(warned[0], None);
        assert_eq!(warned[1..].iter().flatten().collect::<Vec<_>>(), expected);
        let alone = json!({ "spec": { "group": "a.b", "names": { "kind": "Foo" } } });
        let warning = deprecation(&alone, &version("v1", true, Value::Null));
        assert_eq!(warning.as_deref(), Some("a.b/v1 Foo is deprecated"));
    }

    #[test]
    fn the_api_approval_is_a_condition() {
        let accept = |crd: &Value| accepted(crd, &Taken::default(), jiff::Timestamp::UNIX_EPOCH);
        let mut foo = crd("foos.a.k8s.io", "foos", "Foo");
        foo["spec"]["group"] = json!("a.k8s.io");
        foo["metadata"]["annotations"] = json!({ "api-approved.kubernetes.io": "unapproved, an experiment" });
        let mut foo = accept(&foo).unwrap();
        let status_and_reason = |foo: &Value| {
            let conditions = foo["status"]["conditions"].as_array().unwrap();
            let condition = conditions.iter().find(|condition| condition["type"] == APPROVED).unwrap();
            [&condition["status"], &condition["reason"]].map(|string| string.as_str().unwrap().to_owned())
        };
        assert_eq!(status_and_reason(&foo), ["False", "UnapprovedAnnotation"]);
        assert!(Names::of(&foo).are_settled());
        foo["metadata"]["annotations"] = json!({ "api-approved.kubernetes.io": "https://example.com/1" });
        assert!(!Names::of(&foo).are_settled());
        assert_eq!(status_and_reason(&accept(&foo).unwrap()), ["True", "ApprovedAnnotation"]);
    }

    #[test]
    fn a_name_is_accepted_once() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let accept = |crd: &Value, others: &[&Value]| {
            let others: Vec<Names> = others.iter().map(|other| Names::of(other)).collect();
            accepted(crd, &Taken::in_group("a.b", others.iter().chain([&Names::of(crd)])), now)
        };
        let first = crd("foos.a.b", "foos", "Foo");
        assert!(!Names::of(&first).are_settled());
        let first = accept(&first, &[]).unwrap();
        assert!(is_established(&first) && Names::of(&first).are_settled());
        assert_eq!(accept(&first, &[&first]), None);
        let second = crd("bars.a.b", "bars", "Foo");
        let second = accept(&second, &[&first]).unwrap();
        assert!(!is_established(&second) && !Names::of(&second).are_settled());
        let conditions = second.pointer("/status/conditions").unwrap();
        assert_eq!(
            (&conditions[0]["reason"], &conditions[0]["message"]),
            (&json!("ListKindConflict"), &json!("\"FooList\" is already in use"))
        );
        assert_eq!(conditions[1]["reason"], "NotAccepted");
        // The CRD gets the one name that is not taken.
        assert_eq!(second["status"]["acceptedNames"], json!({ "plural": "bars" }));
        // Without the first CRD, all its names are accepted.
        let mut second = accept(&second, &[]).unwrap();
        assert!(is_established(&second));
        assert_eq!(second["status"]["acceptedNames"], second["spec"]["names"]);
        // An established CRD keeps its names when the requested ones conflict, field by field.
        second["spec"]["names"]["shortNames"] = json!(["bars", "foos", "b"]);
        second["spec"]["names"]["categories"] = json!(["all"]);
        second["spec"]["names"]["singular"] = json!("bar");
        let second = accept(&second, &[&first]).unwrap();
        let condition = &second["status"]["conditions"][0];
        let message = "[\"bars\" is already in use, \"foos\" is already in use]";
        assert_eq!((&condition["reason"], &condition["message"]), (&json!("ShortNamesConflict"), &json!(message)));
        let names = served_names(&second);
        assert_eq!((&names["singular"], &names["categories"]), (&json!("bar"), &json!(["all"])));
        assert!(names.get("shortNames").is_none() && is_established(&second));
    }
}
