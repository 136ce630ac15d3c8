//! The rules of ResourceSlice: the nodes that reach its devices, and the devices.

use corten_meta::field::FieldError;
use corten_meta::{Quantity, Value, names};

use super::validation::{limited_set, validate_binding_conditions, validate_qualified};
use crate::check::{At, Errors};
use crate::rules::{self, Site};

/// Validates the devices of a slice; fewer of them if some have taints or counters.
pub(crate) fn slice_devices(site: &Site<'_, '_>, errors: &mut Errors) {
    let devices = site.at;
    let advanced = devices.items().any(|d| !d.get("taints").is_empty() || !d.get("consumesCounters").is_empty());
    let each = site.of.get("perDeviceNodeSelection").is_true();
    let before = site.old.map(At::object);
    let validate = |device: &At<'_>, errors: &mut Errors| {
        let is_same = |old: At<'_>| old.get("name").text() == device.get("name").text();
        let before = before.as_ref().and_then(|devices| devices.items().find(|old| is_same(old.clone())));
        validate_device(device, before.as_ref(), each, errors);
    };
    limited_set(devices, if advanced { 64 } else { 128 }, &validate, &|device| device.get("name"), errors);
}

/// Returns the used ways to name nodes, and validates each. A slice may choose for each of its devices, and its own
/// selector has one term, so that those of several slices can be joined.
fn node_choices<'a>(at: &At<'_>, fields: &[&'a str], errors: &mut Errors) -> Vec<&'a str> {
    let is_slice = fields.contains(&"perDeviceNodeSelection");
    let empty = if is_slice { "must be either unset or set to a non-empty string" } else { "must not be empty" };
    let mut used = Vec::new();
    for field in fields {
        let own = at.get(field);
        match (*field, own.is_set()) {
            (_, false) => continue,
            ("nodeName", _) if own.is_empty() => errors.push(own.invalid(empty)),
            ("nodeName", _) => {
                used.push(*field);
                own.follows(errors, names::dns1123_subdomain);
            }
            ("nodeSelector", _) => {
                used.push(*field);
                rules::check(".core.v1.NodeSelector", &own, errors);
                let terms = own.get("nodeSelectorTerms");
                if is_slice && terms.len() != 1 {
                    errors.push(terms.invalid("must have exactly one node selector term"));
                }
            }
            _ if own.is_true() => used.push(*field),
            _ => errors.push(own.invalid("must be either unset or set to true")),
        }
    }
    used
}

pub(crate) fn slice_nodes(spec: &At<'_>, errors: &mut Errors) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let fields = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    let used = node_choices(spec, &fields, errors);
    match used.as_slice() {
        [] => errors.push(spec.required(ONE)),
        [_] => {}
        many => {
            let detail = format!("{ONE}, but multiple fields are set");
            errors.push(FieldError::invalid(&spec.path, braced(many), detail));
        }
    }
}

fn braced(fields: &[&str]) -> String {
    let quoted: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
    format!("{{{}}}", quoted.join(", "))
}

fn validate_device(device: &At<'_>, before: Option<&At<'_>>, each: bool, errors: &mut Errors) {
    device.get("name").follows_also_empty(errors, names::dns1123_label);
    let attributes = device.get("attributes");
    let capacity = device.get("capacity");
    let total = attributes.len() + capacity.len();
    if total > 32 {
        let detail = "the total number of attributes and capacities must not exceed 32";
        errors.push(FieldError::invalid(&device.path, total, detail));
    }
    for (name, attribute) in attributes.entries() {
        validate_qualified(name, &attributes, errors);
        validate_attribute(&attribute.with(attributes.path.key(shortened(name))), errors);
    }
    let shared = device.get("allowMultipleAllocations").is_true();
    for (name, quantity) in capacity.entries() {
        validate_qualified(name, &capacity, errors);
        let quantity = quantity.with(capacity.path.key(shortened(name)));
        let policy = quantity.get("requestPolicy");
        if policy.is_object() && !shared {
            errors.push(policy.forbidden("allowMultipleAllocations must be true"));
        } else if let Some(most) = quantity.get("value").quantity().filter(|_| policy.is_object()) {
            validate_request_policy(&policy, &most, errors);
        }
    }
    // Unchanged taints are not validated.
    if before.is_none_or(|before| before.get("taints").value != device.get("taints").value) {
        device.get("taints").each_of_at_most(errors, 16, |taint, e| rules::check(".resource.v1.DeviceTaint", taint, e));
    }
    let validate = |consumption: &At<'_>, e: &mut Errors| {
        rules::check(".resource.v1.DeviceCounterConsumption", consumption, e);
    };
    limited_set(&device.get("consumesCounters"), 2, &validate, &|c| c.get("counterSet"), errors);
    validate_device_nodes(device, each, errors);
    validate_binding_conditions(device, errors);
}

