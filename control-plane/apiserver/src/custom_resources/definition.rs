//! From a CustomResourceDefinition to the kinds it defines. Pure.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use corten_api::{Approval, Column, JsonPath, Kind, NameRule, ScalePaths};
use corten_meta::quote::quote;
use corten_meta::{FieldError, Path, Value};
use serde_json::json;

use super::behaviour::{CustomResource, PrinterColumn};
use crate::version_priority::priority;

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn words(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Where the objects are stored.
pub fn prefix(definition: &Value) -> String {
    format!("/registry/{}/{}", text(definition, "/spec/group"), text(definition, "/spec/names/plural"))
}

/// The condition that tells whether the community has approved of names in its groups.
const APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";

/// Which names a definition was given, and in which group.
pub struct Names {
    pub group: String,
    accepted: Value,
    settled: bool,
}

impl Names {
    pub fn of(definition: &Value) -> Names {
        let accepted = definition.pointer("/status/acceptedNames").cloned().unwrap_or_default();
        let settled = definition.pointer("/spec/names") == Some(&accepted)
            && holds(definition, "NamesAccepted")
            && is_established(definition)
            && approved(definition).is_none();
        Names { group: text(definition, "/spec/group").to_owned(), accepted, settled }
    }

    /// Whether there is nothing left to accept.
    pub fn are_settled(&self) -> bool {
        self.settled
    }
}

/// The names that the definitions of a group have taken.
#[derive(Default)]
pub struct Taken {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl Taken {
    /// By all definitions of a group, also those that a definition has itself: it keeps them for what they are.
    pub fn in_group<'a>(group: &str, all: impl Iterator<Item = &'a Names>) -> Taken {
        let mut taken = Taken::default();
        for Names { accepted, .. } in all.filter(|names| names.group == group) {
            taken.resources.extend(["/plural", "/singular"].map(|field| text(accepted, field).to_owned()));
            taken.resources.extend(words(accepted, "/shortNames"));
            taken.kinds.extend(["/kind", "/listKind"].map(|field| text(accepted, field).to_owned()));
        }
        taken
    }

    /// The names that a definition gets of those that it asks for, each by itself; and the last conflict: why, and what.
    fn give(&self, asked: &Value, had: &Value) -> (Value, Option<(&'static str, String)>) {
        let mut given = if had.is_object() { had.clone() } else { json!({}) };
        let mut conflict = None;
        let in_use = |name: &str| format!("{} is already in use", quote(name));
        let mut one = |field: &str, taken: &BTreeSet<String>, reason: &'static str| {
            let name = asked[field].as_str().unwrap_or_default();
            match asked.get(field) == had.get(field) || !taken.contains(name) {
                true => take(&mut given, asked, field),
                false => conflict = Some((reason, in_use(name))),
            }
        };
        one("plural", &self.resources, "PluralConflict");
        one("singular", &self.resources, "SingularConflict");
        one("kind", &self.kinds, "KindConflict");
        one("listKind", &self.kinds, "ListKindConflict");
        let own = words(had, "/shortNames");
        let is_taken = |name: &String| !own.contains(name) && self.resources.contains(name);
        let taken: Vec<String> = words(asked, "/shortNames").into_iter().filter(is_taken).collect();
        let told: Vec<String> = taken.iter().map(|name| in_use(name)).collect();
        // A conflict of kinds is told after that of short names.
        let is_of_kinds = |(reason, _): &(&str, String)| reason.contains("Kind");
        match told.as_slice() {
            [] => take(&mut given, asked, "shortNames"),
            _ if conflict.as_ref().is_some_and(is_of_kinds) => {}
            [one] => conflict = Some(("ShortNamesConflict", one.clone())),
            many => conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
        }
        take(&mut given, asked, "categories");
        (given, conflict)
    }
}

/// The field of the other, also when it has none.
fn take(into: &mut Value, from: &Value, field: &str) {
    match (into.as_object_mut(), from.get(field)) {
        (Some(into), Some(value)) => drop(into.insert(field.to_owned(), value.clone())),
        (Some(into), None) => drop(into.remove(field)),
        (None, _) => {}
    }
}

/// The names that a definition is served under: those that it was given, once it was.
pub fn served_names(definition: &Value) -> &Value {
    let given = definition
        .pointer("/status/acceptedNames")
        .filter(|_| !text(definition, "/status/acceptedNames/plural").is_empty());
    given.or(definition.pointer("/spec/names")).unwrap_or(&Value::Null)
}

/// The definition with its conditions and accepted names; `None` if it has them.
pub fn accepted(definition: &Value, taken: &Taken, now: jiff::Timestamp) -> Option<Value> {
    let mut new = definition.clone();
    let names = &definition["spec"]["names"];
    let had = &definition["status"]["acceptedNames"];
    let (given, conflict) = taken.give(names, had);
    corten_meta::set(&mut new, "/status/acceptedNames", given);
    match conflict {
        None => {
            set_condition(&mut new, ("NamesAccepted", true), "NoConflicts", "no conflicts found", now);
            if !is_established(definition) && has_invalid_bundle(definition) {
                let message = "The conversion webhook CABundle is invalid";
                set_condition(&mut new, ("Established", false), "InvalidCABundle", message, now);
            } else {
                let message = "the initial names have been accepted";
                set_condition(&mut new, ("Established", true), "InitialNamesAccepted", message, now);
            }
        }
        Some((reason, message)) => {
            set_condition(&mut new, ("NamesAccepted", false), reason, &message, now);
            // What was told before stays so: what is established is, under the names that it has.
            if !tells(definition, "Established") {
                let message = "not all names are accepted";
                set_condition(&mut new, ("Established", false), "NotAccepted", message, now);
            }
        }
    }
    if let Some((approval, says)) = approved(definition) {
        set_condition(&mut new, (APPROVED, says), approval.reason(), &approval.message(), now);
    }
    (new != *definition).then_some(new)
}

/// Whether there is a condition of this type.
fn tells(definition: &Value, kind: &str) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind)
}

