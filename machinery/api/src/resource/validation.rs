//! The rules of resource claims: requests, their constraints and the allocation. The API server compiles CEL selectors.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::core::resource_validation::is_extended;
use crate::core::volume_source::csi_driver_name;
use crate::rules::{self, Site};
use crate::validation::{conditions, uuid};

pub(super) const MAX_REQUESTS: usize = 32;
const MAX_CONFIGS: usize = 32;

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

fn request_names<'a>(devices: &At<'a>) -> Requests<'a> {
    let alternatives = |request: &At<'a>| request.get("firstAvailable").items().map(|s| s.get("name").text()).collect();
    devices.get("requests").items().map(|r| (r.get("name").text(), alternatives(&r))).collect()
}

/// Validates the requests of a claim that a constraint or configuration names.
pub(crate) fn claim_requests(site: &Site<'_, '_>, errors: &mut Errors) {
    validate_request_references(&site.at.get("requests"), &request_names(site.of), errors);
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
pub(crate) fn raw_parameters(raw: &At<'_>, errors: &mut Errors) {
    validate_raw(raw, 10 * 1024, errors);
}

pub(crate) fn extended_resource_name(at: &At<'_>, errors: &mut Errors) {
    if !is_extended(at.text()) {
        errors.push(at.invalid("must be a valid extended resource name"));
    }
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
pub(crate) fn fully_qualified(at: &At<'_>, errors: &mut Errors) {
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
pub(crate) fn pool_name(at: &At<'_>, errors: &mut Errors) {
    if at.must(errors) {
        at.at_most_bytes(errors, 253);
        for part in at.text().split('/') {
            let messages = names::dns1123_subdomain(part).into_iter();
            errors.extend(messages.map(|m| FieldError::invalid(&at.path, part, m)));
        }
    }
}

/// Validates a change of a claim's consumers and its allocation.
pub(crate) fn claim_status(site: &Site<'_, '_>, errors: &mut Errors) {
    let claim = At::object(site.root);
    let then = At::object(site.old.unwrap_or(&Value::Null));
    let status = site.at;
    let reserved = status.get("reservedFor");
    let allocation = status.get("allocation");
    validate_device_statuses(status, errors);
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
        allocation.unchanged(errors, &allocated);
    } else if allocation.is_object() {
        validate_allocation(&allocation, &request_names(&claim.get("spec").get("devices")), errors);
    }
}

fn validate_allocation(allocation: &At<'_>, names: &Requests<'_>, errors: &mut Errors) {
    let devices = allocation.get("devices");
    devices.get("results").each_of_at_most(errors, 32, |result, e| {
        validate_request_reference(&result.get("request"), names, e);
        csi_driver_name(&result.get("driver"), e);
        pool_name(&result.get("pool"), e);
        result.get("device").follows_also_empty(e, names::dns1123_label);
        validate_binding_conditions(result, e);
        validate_share(result, e);
    });
    devices.get("config").each_of_at_most(errors, 2 * MAX_CONFIGS, |config, e| {
        config.get("source").must_be_one_of(e, &["FromClaim", "FromClass"]);
        validate_request_references(&config.get("requests"), names, e);
        rules::check(".resource.v1.DeviceAllocationConfiguration", config, e);
    });
    allocation
        .get("nodeSelector")
        .when_object(errors, |selector, e| rules::check(".core.v1.NodeSelector", selector, e));
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
        pool_name(&device.get("pool"), errors);
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
