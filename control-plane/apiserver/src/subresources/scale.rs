//! `scale`: the replicas of any kind that has them, as a Scale.
//!
//! The owner of the scale's replicas owns them in the parent: managers are translated both ways.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_access::Verb;
use corten_api::{ScalePaths, ScaleServing};
use corten_managed_fields::{
    Entry, Fields, Filter, Identity, Managers, Operation, Set, Type, Versions, managers_of, same_but_managers,
    set_managers,
};
use corten_meta::quote::quote;
use corten_meta::{Object, Status, Value};
use http::StatusCode;
use serde_json::json;

use crate::body::Reply;
use crate::decode::{Expected, object};
use crate::response;
use crate::verbs::apply::{Apply, checked_result};
use crate::verbs::get::check_export;
use crate::verbs::options::{Write, check_options};
use crate::verbs::patch::{Patch, is_apply};
use crate::write::Scope;
use crate::write::check_namespace;
use crate::write::field_ownership::{Ownership, identity};
use crate::write::{Change, Part, Transform, View, check_name, not_the_same};

/// The path of the replicas in the scale.
const REPLICAS: [&str; 2] = ["spec", "replicas"];

/// The replicas in the scale of a custom resource that has none.
const NO_REPLICAS: i32 = i32::MIN;

const SCALE: Expected<'static> = Expected {
    api_version: "autoscaling/v1",
    kind: "Scale",
    schema: "io.k8s.api.autoscaling.v1.Scale",
    custom: None,
    older: None,
    behaviour: None,
    is_merged: false,
};

pub async fn serve(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let paths = target.resource.kind.behaviour.scale().ok_or_else(Status::path_not_found)?;
    let parent = match target.context.info.verb {
        Verb::Get => {
            check_export(&target.context.info.query)?;
            target.core.registry.get(target.resource, target.namespace, target.name).await?
        }
        Verb::Update => {
            check_options(target.context, Write::Update)?;
            let mut wanted = object(target.context, bytes, &SCALE)?;
            check_namespace(target, &mut wanted)?;
            check_name(target, &wanted)?;
            write(target, &paths, &|old| tracked(target, &paths, old, wanted.clone())).await?
        }
        _ if is_apply(target) => {
            let patch = Apply::decode(target, bytes, SCALE.api_version, SCALE.kind)?;
            write(target, &paths, &|old| applied(target, &paths, old, patch.as_ref().map_err(Status::clone)?)).await?
        }
        _ => {
            let patch = Patch::decode(target, bytes)?;
            let transform = |old: &Value| {
                let mut scale = scale_to_change(target, &paths, old);
                set_managers(&mut scale, to_scale(target, &paths, &managers_of(old)));
                let patched = patch.apply(SCALE.schema, &scale)?;
                let mut wanted = patch.checked(target, patched, &SCALE)?;
                check_namespace(target, &mut wanted)?;
                check_name(target, &wanted)?;
                tracked(target, &paths, old, wanted)
            };
            write(target, &paths, &transform).await?
        }
    };
    let value = parent.value();
    // The storage version may lack the field that was written; the write succeeded nevertheless.
    if target.context.info.verb == Verb::Get && !has_replicas(target, &paths, &value) {
        return Err(Status::internal(format!(
            "the spec replicas field {} does not exist",
            quote(&paths.spec_replicas)
        )));
    }
    let scale = Object::from_value(&scale_of(&paths, &value), parent.revision);
    let scale = scale.map(Arc::new).map_err(|e| Status::internal(e.to_string()))?;
    let context = target.context;
    Ok(response::object(context.accept, context.include_object(), StatusCode::OK, corten_api::scale_kind(), &scale))
}

