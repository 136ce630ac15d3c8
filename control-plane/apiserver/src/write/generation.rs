//! `metadata.generation`: the number of changes to the desired state.

use std::borrow::Cow;

use corten_api::Kind;
use corten_meta::Value;

/// Raises the generation if anything but metadata and status has changed. An empty field and an absent one are the
/// same, but to the few kinds that count it. `as_sent` is the object with its empty lists and maps.
pub fn bump(kind: &Kind, new: &mut Value, as_sent: Option<&Value>, old: &Value) {
    let rules = &kind.rules;
    if !rules.generation {
        return;
    }
    // Without a status subresource, status is a field like any other.
    let counts_status = !rules.has_status;
    fn wanted(object: &Value, counts_status: bool) -> impl Iterator<Item = (&String, &Value)> {
        let fields = object.as_object().into_iter().flatten();
        fields.filter(move |(name, _)| match name.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => counts_status,
            _ => true,
        })
    }
    let is_other = |object: &Value| !wanted(object, counts_status).eq(wanted(old, counts_status));
    let is_changed = match rules.counts_empty {
        true => is_other(as_sent.unwrap_or(new)),
        false => {
            let exact = as_sent.map_or(Cow::Borrowed(&*new), |given| kind.exact(new, given));
            // A field that is always written is stored as null where it is empty.
            is_other(&exact) && is_other(&kind.settled(&exact))
        }
    };
    if is_changed {
        raise(new, old);
    }
}

/// Raises the generation by one.
pub fn raise(new: &mut Value, old: &Value) {
    let generation = corten_meta::generation(old) + 1;
    corten_meta::set(new, "/metadata/generation", generation.into());
}

/// Returns whether a request has fields that the schema does not know. They raise the generation though they are
/// pruned.
pub fn has_unknown_fields(kind: &Kind, applied: &Value) -> bool {
    let mut kept = applied.clone();
    kind.behaviour.prune(&mut kept);
    let is_wanted = |name: &str| name != "metadata" && (name != "status" || !kind.rules.has_status);
    let fields = applied.as_object().into_iter().flatten();
    kind.rules.generation
        && fields.filter(|(name, _)| is_wanted(name)).any(|(name, value)| kept.get(name) != Some(value))
}

#[cfg(test)]
mod tests {
    use corten_api::schema::schema;

    #[test]
    fn a_built_in_kind_with_a_status_has_its_subresource() {
        let counted = |kind: &&std::sync::Arc<corten_api::Kind>| kind.rules.generation && !kind.rules.has_status;
        for kind in corten_api::kinds().iter().filter(counted) {
            let fields = &schema().type_(&kind.schema).expect("a type of the table").fields;
            assert!(fields.iter().all(|field| field.name != "status"), "{} would count its status", kind.kind);
        }
    }
}