/// Returns a key without its middle if it is longer than any valid one.
fn shortened(key: &str) -> String {
    const MAX: usize = 63 + 1 + 32;
    match (key.get(..(MAX - 2) / 2), key.get(key.len().saturating_sub((MAX - 3) / 2)..)) {
        (Some(head), Some(tail)) if key.len() > MAX => format!("{head}...{tail}"),
        _ => key.to_owned(),
    }
}

fn validate_device_nodes(device: &At<'_>, each: bool, errors: &mut Errors) {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    let fields = ["nodeName", "nodeSelector", "allNodes"];
    if !each {
        if fields.iter().any(|field| device.get(field).is_set()) {
            let detail = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.push(FieldError::invalid(&device.path, Value::Null, detail));
        }
        return;
    }
    let used = node_choices(device, &fields, errors);
    match used.as_slice() {
        [] => errors.push(device.required(ONE)),
        [_] => {}
        many => errors.push(FieldError::invalid(&device.path, braced(many), ONE)),
    }
}

fn validate_attribute(attribute: &At<'_>, errors: &mut Errors) {
    const VALUES: [&str; 8] = ["bool", "int", "string", "version", "bools", "ints", "strings", "versions"];
    const DETAIL: &str = "exactly one value must be specified";
    let text = |at: &At<'_>, version: bool, errors: &mut Errors| {
        if version && at.is_set() && !is_semantic_version(at.text()) {
            errors.push(at.invalid("must be a string compatible with semver.org spec 2.0.0"));
        }
        at.at_most_bytes(errors, 64);
    };
    text(&attribute.get("string"), false, errors);
    text(&attribute.get("version"), true, errors);
    for field in ["bools", "ints", "strings", "versions"] {
        let values = attribute.get(field);
        if values.is_set() && values.is_empty() {
            errors.push(values.invalid("must not be empty if specified"));
        }
        if field == "strings" || field == "versions" {
            values.each(errors, |value, e| text(value, field == "versions", e));
        }
    }
    match VALUES.iter().filter(|field| attribute.get(field).is_set()).count() {
        0 => errors.push(FieldError::invalid(&attribute.path, "", DETAIL)),
        1 => {}
        _ => errors.push(attribute.invalid(DETAIL)),
    }
}

/// Reports whether a string has three numbers without leading zeros, then the pre-release and the build.
fn is_semantic_version(text: &str) -> bool {
    let number = |part: &str| {
        part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() && (part == "0" || !part.starts_with('0'))
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, early) = rest.split_once('-').map_or((rest, None), |(core, early)| (core, Some(early)));
    let numbers: Vec<&str> = core.split('.').collect();
    let plain = |part: &str| part.bytes().any(|b| !b.is_ascii_digit()) || number(part);
    numbers.len() == 3
        && numbers.into_iter().all(number)
        && build.is_none_or(|build| build.split('.').all(word))
        && early.is_none_or(|early| early.split('.').all(|part| word(part) && plain(part)))
}

