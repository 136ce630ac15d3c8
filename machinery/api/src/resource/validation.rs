//! The rules of resource claims: requests, their constraints and the allocation. The API server compiles CEL selectors.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::core::scheduling_validation::validate_node_selector;
use crate::core::volume_source::csi_driver_name;
use crate::validation::{conditions, uuid};

pub(super) const MAX_REQUESTS: usize = 32;
const MAX_CONFIGS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_EXPRESSION: usize = 10 * 1024;
const MAX_PARAMETERS: usize = 10 * 1024;

/// The requests of a claim by name, each with its alternatives.
type Requests<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Validates that the items are at most so many, that each is valid, and that their keys are distinct. Skips the items
/// if there are too many.
pub(super) fn limited_set<'a>(
    at: &At<'a>,
    max: usize,
    rule: &dyn Fn(&At<'a>, &mut Errors),
    key: &dyn Fn(&At<'a>) -> At<'a>,
    errors: &mut Errors,
) {
    if at.len() > max {
        return at.at_most(errors, max);
    }
    at.items().for_each(|item| rule(&item, errors));
    let mut seen = BTreeSet::new();
    for item in at.items() {
        let own = key(&item);
        if !seen.insert(own.value.to_string()) {
            errors.push(FieldError::duplicate(&item.path, own.value.clone()));
        }
    }
}

/// Validates the spec of a claim, also of a template for one.
pub(super) fn validate_claim_spec(spec: &At<'_>, errors: &mut Errors) {
    let devices = spec.get("devices");
    let names = request_names(&devices);
    let requests = devices.get("requests");
    limited_set(&requests, MAX_REQUESTS, &validate_request, &|request| request.get("name"), errors);
    let constraints = devices.get("constraints");
    constraints.each_of_at_most(errors, 32, |constraint, e| validate_constraint(constraint, &names, e));
    devices.get("config").each_of_at_most(errors, MAX_CONFIGS, |config, e| {
        validate_request_references(&config.get("requests"), &names, e);
        validate_configuration(config, e);
    });
}

fn request_names<'a>(devices: &At<'a>) -> Requests<'a> {
    let alternatives = |request: &At<'a>| request.get("firstAvailable").items().map(|s| s.get("name").text()).collect();
    devices.get("requests").items().map(|r| (r.get("name").text(), alternatives(&r))).collect()
}

fn validate_request(request: &At<'_>, errors: &mut Errors) {
    request.get("name").follows_also_empty(errors, names::dns1123_label);
    let exactly = request.get("exactly");
    let first = request.get("firstAvailable");
    match (exactly.is_object(), !first.is_empty()) {
        (false, false) => errors.push(request.required("exactly one of `exactly` or `firstAvailable` is required")),
        (true, true) => {
            let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(FieldError::invalid(&request.path, Value::Null, detail));
        }
        (true, false) => validate_device_request(&exactly, errors),
        (false, true) => {
            let validate = |sub: &At<'_>, errors: &mut Errors| {
                sub.get("name").follows_also_empty(errors, names::dns1123_label);
                validate_device_request(sub, errors);
            };
            limited_set(&first, 8, &validate, &|sub| sub.get("name"), errors);
        }
    }
}

fn validate_device_request(request: &At<'_>, errors: &mut Errors) {
    request.get("deviceClassName").must_follow(errors, names::dns1123_subdomain);
    validate_selectors(&request.get("selectors"), errors);
    let mode = request.get("allocationMode");
    let count = request.get("count");
    match mode.text() {
        "All" if count.number().unwrap_or_default() != 0 => {
            errors.push(count.invalid("must not be specified when allocationMode is 'All'"));
        }
        "All" => {}
        "ExactCount" => {
            let number = count.number().unwrap_or_default();
            if number <= 0 {
                errors.push(FieldError::invalid(&count.path, number, "must be greater than zero"));
            }
        }
        _ => errors.push(mode.not_supported(&["All", "ExactCount"])),
    }
    request.get("tolerations").each(errors, validate_toleration);
}

pub(super) fn validate_selectors(selectors: &At<'_>, errors: &mut Errors) {
    selectors.each_of_at_most(errors, MAX_SELECTORS, |selector, e| {
        let cel = selector.get("cel");
        if cel.is_object() {
            cel.get("expression").at_most_bytes(e, MAX_EXPRESSION);
        } else {
            e.push(cel.required(""));
        }
    });
}

fn validate_toleration(toleration: &At<'_>, errors: &mut Errors) {
    toleration.get("key").follows(errors, names::qualified_name);
    let operator = toleration.get("operator");
    let value = toleration.get("value");
    operator.must_be_one_of(errors, &["Equal", "Exists"]);
    match operator.text() {
        "Exists" if !value.is_empty() => errors.push(value.invalid("must be empty for operator `Exists`")),
        "Equal" => value.follows_also_empty(errors, names::label_value),
        _ => {}
    }
    if !toleration.get("effect").is_empty() {
        toleration.get("effect").one_of(errors, &["NoExecute", "NoSchedule", "None"]);
    }
}

