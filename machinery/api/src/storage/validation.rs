//! The rules of the storage kinds beyond their fields.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::core::persistentvolume_validation::validate_volume_spec;

/// The limit of all parameters or metadata together.
const MAX_BYTES: usize = 256 * 1024;

/// Validates the name of a provisioner, in any case.
pub(crate) fn qualified_in_any_case(at: &At<'_>, errors: &mut Errors) {
    let lower = at.text().to_lowercase();
    let messages = names::qualified_name(&lower).into_iter();
    errors.extend(messages.map(|m| FieldError::invalid(&at.path, lower.as_str(), m)));
}

pub(crate) fn storage_parameters(parameters: &At<'_>, errors: &mut Errors) {
    if parameters.len() > 512 {
        errors.push(FieldError::too_long(&parameters.path, 512));
        return;
    }
    if parameters.entries().any(|(key, _)| key.is_empty()) {
        errors.push(FieldError::invalid(&parameters.path, "", "field can not be empty."));
    }
    storage_metadata(parameters, errors);
}

pub(crate) fn storage_metadata(map: &At<'_>, errors: &mut Errors) {
    let size: usize = map.entries().map(|(key, value)| key.len() + value.text().len()).sum();
    if size > MAX_BYTES {
        errors.push(FieldError::too_long(&map.path, MAX_BYTES));
    }
}

pub(crate) fn allowed_topologies(topologies: &At<'_>, errors: &mut Errors) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for term in topologies.items() {
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for expression in term.get("matchLabelExpressions").items() {
            let key = expression.get("key");
            let values = expression.get("values");
            values.must(errors);
            values.unique(errors);
            key.follows_also_empty(errors, names::qualified_name);
            if keys.insert(key.text(), values.texts().collect()).is_some() {
                errors.push(key.duplicate());
            }
        }
        // An empty term is reported once for every term, and once for every equal one.
        let alike = seen.iter().filter(|other| **other == keys).count();
        let times = if keys.is_empty() { topologies.len() + alike } else { alike };
        let duplicate = FieldError::duplicate(&term.path.child("matchLabelExpressions"), "");
        errors.extend(std::iter::repeat_n(duplicate, times));
        seen.push(keys);
    }
}

/// Validates the volume that an attachment has instead of a name.
pub(crate) fn inline_volume(at: &At<'_>, errors: &mut Errors) {
    validate_volume_spec(at, "", true, errors);
}

/// Validates the length of an error's message; upstream reports another limit.
pub(crate) fn attach_message(at: &At<'_>, errors: &mut Errors) {
    if at.text().len() > 1024 {
        errors.push(FieldError::too_long(&at.path, MAX_BYTES));
    }
}

/// Validates the topology keys of a driver on a node; errors name the driver.
pub(crate) fn topology_keys(keys: &At<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for key in keys.items().map(|key| key.with(keys.path.clone())) {
        key.must(errors);
        if !seen.insert(key.text()) {
            errors.push(key.duplicate());
        }
        key.follows_also_empty(errors, names::qualified_name);
    }
}

/// Validates that a driver on a node does not change, except its number of volumes.
pub(super) fn validate_csi_node_update(new: &Value, old: &Value) -> Errors {
    let drivers = |object| At::object(object).get("spec").get("drivers");
    let bare = |driver: &At<'_>| {
        let mut fields = driver.value.as_object().cloned().unwrap_or_default();
        fields.remove("allocatable");
        Value::from(fields)
    };
    // An absent topology equals an empty one.
    let compared = |driver: &At<'_>| {
        let mut fields = bare(driver);
        if driver.get("topologyKeys").is_empty() {
            crate::defaulting::remove(&mut fields, "/topologyKeys");
        }
        fields
    };
    let mut errors = Errors::new();
    for before in drivers(old).items() {
        for driver in drivers(new).items().filter(|d| d.get("name").value == before.get("name").value) {
            if compared(&driver) != compared(&before) {
                errors.push(FieldError::invalid(&drivers(new).path, bare(&driver), "field is immutable"));
            }
        }
    }
    errors
}

/// Validates the tokens of a driver: one for an audience, each with a sensible duration.
pub(crate) fn token_requests(requests: &At<'_>, errors: &mut Errors) {
    let mut audiences = BTreeSet::new();
    for request in requests.items() {
        let audience = request.get("audience");
        let expiration = request.get("expirationSeconds");
        if !audiences.insert(audience.text()) {
            errors.push(FieldError::duplicate(&audience.path, audience.text()));
            continue;
        }
        match expiration.number() {
            Some(..600) => errors.push(expiration.invalid("may not specify a duration less than 10 minutes")),
            Some(seconds) if seconds > 1 << 32 => {
                errors.push(expiration.invalid("may not specify a duration larger than 2^32 seconds"));
            }
            _ => {}
        }
    }
}
