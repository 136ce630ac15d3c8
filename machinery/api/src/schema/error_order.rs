//! The order of errors: upstream validates an object field by field in the order of its types' declarations, and errors
//! from outside of the kind's own rules belong at the same positions.

use std::cmp::Ordering;

use corten_meta::field::{ErrorKind, FieldError};

use super::{FieldType, Type, schema};

/// The order in which the fields of a webhook are validated.
const WEBHOOK: &[&str] = &["clientConfig", "matchConditions", "admissionReviewVersions"];

/// A type of alternatives: errors of the selected one come before the refusal of the others.
const ALTERNATIVES: &str = "Mutation";

/// The types whose order of validation differs from that of their declaration.
const ORDERS: [(&str, &[&str]); 7] = [
    // The parts that all versions share are validated after them, under their former name.
    (
        "CustomResourceDefinitionSpec",
        &[
            "group",
            "scope",
            "versions",
            "names",
            "validation",
            "subresources",
            "additionalPrinterColumns",
            "selectableFields",
            "conversion",
            "preserveUnknownFields",
        ],
    ),
    ("MatchCondition", &["expression", "name"]),
    ("MutatingWebhook", WEBHOOK),
    ("ValidatingWebhook", WEBHOOK),
    ("Validation", &["expression", "messageExpression", "message", "reason"]),
    (
        "ValidatingAdmissionPolicySpec",
        &[
            "failurePolicy",
            "paramKind",
            "matchConstraints",
            "matchConditions",
            "variables",
            "validations",
            "auditAnnotations",
        ],
    ),
    (
        "MutatingAdmissionPolicySpec",
        &[
            "failurePolicy",
            "paramKind",
            "matchConstraints",
            "matchConditions",
            "variables",
            "mutations",
            "reinvocationPolicy",
        ],
    ),
];

/// The field that is validated before all others.
const FIRST: &str = ".adminAccess";

/// Inserts errors of an object of the named type among existing ones. The order of either is kept.
pub fn insert_errors(type_name: &str, errors: &mut Vec<FieldError>, more: Vec<FieldError>) {
    let root = schema().type_(type_name);
    for error in more {
        // The permission of defaults is validated before the defaults.
        if error.field.ends_with(FIRST) {
            errors.insert(0, error);
            continue;
        }
        let is_later = |other: &FieldError| {
            // A duplicate in a list is found after the errors of its items.
            let item = other.field.rsplit_once('.').map_or("", |(item, _)| item);
            let is_same = !item.is_empty() && error.field.starts_with(&format!("{item}."));
            // The permission of defaults is checked before their positions.
            let is_early = other.field == "spec.preserveUnknownFields" && other.detail.starts_with("must be false");
            // A change is validated after its result.
            !is_early
                && ((other.detail == "field is immutable" && !other.field.starts_with("metadata."))
                    || other.kind == ErrorKind::Duplicate && is_same
                    || root.is_some_and(|root| compare(root, &other.field, &error.field) == Ordering::Greater))
        };
        let at = errors.iter().position(is_later).unwrap_or(errors.len());
        errors.insert(at, error);
    }
}

/// Returns the order of two paths; paths that the type does not have are equal.
fn compare(root: &Type, left: &str, right: &str) -> Ordering {
    let mut current = root;
    for (left, right) in left.split('.').zip(right.split('.')) {
        let ((name, index), (other, other_index)) = (split(left), split(right));
        if name != other && current.short_name() == ALTERNATIVES {
            return if name == "patchType" { Ordering::Less } else { Ordering::Greater };
        }
        if name != other {
            let order = ORDERS.iter().find(|(t, _)| *t == current.short_name());
            let place = |name: &str| match order {
                Some((_, fields)) => fields.iter().position(|field| *field == name),
                None => current.declared().position(|field| field.name == name),
            };
            return place(name).zip(place(other)).map_or(Ordering::Equal, |(left, right)| left.cmp(&right));
        }
        if index != other_index {
            // A list is validated after its items.
            let place = |index: Option<usize>| index.unwrap_or(usize::MAX);
            return place(index).cmp(&place(other_index));
        }
        match current.field(name).and_then(|field| struct_of(&field.kind)) {
            Some(inner) => current = inner,
            None => return Ordering::Equal,
        }
    }
    Ordering::Equal
}