/// Whether a condition holds.
fn holds(definition: &Value, kind: &str) -> bool {
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

/// What a condition must say of the community's approval, and does not say yet.
fn approved(definition: &Value) -> Option<(Approval, bool)> {
    let approval = Approval::of(definition)?;
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array);
    let told = conditions.into_iter().flatten().find(|condition| condition["type"] == APPROVED);
    let is_told = |told: &Value| told["reason"] == approval.reason() && told["message"] == approval.message();
    let is_given = matches!(approval, Approval::Given(_));
    (!told.is_some_and(is_told)).then_some((approval, is_given))
}

/// Whether requests for its objects are answered: from when its names are accepted.
pub fn is_served(definition: &Value) -> bool {
    is_established(definition) || holds(definition, "NamesAccepted")
}

/// Whether a definition is established, once and for all.
pub fn is_established(definition: &Value) -> bool {
    holds(definition, "Established")
}

/// Whether its objects are being deleted.
pub fn is_terminating(definition: &Value) -> bool {
    holds(definition, "Terminating")
}

/// The definition with what is told of the deletion of its objects; `None` if it tells that. The moment is that of the
/// last change of the condition itself.
pub fn terminating(definition: &Value, is_so: bool, reason: &str, message: &str) -> Option<Value> {
    let mut new = definition.clone();
    let now = corten_meta::time::rfc3339(jiff::Timestamp::now());
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let condition = conditions.into_iter().flatten().find(|condition| condition["type"] == "Terminating")?;
    let status = if is_so { "True" } else { "False" };
    if condition["status"] != status {
        condition["lastTransitionTime"] = now.into();
    }
    for (field, word) in [("status", status), ("reason", reason), ("message", message)] {
        condition[field] = word.into();
    }
    (new != *definition).then_some(new)
}