fn validate_constraint(constraint: &At<'_>, names: &Requests<'_>, errors: &mut Errors) {
    validate_request_references(&constraint.get("requests"), names, errors);
    let same = constraint.get("matchAttribute");
    let distinct = constraint.get("distinctAttribute");
    if same.is_set() {
        validate_fully_qualified(&same, errors);
    } else if distinct.is_set() {
        validate_fully_qualified(&distinct, errors);
    } else {
        let detail =
            "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        errors.push(constraint.required(detail));
    }
}

fn validate_request_references(references: &At<'_>, names: &Requests<'_>, errors: &mut Errors) {
    let validate = |reference: &At<'_>, errors: &mut Errors| validate_request_reference(reference, names, errors);
    limited_set(references, MAX_REQUESTS, &validate, &Clone::clone, errors);
}

/// Validates `request` or `request/alternative`, both of this claim.
fn validate_request_reference(reference: &At<'_>, known: &Requests<'_>, errors: &mut Errors) {
    const DETAIL: &str =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let parts: Vec<&str> = reference.text().split('/').collect();
    if parts.len() > 2 {
        errors.push(reference.invalid(DETAIL));
        return;
    }
    for part in &parts {
        let messages = names::dns1123_label(part).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&reference.path, *part, m)));
    }
    let found = match parts.as_slice() {
        [request] => known.contains_key(request),
        [request, sub] => known.get(request).is_some_and(|subs| subs.contains(sub)),
        _ => false,
    };
    if !found {
        errors.push(reference.invalid(DETAIL));
    }
}

/// Validates parameters for a driver, which only the driver understands.
pub(super) fn validate_configuration(config: &At<'_>, errors: &mut Errors) {
    let opaque = config.get("opaque");
    if !opaque.is_object() {
        errors.push(opaque.required(""));
        return;
    }
    csi_driver_name(&opaque.get("driver"), errors);
    validate_raw(&opaque.get("parameters"), MAX_PARAMETERS, errors);
}

/// Validates a JSON object of any content, up to a size.
fn validate_raw(raw: &At<'_>, max: usize, errors: &mut Errors) {
    if !raw.is_set() {
        errors.push(raw.required(""));
    } else if raw.value.to_string().len() > max {
        errors.push(FieldError::too_long(&raw.path, max));
    } else if !raw.is_object() {
        errors.push(FieldError::invalid(&raw.path, "<value omitted>", "must be a valid JSON object"));
    }
}

/// Validates `domain/name`.
fn validate_fully_qualified(at: &At<'_>, errors: &mut Errors) {
    validate_qualified(at.text(), at, errors);
    if !at.text().contains('/') {
        errors.push(at.invalid("a fully qualified name must be a domain and a name separated by a slash").as_json());
    }
}

/// Validates the name of an attribute or capacity: a C identifier, after a domain if it is not the driver's own.
pub(super) fn validate_qualified(name: &str, at: &At<'_>, errors: &mut Errors) {
    // Upstream checks only names of one or two parts, and objects with others exist.
    if name.matches('/').count() > 1 {
        return;
    }
    let (domain, name) = name.split_once('/').map_or((None, name), |(domain, name)| (Some(domain), name));
    match domain {
        Some("") => errors.push(FieldError::invalid(&at.path, "", "the domain must not be empty")),
        Some(domain) => csi_driver_name(&At::new(&Value::from(domain), &at.path), errors),
        None => {}
    }
    if name.is_empty() && domain.is_some() {
        errors.push(FieldError::invalid(&at.path, "", "the name must not be empty"));
        return;
    }
    if name.len() > 32 {
        errors.push(FieldError::too_long(&at.path, 32));
    }
    let messages = names::c_identifier(name).into_iter();
    errors.extend(messages.map(|m| FieldError::invalid(&at.path, name, m)));
}

/// Validates the name of a pool: subdomains separated by slashes.
pub(super) fn validate_pool_name(at: &At<'_>, errors: &mut Errors) {
    if at.must(errors) {
        at.at_most_bytes(errors, 253);
        for part in at.text().split('/') {
            let messages = names::dns1123_subdomain(part).into_iter();
            errors.extend(messages.map(|m| FieldError::invalid(&at.path, part, m)));
        }
    }
}