/// Returns the name of a step and the index of its item.
fn split(step: &str) -> (&str, Option<usize>) {
    let (name, rest) = step.split_once('[').unwrap_or((step, ""));
    (name, rest.strip_suffix(']').and_then(|number| number.parse().ok()))
}

fn struct_of(kind: &FieldType) -> Option<&'static Type> {
    match kind {
        FieldType::Ref(id) => Some(schema().get(*id)),
        FieldType::List(inner) => struct_of(inner),
        _ => None,
    }
}

/// Reports whether a path such as `spec.config[0].opaque.parameters.a` of an object of the named type leads into a raw
/// value, whose content the type does not have.
pub fn is_within_raw(type_name: &str, path: &str) -> bool {
    let Some(mut here) = schema().type_(type_name) else { return false };
    // The type of a map's values, if a key comes next.
    let mut values = None;
    for step in path.split('.') {
        let mut kind = match values.take() {
            Some(kind) => kind,
            None if here.scalar.is_some() => return true,
            None => match here.field(step.split('[').next().unwrap_or(step)) {
                Some(field) => &field.kind,
                None => return false,
            },
        };
        while let FieldType::List(items) = kind {
            kind = items;
        }
        match kind {
            FieldType::Map(inner) => values = Some(&**inner),
            FieldType::Ref(id) => here = schema().get(*id),
            _ => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use corten_meta::field::Path;

    use super::*;

    #[test]
    fn raw_values_have_no_fields() {
        const DEFINITION: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        for (type_name, path, within) in [
            ("io.k8s.api.apps.v1.ControllerRevision", "data.a", true),
            ("io.k8s.api.apps.v1.ControllerRevision", "data", false),
            ("io.k8s.api.apps.v1.ControllerRevision", "metadata.labels.a", false),
            ("io.k8s.api.resource.v1.DeviceClass", "spec.config[0].opaque.parameters.a.b", true),
            ("io.k8s.api.resource.v1.DeviceClass", "spec.config[0].opaque.driver", false),
            (DEFINITION, "spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.q.items.type", true),
            (DEFINITION, "spec.versions[0].schema.openAPIV3Schema.properties.spec.type", false),
        ] {
            assert_eq!(is_within_raw(type_name, path), within, "{path}");
        }
    }

    #[test]
    fn errors_are_in_the_order_of_their_fields() {
        let error = |path: &str| {
            let mut error = FieldError::required(&Path::root("x"), "");
            error.field = path.to_owned();
            error
        };
        let mut errors: Vec<FieldError> =
            ["spec.paramKind.kind", "spec.auditAnnotations[0].key", "spec.auditAnnotations[2].key"].map(error).into();
        let more = ["spec.auditAnnotations[0].valueExpression", "spec.auditAnnotations[1].valueExpression"];
        let kind = "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy";
        insert_errors(kind, &mut errors, more.map(error).into());
        let places: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let wanted =
            ["spec.paramKind.kind", "spec.auditAnnotations[0].key", more[0], more[1], "spec.auditAnnotations[2].key"];
        assert_eq!(places, wanted);

        let mut errors: Vec<FieldError> = ["webhooks[0].matchConditions[0].name"].map(error).into();
        let kind = "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration";
        insert_errors(kind, &mut errors, ["webhooks[0].matchConditions[0].expression"].map(error).into());
        assert_eq!(errors[1].field, "webhooks[0].matchConditions[0].name");

        let mut errors: Vec<FieldError> = ["spec.devices.requests[0].name"].map(error).into();
        let access = "spec.devices.requests[1].adminAccess";
        insert_errors("io.k8s.api.resource.v1.ResourceClaim", &mut errors, [access].map(error).into());
        assert_eq!(errors[0].field, access);

        let changed = |path: &str| FieldError { detail: "field is immutable".to_owned(), ..error(path) };
        let columns = "spec.additionalPrinterColumns[0].type";
        let mut errors = vec![changed("metadata.uid"), error("spec.versions"), error(columns), changed("spec.scope")];
        let more = ["spec.versions[0].schema", "spec.validation.openAPIV3Schema", "spec.selectableFields[0].jsonPath"];
        let kind = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        insert_errors(kind, &mut errors, more.map(error).into());
        let places: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(places, ["metadata.uid", more[0], "spec.versions", more[1], columns, more[2], "spec.scope"]);
    }
}
