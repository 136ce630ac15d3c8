//! The rules of LimitRange: minimum, default and maximum of a resource are in order.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::quantity::{Format, MAX_MILLI_VALUE, Quantity};
use corten_meta::{Value, names};

use super::resource_validation::{Of, can_overcommit, validate_name_of, validate_resource_name};
use crate::check::{At, Errors};

pub(super) fn validate_limit_range(object: &Value) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for limit in At::object(object).get("spec").get("limits").items() {
        let kind = limit.get("type");
        validate_type(&kind, &mut errors);
        if !seen.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
        validate_names(&limit, &mut errors);
        validate_order(&limit, &mut errors);
        validate_ratios(&limit, &mut errors);
    }
    errors
}

fn validate_type(kind: &At<'_>, errors: &mut Errors) {
    let messages = names::qualified_name(kind.text());
    let standard = ["Pod", "Container", "PersistentVolumeClaim"].contains(&kind.text());
    errors.extend(messages.iter().map(|why| FieldError::invalid(&kind.path, kind.text(), why.as_str()).as_json()));
    if messages.is_empty() && !kind.text().contains('/') && !standard {
        errors.push(kind.invalid("must be a standard limit type or fully qualified"));
    }
}

fn validate_names(limit: &At<'_>, errors: &mut Errors) {
    let kind = limit.get("type").text();
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"].map(|f| limit.get(f)) {
        let defaults = field.path == limit.get("default").path || field.path == limit.get("defaultRequest").path;
        if kind == "Pod" && defaults && !field.is_empty() {
            errors.push(field.forbidden("may not be specified when `type` is 'Pod'"));
            continue;
        }
        for (resource, quantity) in field.entries() {
            match kind {
                "Pod" | "Container" => validate_name_of(Of::Container, resource, &quantity, errors),
                _ => {
                    validate_resource_name(resource, &quantity, errors);
                }
            }
        }
    }
    let storage = |field: &str| limit.get(field).get("storage").is_set();
    if kind == "PersistentVolumeClaim" && !storage("min") && !storage("max") {
        let detail = "either minimum or maximum storage value is required, but neither was provided";
        errors.push(limit.get("limits").required(detail));
    }
}

fn quantities<'a>(limit: &At<'a>, field: &str) -> BTreeMap<&'a str, Quantity> {
    limit.get(field).entries().filter_map(|(resource, quantity)| Some((resource, quantity.quantity()?))).collect()
}

/// Validates each pair of (the smaller, the larger, the field of the error, the value it shows, and their names).
fn validate_order(limit: &At<'_>, errors: &mut Errors) {
    const PAIRS: [(&str, &str, &str, &str, &str, &str); 6] = [
        ("min", "max", "min", "min", "min value", "max value"),
        ("min", "defaultRequest", "defaultRequest", "defaultRequest", "min value", "default request value"),
        ("defaultRequest", "max", "defaultRequest", "defaultRequest", "default request value", "max value"),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "defaultRequest",
            "default request value",
            "default limit value",
        ),
        ("min", "default", "default", "min", "min value", "default value"),
        ("default", "max", "default", "max", "default value", "max value"),
    ];
    for (small, large, place, shown, small_word, large_word) in PAIRS {
        let smaller = quantities(limit, small);
        let larger = quantities(limit, large);
        let shown = quantities(limit, shown);
        for (resource, quantity) in smaller {
            let Some(bound) = larger.get(resource).filter(|bound| quantity > **bound) else { continue };
            let detail = format!("{small_word} {quantity} is greater than {large_word} {bound}");
            let value = shown.get(resource).map(ToString::to_string).unwrap_or_default();
            errors.push(FieldError::invalid(&limit.path.child(place).key(resource), value, detail));
        }
    }
    let requests = quantities(limit, "defaultRequest");
    for (resource, default) in quantities(limit, "default").into_iter().filter(|(r, _)| !can_overcommit(r)) {
        if let Some(request) = requests.get(resource).filter(|request| **request != default) {
            let path = limit.path.child("defaultRequest").key(resource);
            let detail = format!("default value {default} must equal to defaultRequest value {request} in {resource}");
            errors.push(FieldError::invalid(&path, request.to_string(), detail));
        }
    }
}

fn validate_ratios(limit: &At<'_>, errors: &mut Errors) {
    let [least, most, defaults, requests] =
        ["min", "max", "default", "defaultRequest"].map(|field| quantities(limit, field));
    for (resource, ratio) in quantities(limit, "maxLimitRequestRatio") {
        let path = limit.path.child("maxLimitRequestRatio").key(resource);
        if ratio < Quantity::from_value(1, Format::DecimalSi) {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(FieldError::invalid(&path, ratio.to_string(), detail));
        }
        if let (Some(least), Some(most)) = (least.get(resource), most.get(resource)) {
            let defaults = [&defaults, &requests].into_iter().filter_map(|of| of.get(resource));
            let least = least.compared_with(defaults.chain([most]));
            let (ratio_value, widest) = counted(&ratio, &least, most);
            if ratio_value > widest {
                let widest = corten_meta::go::fixed(widest);
                let detail = format!("ratio {ratio} is greater than max/min = {widest}");
                errors.push(FieldError::invalid(&path, ratio.to_string(), detail));
            }
        }
    }
}

/// Returns a ratio, and the widest ratio of two quantities. Upstream computes both with integers.
fn counted(ratio: &Quantity, least: &Quantity, most: &Quantity) -> (f64, f64) {
    match [ratio, least, most].iter().all(|quantity| quantity.value() < MAX_MILLI_VALUE) {
        true => (ratio.milli_value() as f64 / 1000.0, most.milli_value() as f64 / least.milli_value() as f64),
        false => (ratio.value() as f64, most.value() as f64 / least.value() as f64),
    }
}