/// What is wrong with a bundle that a definition which is served did not have before: then it was valid, or there was
/// none.
pub fn validate_bundle(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let Some(old) = old.filter(|old| is_established(old) && !has_invalid_bundle(old)) else { return Vec::new() };
    if text(new, "/spec/conversion/strategy") != "Webhook" || old.pointer("/spec") == new.pointer("/spec") {
        return Vec::new();
    }
    let client = new.pointer("/spec/conversion/webhook/clientConfig").unwrap_or(&Value::Null);
    let place = Path::root("spec").child("conversion").child("webhookClientConfig").child("caBundle");
    let why = crate::outbound::bundle_error(client);
    why.map(|why| FieldError::invalid(&place, client["caBundle"].clone(), why)).into_iter().collect()
}

/// Whether the webhook of a definition is to be trusted by certificates that are none.
fn has_invalid_bundle(definition: &Value) -> bool {
    let client = definition.pointer("/spec/conversion/webhook/clientConfig");
    client.and_then(crate::outbound::bundle_error).is_some()
}

/// Writes a condition, unless it says the same already.
fn set_condition(
    definition: &mut Value,
    (kind, status): (&str, bool),
    reason: &str,
    message: &str,
    now: jiff::Timestamp,
) {
    let mut conditions: Vec<Value> =
        definition.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let status = if status { "True" } else { "False" };
    let mut condition = json!({ "type": kind, "status": status, "reason": reason, "message": message,
                                "lastTransitionTime": corten_meta::time::rfc3339(now) });
    match conditions.iter_mut().find(|old| old["type"] == kind) {
        // What was so before is so since then, for whatever reason.
        Some(old) if old["status"] == status => {
            condition["lastTransitionTime"] = old["lastTransitionTime"].take();
            *old = condition;
        }
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
    corten_meta::set(definition, "/status/conditions", json!(conditions));
}

/// The verbs of a custom resource, in the order in which discovery shows them.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// The kinds of all versions; the definition is as of this revision. One that is not served still says what objects are
/// stored as, or were.
pub fn kinds(definition: &Value, revision: u64) -> Vec<Kind> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(storage) = versions.iter().find(|v| v["storage"] == true) else { return Vec::new() };
    let stored = storage["name"].as_str().unwrap_or_default().to_owned();
    versions.iter().map(|version| kind(definition, version, &stored, revision)).collect()
}