fn serving(target: &Scope<'_>) -> &'static ScaleServing {
    &target.resource.kind.serving().scale
}

async fn write(target: &Scope<'_>, paths: &ScalePaths, transform: &Transform<'_>) -> Result<Arc<Object>, Status> {
    let view = AsScale(target, paths);
    let change = Change::new(Part::Main, transform).owning(Ownership::Given).seen_as(&view);
    Ok(change.carry_out(target).await?.object().clone())
}

/// The view of a parent as its scale, for admission.
struct AsScale<'a, 't>(&'a Scope<'t>, &'a ScalePaths);

impl View for AsScale<'_, '_> {
    fn show(&self, object: &Value) -> Value {
        scale_of(self.1, object)
    }

    fn take(&self, object: Value, shown: &Value) -> Result<Value, Status> {
        validate(self.0, &object, shown)?;
        Ok(apply(self.0, self.1, &object, shown))
    }
}

/// Returns the parent with the wanted scale. The writer owns the replicas if it changes them.
fn tracked(target: &Scope<'_>, paths: &ScalePaths, old: &Value, wanted: Value) -> Result<Value, Status> {
    let before = managers_of(old);
    let scale = scale_to_change(target, paths, old);
    let by = Identity { api_version: SCALE.api_version.to_owned(), ..identity(target, Operation::Update) };
    let time = corten_meta::time::rfc3339(target.context.now);
    let from = without_zero(&scale);
    let to = without_zero(&wanted);
    let mut managers = to_scale(target, paths, &before);
    // Replicas without an owner, which were defaulted after an apply, stay without one.
    if !managers.is_empty() {
        managers = corten_managed_fields::update(&ScaleVersion, &from, &to, managers, &by, &time);
    }
    check_replicas(paths, &wanted)?;
    validate(target, old, &wanted)?;
    let mut new = apply(target, paths, old, &wanted);
    if !before.is_empty() {
        set_managers(&mut new, to_parent(target, paths, before, managers));
    }
    Ok(new)
}

/// Returns a scale as upstream serialises it: zero replicas are omitted, so they have no owner.
fn without_zero(scale: &Value) -> Value {
    let mut scale = scale.clone();
    if scale["spec"]["replicas"] == 0
        && let Some(spec) = scale["spec"].as_object_mut()
    {
        spec.remove("replicas");
    }
    scale
}

/// Returns the parent with an applied scale.
fn applied(target: &Scope<'_>, paths: &ScalePaths, old: &Value, patch: &Apply) -> Result<Value, Status> {
    let before = managers_of(old);
    let mut scale = scale_to_change(target, paths, old);
    set_managers(&mut scale, to_scale(target, paths, &before));
    let is_convertible = serving(target).is_convertible;
    if !is_convertible && managers_of(&scale).is_empty() {
        return Err(unconvertible("failed to create manager for existing fields: failed to convert live object (/; "));
    }
    let first = corten_managed_fields::before_first(corten_api::scale_kind());
    let wanted = patch.apply_to(&ScaleVersion, &scale, &first, target)?;
    if !is_convertible && !same_but_managers(&wanted, &scale) {
        return Err(unconvertible(&format!("failed to convert new object ({}", patch.object_name())));
    }
    let wanted = checked_result(target, wanted, &SCALE)?;
    check_name(target, &wanted)?;
    check_replicas(paths, &wanted)?;
    validate(target, old, &wanted)?;
    let mut new = apply(target, paths, old, &wanted);
    set_managers(&mut new, to_parent(target, paths, before, managers_of(&wanted)));
    Ok(new)
}

/// Returns the error of an apply that would change the scale of a custom resource, which upstream cannot convert.
fn unconvertible(what: &str) -> Status {
    let version = SCALE.api_version;
    let why = format!("to proper version: request to convert CR to an invalid group/version: {version}");
    let message = format!("{what}{version}, Kind={}) {why}", SCALE.kind);
    Status { code: 500, message, ..Status::default() }
}

/// Returns the path of the replicas in a parent, as a set.
fn replicas(paths: &ScalePaths) -> Set {
    let path: Vec<&str> = paths.spec_replicas.split('.').filter(|name| !name.is_empty()).collect();
    Set::of_fields(&[&path])
}

/// Returns the path of the replicas in each version of the parent; `None` for a version without a scale.
fn replicas_by_version(target: &Scope<'_>, paths: &ScalePaths) -> BTreeMap<String, Option<Set>> {
    let own = (target.resource.kind.api_version(), Some(replicas(paths)));
    let others = target.resource.versions.iter().map(|kind| {
        let paths = kind.behaviour.scale();
        (kind.api_version(), paths.as_ref().map(replicas))
    });
    others.chain([own]).collect()
}

/// Translates the managers of the replicas to managers of the scale.
fn to_scale(target: &Scope<'_>, paths: &ScalePaths, parent: &Managers) -> Managers {
    let versions = replicas_by_version(target, paths);
    let owns = |entry: &&Entry| {
        let path = versions.get(&entry.identity.api_version).and_then(Option::as_ref);
        path.is_some_and(|path| entry.fields.contains_all(path))
    };
    let entries = parent.entries.iter().filter(owns).map(|entry| {
        let identity = Identity { api_version: SCALE.api_version.to_owned(), ..entry.identity.clone() };
        Entry { identity, time: entry.time.clone(), fields: Fields::Decoded(Set::of_fields(&[&REPLICAS])) }
    });
    Managers { entries: entries.collect() }.unique()
}

/// Returns the managers of the parent after those of the scale changed: a manager that lost the replicas there loses
/// them here. An update of the scale has another version than an update of the parent, so it is another manager: its
/// replicas become an entry of their own, without a time.
fn to_parent(target: &Scope<'_>, paths: &ScalePaths, parent: Managers, mut scale: Managers) -> Managers {
    let versions = replicas_by_version(target, paths);
    let own = target.resource.kind.api_version();
    let mut managers = Managers::default();
    for mut entry in parent.entries {
        let Some(path) = versions.get(&entry.identity.api_version) else { continue };
        if let Some(path) = path
            && entry.fields.contains_all(path)
        {
            let is_kept = entry.identity.operation == Operation::Apply && scale.take(&entry.identity).is_some();
            if !is_kept {
                entry.fields.subtract(path);
            }
        }
        if !entry.fields.is_empty() {
            managers.entries.push(entry);
        }
    }
    for entry in scale.entries {
        if entry.fields.contains_all(&Set::of_fields(&[&REPLICAS])) {
            let identity = Identity { api_version: own.clone(), ..entry.identity };
            managers.entries.push(Entry { identity, time: None, fields: Fields::Decoded(replicas(paths)) });
        }
    }
    managers
}

/// The only version of the scale.
struct ScaleVersion;

impl Versions for ScaleVersion {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        Type::table(SCALE.schema).filter(|_| api_version == SCALE.api_version)
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Result<Option<Value>, Status> {
        Ok(None)
    }

    fn filter(&self, _: &str) -> &Filter {
        &Filter::All
    }
}

/// Refuses an invalid scale, or one of another parent. The replicas of a custom resource are validated with the custom
/// resource, and the rest of its scale is not; its only precondition is the resourceVersion.
fn validate(target: &Scope<'_>, old: &Value, scale: &Value) -> Result<(), Status> {
    if !serving(target).is_validated {
        return Ok(());
    }
    let uid = corten_meta::uid(scale);
    let actual = corten_meta::uid(old);
    let is_other = !uid.is_empty() && uid != actual;
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}");
    // The storage checks the UID of an update before its validation.
    if is_other && target.context.info.verb == Verb::Update {
        return Err(not_the_same(target, &why)?);
    }
    let errors = corten_api::scale_kind().validate(scale);
    if !errors.is_empty() {
        let kind = corten_meta::GroupKind { group: "autoscaling".to_owned(), kind: "Scale".to_owned() };
        return Err(Status::invalid(&kind, corten_meta::name(old), errors));
    }
    if is_other {
        let mut resource = target.resource.group_resource();
        resource.resource.push_str("/scale");
        return Err(Status::conflict(&resource, corten_meta::name(old), &why));
    }
    Ok(())
}

/// Returns the parent with the replicas of the scale.
fn apply(target: &Scope<'_>, paths: &ScalePaths, old: &Value, scale: &Value) -> Value {
    let serving = serving(target);
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    let mut new = old.clone();
    corten_meta::set(&mut new, &pointer(&paths.spec_replicas), replicas.into());
    let version = corten_meta::resource_version(scale);
    if !version.is_empty() || serving.clears_version {
        corten_meta::set(&mut new, "/metadata/resourceVersion", version.into());
    }
    let uid = corten_meta::uid(scale);
    if !uid.is_empty() && serving.is_validated {
        corten_meta::set(&mut new, "/metadata/uid", uid.into());
    }
    new
}

/// Returns whether a parent has replicas: built-in kinds have a default, a custom resource may have none.
fn has_replicas(target: &Scope<'_>, paths: &ScalePaths, parent: &Value) -> bool {
    serving(target).has_default || parent.pointer(&pointer(&paths.spec_replicas)).is_some_and(|n| !n.is_null())
}

/// Returns the scale of a parent that is about to change, which must set the replicas if the parent has none.
fn scale_to_change(target: &Scope<'_>, paths: &ScalePaths, parent: &Value) -> Value {
    let mut scale = scale_of(paths, parent);
    if !has_replicas(target, paths, parent) {
        scale["spec"]["replicas"] = NO_REPLICAS.into();
    }
    scale
}

fn check_replicas(paths: &ScalePaths, scale: &Value) -> Result<(), Status> {
    if scale["spec"]["replicas"] != NO_REPLICAS {
        return Ok(());
    }
    let path = quote(&paths.spec_replicas);
    Err(Status::bad_request(format!("the spec replicas field {path} cannot be empty")))
}

fn scale_of(paths: &ScalePaths, parent: &Value) -> Value {
    let number = |path: &str| parent.pointer(&pointer(path)).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = serde_json::Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = parent["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let mut status = json!({ "replicas": number(&paths.status_replicas) });
    if let Some(selector) = paths.selector.as_deref().and_then(|path| parent.pointer(&pointer(path))) {
        status["selector"] = selector_text(selector).into();
    }
    let mut scale = json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
                            "spec": { "replicas": number(&paths.spec_replicas) }, "status": status });
    corten_api::schema::fill_defaults(SCALE.schema, &mut scale);
    corten_api::schema::fill_zeros(SCALE.schema, &mut scale);
    scale
}

/// Formats a selector, which may be a string already, a LabelSelector or a map.
fn selector_text(selector: &Value) -> String {
    match selector {
        Value::String(text) => text.clone(),
        Value::Object(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
            corten_meta::Selector::from_label_selector(selector).map(|s| s.to_string()).unwrap_or_default()
        }
        Value::Object(map) => {
            let terms: Vec<String> =
                map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
            terms.join(",")
        }
        _ => String::new(),
    }
}

/// Returns `.spec.replicas` as a JSON pointer.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}