/// Validates the quantities of a shared device that can be requested: some fixed ones, or a range in steps.
fn validate_request_policy(policy: &At<'_>, most: &Quantity, errors: &mut Errors) {
    let values = policy.get("validValues");
    let range = policy.get("validRange");
    let default = policy.get("default");
    if !values.is_empty() && range.is_object() {
        let detail =
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same time";
        errors.push(policy.forbidden(detail));
        return;
    }
    let what = match (values.is_empty(), range.is_object()) {
        (false, _) => "validValues",
        (_, true) => "validRange",
        _ => return,
    };
    match default.quantity() {
        None => errors.push(default.required(&format!("required when {what} is defined"))),
        Some(default) if what == "validValues" => validate_values(&values, &default, most, errors),
        Some(default) => validate_range(&range, &default, most, errors),
    }
}

fn validate_values(values: &At<'_>, default: &Quantity, most: &Quantity, errors: &mut Errors) {
    let quantities: Vec<Quantity> = values.items().filter_map(|value| value.quantity()).collect();
    for (at, pair) in quantities.windows(2).enumerate().filter(|(_, pair)| pair[0] > pair[1]) {
        let detail = "values must be sorted in ascending order";
        errors.push(FieldError::invalid(&values.path.index(at + 1), pair[1].to_string(), detail));
    }
    for (at, quantity) in quantities.iter().enumerate().filter(|(_, quantity)| *quantity > most) {
        let detail = format!("option is larger than capacity value: {most}");
        errors.push(FieldError::invalid(&values.path.index(at), quantity.to_string(), detail));
    }
    limited_set(values, 10, &|_, _| {}, &Clone::clone, errors);
    if !quantities.contains(default) {
        let detail = "default value is not valid according to the requestPolicy";
        errors.push(FieldError::invalid(&values.path, default.to_string(), detail));
    }
}

fn validate_range(range: &At<'_>, default: &Quantity, most: &Quantity, errors: &mut Errors) {
    let [least, top, step] = ["min", "max", "step"].map(|field| range.get(field).quantity());
    let invalid = |field: &str, value: &Quantity, detail: String| {
        FieldError::invalid(&range.path.child(field), value.to_string(), detail)
    };
    let Some(least) = least else {
        errors.push(range.get("min").required("required when validRange is defined"));
        return;
    };
    if least > *most {
        errors.push(invalid("min", &least, format!("min is larger than capacity value: {most}")));
    }
    if *default < least {
        errors.push(invalid("min", default, format!("default is less than min: {least}")));
    }
    if let Some(top) = &top {
        if least > *top {
            errors.push(invalid("max", &least, format!("min is larger than max: {top}")));
        }
        if top > most {
            errors.push(invalid("max", top, format!("max is larger than capacity value: {most}")));
        }
        if default > top {
            errors.push(invalid("max", default, format!("default is more than max: {top}")));
        }
    }
    let Some(step) = step.filter(|step| step.value() != 0) else { return };
    let added = least.clone() + step.clone();
    if added > *most {
        errors.push(invalid("step", &step, format!("one step {added} is larger than capacity value: {most}")));
    }
    for value in [Some(default), top.as_ref()].into_iter().flatten() {
        if value.value().wrapping_sub(least.value()).wrapping_rem(step.value()) != 0 {
            let detail = format!("value is not a multiple of a given step ({step}) from ({least})");
            errors.push(invalid("step", value, detail));
        }
    }
}

pub(crate) fn counters(counters: &At<'_>, errors: &mut Errors) {
    const MAX_COUNTERS: usize = 32;
    counters.must(errors);
    counters.at_most(errors, MAX_COUNTERS);
    for (name, _) in counters.entries().filter(|_| counters.len() <= MAX_COUNTERS) {
        let messages = names::dns1123_label(name).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&counters.path, name, m)));
    }
}
