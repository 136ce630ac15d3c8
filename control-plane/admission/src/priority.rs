//! Priority: a pod's priority and preemption policy come from its PriorityClass; and at most one class is the global
//! default.

use std::sync::Arc;

use corten_meta::{Object, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

use corten_access::Verb;

const GROUP: &str = "scheduling.k8s.io";
/// The encoded field of the global default class.
const ENCODED_DEFAULT: &[u8] = br#""globalDefault":true"#;
/// The prefix of the names of system classes.
const SYSTEM_PREFIX: &str = "system-";

pub struct Priority;

impl Plugin for Priority {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match a.operation {
                Operation::Create if a.is("", "pods", "") => admit_pod(a).await,
                Operation::Update if a.is("", "pods", "") => {
                    keep(a);
                    Ok(())
                }
                _ => Ok(()),
            }
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.is(GROUP, "priorityclasses", "") {
                return Ok(());
            }
            let old_name = a.old.as_deref().map(corten_meta::name).unwrap_or_default();
            // A deletion of the collection is not refused, as it is not upstream.
            let is_single = a.operation == Operation::Delete && *a.target.context.verb() == Verb::Delete;
            if is_single && old_name.starts_with(SYSTEM_PREFIX) {
                return Err(a.forbidden("this is a system priority class and cannot be deleted"));
            }
            if a.operation == Operation::Delete || a.object["globalDefault"] != true {
                return Ok(());
            }
            match global_default(a) {
                Some((name, _)) if a.operation == Operation::Create || name != corten_meta::name(&a.object) => Err(a
                    .forbidden(format!(
                        "PriorityClass {name} is already marked as default. Only one default can exist"
                    ))),
                _ => Ok(()),
            }
        })
    }
}

async fn admit_pod(a: &mut Attributes<'_>) -> Result<(), Status> {
    let name = a.object.pointer("/spec/priorityClassName").and_then(Value::as_str).unwrap_or_default().to_owned();
    let class = if name.is_empty() {
        global_default(a)
    } else {
        let core = a.target.core;
        let class = match core.objects.cached(GROUP, "priorityclasses", "", &name) {
            Some(class) => class,
            None => {
                // An invalid name is not looked up.
                let found = match corten_meta::names::path_segment_name(&name).is_empty() {
                    true => core.objects.read(GROUP, "priorityclasses", "", &name).await?,
                    false => None,
                };
                found.ok_or_else(|| a.forbidden(format!("no PriorityClass with name {name} was found")))?
            }
        };
        Some((name.clone(), class.value()))
    };
    let (value, policy) = match &class {
        Some((_, class)) => (
            class["value"].as_i64().unwrap_or(0),
            class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority").to_owned(),
        ),
        None => (0, "PreemptLowerPriority".to_owned()),
    };
    let requested = a.object.pointer("/spec/priority").and_then(Value::as_i64);
    if requested.is_some_and(|requested| requested != value) {
        return Err(a.forbidden(format!(
            "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name",
            requested.unwrap_or(0)
        )));
    }
    let wanted = a.object.pointer("/spec/preemptionPolicy").and_then(Value::as_str);
    if let Some(wanted) = wanted.filter(|wanted| *wanted != policy) {
        return Err(a.forbidden(format!(
            "the string value of PreemptionPolicy ({wanted}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if let Some((class, _)) = class {
        corten_meta::set(&mut a.object, "/spec/priorityClassName", class.into());
    }
    corten_meta::set(&mut a.object, "/spec/priority", value.into());
    corten_meta::set(&mut a.object, "/spec/preemptionPolicy", policy.into());
    Ok(())
}

/// Keeps the priority fields that this plugin set at creation: an author who writes the original manifest again does
/// not mean to change them.
fn keep(a: &mut Attributes<'_>) {
    let old = a.old.as_deref();
    let kept = ["/spec/priority", "/spec/preemptionPolicy"].map(|field| {
        let is_set = a.object.pointer(field).is_some_and(|value| !value.is_null());
        (field, old.filter(|_| !is_set).and_then(|old| old.pointer(field)).filter(|value| !value.is_null()).cloned())
    });
    for (field, value) in kept {
        if let Some(value) = value {
            corten_meta::set(&mut a.object, field, value);
        }
    }
}

/// Returns the global default class; of several, the one with the lowest value.
fn global_default(a: &Attributes<'_>) -> Option<(String, Value)> {
    let classes = a.target.core.objects.cached_list(GROUP, "priorityclasses", "");
    // This runs for every pod: a class without the encoded field is skipped undecoded.
    let may_be_default =
        |class: &&Arc<Object>| class.bytes.windows(ENCODED_DEFAULT.len()).any(|window| window == ENCODED_DEFAULT);
    let marked = classes.iter().filter(may_be_default).map(|c| c.value());
    let defaults = marked.filter(|c| c["globalDefault"] == true);
    let lowest = defaults.min_by_key(|c| c["value"].as_i64().unwrap_or(0))?;
    Some((corten_meta::name(&lowest).to_owned(), lowest))
}