/// Validates a write of a claim's status: its consumers and its allocation.
pub(super) fn validate_claim_status(new: &Value, old: &Value) -> Errors {
    let claim = At::object(new);
    let before = At::object(old);
    let status = claim.get("status");
    let then = before.get("status");
    let reserved = status.get("reservedFor");
    let allocation = status.get("allocation");
    let mut errors = Errors::new();
    let validate = |consumer: &At<'_>, errors: &mut Errors| {
        for field in ["resource", "name", "uid"] {
            consumer.get(field).must(errors);
        }
    };
    limited_set(&reserved, 256, &validate, &|consumer| consumer.get("uid"), &mut errors);
    validate_device_statuses(&status, &mut errors);
    if !reserved.is_empty() && !allocation.is_object() {
        errors.push(reserved.forbidden("may not be specified when `allocated` is not set"));
    } else if claim.get("metadata").get("deletionTimestamp").is_set() {
        let known: Vec<&Value> = then.get("reservedFor").items().map(|r| r.value).collect();
        if reserved.items().any(|r| !known.contains(&r.value)) {
            let detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(reserved.forbidden(detail));
        }
    }
    let allocated = then.get("allocation");
    if allocated.is_object() && allocation.is_object() {
        allocation.unchanged(&mut errors, &allocated);
    } else if allocation.is_object() {
        validate_allocation(&allocation, &request_names(&claim.get("spec").get("devices")), &mut errors);
    }
    errors
}

fn validate_allocation(allocation: &At<'_>, names: &Requests<'_>, errors: &mut Errors) {
    let devices = allocation.get("devices");
    devices.get("results").each_of_at_most(errors, 32, |result, e| {
        validate_request_reference(&result.get("request"), names, e);
        csi_driver_name(&result.get("driver"), e);
        validate_pool_name(&result.get("pool"), e);
        result.get("device").follows_also_empty(e, names::dns1123_label);
        validate_binding_conditions(result, e);
        validate_share(result, e);
    });
    devices.get("config").each_of_at_most(errors, 2 * MAX_CONFIGS, |config, e| {
        config.get("source").must_be_one_of(e, &["FromClaim", "FromClass"]);
        validate_request_references(&config.get("requests"), names, e);
        validate_configuration(config, e);
    });
    allocation.get("nodeSelector").when_object(errors, |selector, e| validate_node_selector(selector, true, e));
}

/// Validates the conditions that a device must have before a pod is bound, and those of its failure.
pub(super) fn validate_binding_conditions(device: &At<'_>, errors: &mut Errors) {
    let met = device.get("bindingConditions");
    let failed = device.get("bindingFailureConditions");
    for conditions in [&met, &failed] {
        conditions.each_of_at_most(errors, 4, |condition, e| condition.follows_also_empty(e, names::qualified_name));
    }
    met.unique(errors);
    let mut seen = BTreeSet::new();
    for condition in failed.items() {
        if !seen.insert(condition.text()) {
            errors.push(condition.duplicate());
        }
        if met.texts().any(|met| met == condition.text()) {
            errors.push(condition.invalid("bindingFailureConditions must not overlap with bindingConditions"));
        }
    }
    match (met.is_empty(), failed.is_empty()) {
        (true, false) => errors.push(met.invalid("bindingConditions are required to use bindingFailureConditions")),
        (false, true) => errors.push(failed.invalid("bindingFailureConditions are required to use bindingConditions")),
        _ => {}
    }
}

/// Validates the share of a device that several claims use.
fn validate_share(device: &At<'_>, errors: &mut Errors) {
    let share = device.get("shareID");
    if share.is_set() {
        uuid(&share, errors);
    }
}

fn validate_interface_address(at: &At<'_>, errors: &mut Errors) {
    let detail = match names::address::parse_cidr(at.text()) {
        None => "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)".to_string(),
        Some((address, bits)) if format!("{address}/{bits}") != at.text() => {
            format!("must be in canonical form (\"{address}/{bits}\")")
        }
        Some(_) => return,
    };
    errors.push(at.invalid(detail));
}

fn validate_device_statuses(status: &At<'_>, errors: &mut Errors) {
    const FIELDS: [&str; 4] = ["driver", "pool", "device", "shareID"];
    let id = |at: &At<'_>| FIELDS.map(|field| at.get(field).text().to_string());
    let results = status.get("allocation").get("devices").get("results");
    let allocated: BTreeSet<[String; 4]> = results.items().map(|result| id(&result)).collect();
    let mut seen = BTreeSet::new();
    for device in status.get("devices").items() {
        csi_driver_name(&device.get("driver"), errors);
        validate_pool_name(&device.get("pool"), errors);
        device.get("device").follows_also_empty(errors, names::dns1123_label);
        validate_share(&device, errors);
        let shown = || Value::from_iter(FIELDS.into_iter().zip(id(&device)));
        if !allocated.contains(&id(&device)) {
            let detail = "must be an allocated device in the claim";
            errors.push(FieldError::invalid(&device.path, shown(), detail));
        }
        device.get("conditions").at_most(errors, 8);
        conditions(&device.get("conditions"), errors);
        if device.get("data").is_set() {
            validate_raw(&device.get("data"), 10 * 1024, errors);
        }
        let network = device.get("networkData");
        network.get("interfaceName").at_most_bytes(errors, 256);
        network.get("hardwareAddress").at_most_bytes(errors, 128);
        limited_set(&network.get("ips"), 16, &validate_interface_address, &Clone::clone, errors);
        if !seen.insert(id(&device)) {
            errors.push(FieldError::duplicate(&device.path, shown()));
        }
    }
}