fn kind(definition: &Value, version: &Value, stored: &str, revision: u64) -> Kind {
    let group = text(definition, "/spec/group");
    let plural = text(definition, "/spec/names/plural");
    let name = version["name"].as_str().unwrap_or_default();
    let names = served_names(definition);
    let mut kind = Kind::new(group, name, text(names, "/kind"), plural);
    kind = if name == stored {
        kind.stored_at(&prefix(definition))
    } else {
        kind.stored_as(&prefix(definition), group, stored)
    };
    if text(definition, "/spec/scope") == "Cluster" {
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
    // Discovery names the status of a custom resource before its scale, other than those of built-in ones.
    kind.subresources.reverse();
    let columns = printer_columns(version);
    let name = Column::new("Name", "string").format("name");
    kind.columns = std::iter::once(name).chain(columns.iter().map(PrinterColumn::column)).collect();
    kind.list_kind = text(names, "/listKind").to_owned();
    kind.singular = text(names, "/singular").to_owned();
    kind.short_names = words(names, "/shortNames");
    kind.categories = words(names, "/categories");
    kind.deprecation = deprecation(definition, version).map(Into::into);
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
    let by_webhook = text(definition, "/spec/conversion/strategy") == "Webhook";
    let conversion = definition.pointer("/spec/conversion/webhook").filter(|_| by_webhook).cloned();
    let defined_at = revision;
    let rules = OnceLock::new();
    kind.behaviour = Arc::new(CustomResource { schema, columns, scale, has_status, conversion, defined_at, rules });
    kind
}

/// What who uses a version is warned of that is on its way out: in the definition's words, or that there is a newer one.
fn deprecation(definition: &Value, version: &Value) -> Option<String> {
    if version["deprecated"] != true || version["served"] != true {
        return None;
    }
    if let Some(warning) = version["deprecationWarning"].as_str() {
        return Some(warning.to_owned());
    }
    let group = text(definition, "/spec/group");
    let kind = text(definition, "/spec/names/kind");
    let name = version["name"].as_str().unwrap_or_default();
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let sound = versions.filter(|other| other["served"] == true && other["deprecated"] != true);
    let names = sound.filter_map(|other| other["name"].as_str());
    let newest = names.max_by_key(|name| priority(name)).filter(|newest| priority(newest) > priority(name));
    let instead = newest.map(|newest| format!("; use {group}/{newest} {kind}")).unwrap_or_default();
    Some(format!("{group}/{name} {kind} is deprecated{instead}"))
}

fn scale_paths(scale: &Value) -> ScalePaths {
    let path = |key: &str| scale[key].as_str().unwrap_or_default().to_owned();
    let selector = scale["labelSelectorPath"].as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    ScalePaths { spec_replicas: path("specReplicasPath"), status_replicas: path("statusReplicasPath"), selector }
}

/// The columns of a version, up to the first whose path cannot be read.
fn printer_columns(version: &Value) -> Vec<PrinterColumn> {
    let given = version["additionalPrinterColumns"].as_array().filter(|list| !list.is_empty());
    let Some(given) = given else {
        return vec![PrinterColumn::new("Age", "date", JsonPath::read(".metadata.creationTimestamp"), 0, "", "")];
    };
    given
        .iter()
        .map_while(|c| {
            let word = |key: &str| c[key].as_str().unwrap_or_default();
            let priority = c["priority"].as_i64().unwrap_or(0) as i32;
            let path = word("jsonPath");
            let said = word("description");
            let unsaid = format!("Custom resource definition column (in JSONPath format): {path}");
            let description = if said.is_empty() { &unsaid } else { said };
            let path = JsonPath::parse(path).ok()?;
            Some(PrinterColumn::new(word("name"), word("type"), path, priority, word("format"), description))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, plural: &str, kind: &str) -> Value {
        json!({ "metadata": { "name": name }, "spec": { "group": "a.b", "names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List") } } })
    }

    #[test]
    fn columns_end_at_a_path_that_is_none() {
        let column = |path: &str| json!({ "name": path, "type": "string", "jsonPath": path });
        let columns = |paths: &[&str]| {
            let given: Vec<Value> = paths.iter().map(|path| column(path)).collect();
            printer_columns(&json!({ "additionalPrinterColumns": given })).len()
        };
        assert_eq!(columns(&[".a", ".b['c']"]), 2);
        assert_eq!(columns(&[".a", ".b[\"c\"]", ".d"]), 1);
        assert_eq!(columns(&[]), 1);
    }

    #[test]
    fn who_uses_what_is_on_its_way_out_is_warned() {
        let version = |name: &str, deprecated: bool, warning: Value| json!({ "name": name, "served": true, "deprecated": deprecated, "deprecationWarning": warning });
        let mut foo = definition("foos.a.b", "foos", "Foo");
        foo["spec"]["versions"] = json!([
            version("v1", false, Value::Null),
            version("v2beta1", true, Value::Null),
            version("v0", true, Value::Null),
            version("v3", true, "go".into())
        ]);
        let warned: Vec<Option<String>> =
            foo["spec"]["versions"].as_array().unwrap().iter().map(|version| deprecation(&foo, version)).collect();
        let told = ["a.b/v2beta1 Foo is deprecated; use a.b/v1 Foo", "a.b/v0 Foo is deprecated; use a.b/v1 Foo", "go"];
        assert_eq!(warned[0], None);
        assert_eq!(warned[1..].iter().flatten().collect::<Vec<_>>(), told);
        let alone = json!({ "spec": { "group": "a.b", "names": { "kind": "Foo" } } });
        let told = deprecation(&alone, &version("v1", true, Value::Null));
        assert_eq!(told.as_deref(), Some("a.b/v1 Foo is deprecated"));
    }

    #[test]
    fn the_approval_of_the_community_is_told() {
        let accept = |definition: &Value| accepted(definition, &Taken::default(), jiff::Timestamp::UNIX_EPOCH);
        let mut foo = definition("foos.a.k8s.io", "foos", "Foo");
        foo["spec"]["group"] = json!("a.k8s.io");
        foo["metadata"]["annotations"] = json!({ "api-approved.kubernetes.io": "unapproved, an experiment" });
        let mut foo = accept(&foo).unwrap();
        let told = |foo: &Value| {
            let conditions = foo["status"]["conditions"].as_array().unwrap();
            let condition = conditions.iter().find(|condition| condition["type"] == APPROVED).unwrap();
            [&condition["status"], &condition["reason"]].map(|text| text.as_str().unwrap().to_owned())
        };
        assert_eq!(told(&foo), ["False", "UnapprovedAnnotation"]);
        assert!(Names::of(&foo).are_settled());
        foo["metadata"]["annotations"] = json!({ "api-approved.kubernetes.io": "https://example.com/1" });
        assert!(!Names::of(&foo).are_settled());
        assert_eq!(told(&accept(&foo).unwrap()), ["True", "ApprovedAnnotation"]);
    }

    #[test]
    fn a_name_is_given_once() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let accept = |definition: &Value, others: &[&Value]| {
            let others: Vec<Names> = others.iter().map(|other| Names::of(other)).collect();
            accepted(definition, &Taken::in_group("a.b", others.iter().chain([&Names::of(definition)])), now)
        };
        let first = definition("foos.a.b", "foos", "Foo");
        assert!(!Names::of(&first).are_settled());
        let first = accept(&first, &[]).unwrap();
        assert!(is_established(&first) && Names::of(&first).are_settled());
        assert_eq!(accept(&first, &[&first]), None);
        let second = definition("bars.a.b", "bars", "Foo");
        let second = accept(&second, &[&first]).unwrap();
        assert!(!is_established(&second) && !Names::of(&second).are_settled());
        let conditions = second.pointer("/status/conditions").unwrap();
        assert_eq!(
            (&conditions[0]["reason"], &conditions[0]["message"]),
            (&json!("ListKindConflict"), &json!("\"FooList\" is already in use"))
        );
        assert_eq!(conditions[1]["reason"], "NotAccepted");
        // It has got the one name that was free.
        assert_eq!(second["status"]["acceptedNames"], json!({ "plural": "bars" }));
        // With the first one gone, it is accepted.
        let mut second = accept(&second, &[]).unwrap();
        assert!(is_established(&second));
        assert_eq!(second["status"]["acceptedNames"], second["spec"]["names"]);
        // What is established keeps its names while it asks for others, each by itself.
        second["spec"]["names"]["shortNames"] = json!(["bars", "foos", "b"]);
        second["spec"]["names"]["categories"] = json!(["all"]);
        second["spec"]["names"]["singular"] = json!("bar");
        let second = accept(&second, &[&first]).unwrap();
        let told = &second["status"]["conditions"][0];
        let message = "[\"bars\" is already in use, \"foos\" is already in use]";
        assert_eq!((&told["reason"], &told["message"]), (&json!("ShortNamesConflict"), &json!(message)));
        let names = served_names(&second);
        assert_eq!((&names["singular"], &names["categories"]), (&json!("bar"), &json!(["all"])));
        assert!(names.get("shortNames").is_none() && is_established(&second));
    }
}
