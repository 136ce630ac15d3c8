//! The rules of the storage kinds.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::core::persistentvolume_validation::validate_volume_spec;
use crate::core::volume_source::csi_driver_name;
use crate::validation::label_selector;

/// The limit of all parameters or metadata together.
const MAX_BYTES: usize = 256 * 1024;

pub(super) fn validate_storage_class(object: &Value) -> Errors {
    let class = At::object(object);
    let mut errors = Errors::new();
    validate_driver(&class.get("provisioner"), &mut errors);
    validate_parameters(&class.get("parameters"), &mut errors);
    if !class.get("reclaimPolicy").is_empty() {
        class.get("reclaimPolicy").one_of(&mut errors, &["Delete", "Retain"]);
    }
    let mode = class.get("volumeBindingMode");
    if mode.is_set() {
        mode.one_of(&mut errors, &["Immediate", "WaitForFirstConsumer"]);
    } else {
        errors.push(mode.required(""));
    }
    validate_topologies(&class.get("allowedTopologies"), &mut errors);
    errors
}

/// Validates the name of a provisioner, in any case.
fn validate_driver(at: &At<'_>, errors: &mut Errors) {
    if at.must(errors) {
        let lower = at.text().to_lowercase();
        let messages = names::qualified_name(&lower).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&at.path, lower.as_str(), m)));
    }
}

fn validate_parameters(parameters: &At<'_>, errors: &mut Errors) {
    if parameters.len() > 512 {
        errors.push(FieldError::too_long(&parameters.path, 512));
        return;
    }
    if parameters.entries().any(|(key, _)| key.is_empty()) {
        errors.push(FieldError::invalid(&parameters.path, "", "field can not be empty."));
    }
    validate_size(parameters, errors);
}

fn validate_size(map: &At<'_>, errors: &mut Errors) {
    let size: usize = map.entries().map(|(key, value)| key.len() + value.text().len()).sum();
    if size > MAX_BYTES {
        errors.push(FieldError::too_long(&map.path, MAX_BYTES));
    }
}

fn validate_topologies(topologies: &At<'_>, errors: &mut Errors) {
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

pub(super) fn validate_attributes_class(object: &Value) -> Errors {
    let class = At::object(object);
    let mut errors = Errors::new();
    validate_driver(&class.get("driverName"), &mut errors);
    validate_parameters(&class.get("parameters"), &mut errors);
    class.get("parameters").must_say(&mut errors, "must contain at least one key/value pair");
    errors
}

pub(super) fn validate_attachment(object: &Value) -> Errors {
    let attachment = At::object(object);
    let spec = attachment.get("spec");
    let status = attachment.get("status");
    let mut errors = Errors::new();
    csi_driver_name(&spec.get("attacher"), &mut errors);
    let source = spec.get("source");
    let inline = source.get("inlineVolumeSpec");
    let name = source.get("persistentVolumeName");
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline.is_object(), name.is_set()) {
        (false, false) => errors.push(source.required(ONE)),
        (true, true) => errors.push(source.forbidden(ONE)),
        (false, true) => {
            name.must_say(&mut errors, "must specify non empty persistentVolumeName");
        }
        (true, false) => validate_volume_spec(&inline, "", true, &mut errors),
    }
    spec.get("nodeName").follows_also_empty(&mut errors, names::dns1123_subdomain);
    validate_size(&status.get("attachmentMetadata"), &mut errors);
    for field in ["attachError", "detachError"].map(|field| status.get(field)) {
        if field.get("message").text().len() > 1024 {
            errors.push(FieldError::too_long(&field.path.child("message"), MAX_BYTES));
        }
        field.get("errorCode").within(&mut errors, 0, i64::from(i32::MAX));
    }
    name.follows_when_set(&mut errors, names::dns1123_subdomain);
    errors
}

pub(super) fn validate_csi_node(object: &Value) -> Errors {
    let mut errors = Errors::new();
    let mut seen = BTreeSet::new();
    for driver in At::object(object).get("spec").get("drivers").items() {
        let name = driver.get("name");
        let id = driver.get("nodeID");
        csi_driver_name(&name, &mut errors);
        id.must(&mut errors);
        if id.text().len() > 256 {
            errors.push(id.invalid("must be 256 characters or less"));
        }
        driver.get("allocatable").get("count").nonnegative(&mut errors);
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let mut keys = BTreeSet::new();
        for key in driver.get("topologyKeys").items().map(|key| key.with(driver.path.clone())) {
            key.must(&mut errors);
            if !keys.insert(key.text()) {
                errors.push(key.duplicate());
            }
            key.follows_also_empty(&mut errors, names::qualified_name);
        }
    }
    errors
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

pub(super) fn validate_csi_driver(object: &Value) -> Errors {
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    // The first of these has another name in upstream's errors.
    for (field, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
        ("seLinuxMount", "seLinuxMount"),
    ] {
        if !spec.get(field).is_set() {
            errors.push(FieldError::required(&spec.path.child(shown), ""));
        }
    }
    spec.get("fsGroupPolicy").one_of(&mut errors, &["File", "None", "ReadWriteOnceWithFSType"]);
    let mut audiences = BTreeSet::new();
    for request in spec.get("tokenRequests").items() {
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
    let modes = spec.get("volumeLifecycleModes");
    for mode in modes.items() {
        mode.with(modes.path.clone()).one_of(&mut errors, &["Persistent", "Ephemeral"]);
    }
    let period = spec.get("nodeAllocatableUpdatePeriodSeconds");
    if period.number().is_some_and(|seconds| seconds < 10) {
        errors.push(period.invalid("must be greater than or equal to 10 seconds"));
    }
    let secrets = spec.get("serviceAccountTokenInSecrets");
    if secrets.is_set() && spec.get("tokenRequests").is_empty() {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(secrets.invalid(detail));
    }
    errors
}

pub(super) fn validate_capacity(object: &Value) -> Errors {
    let capacity = At::object(object);
    let topology = capacity.get("nodeTopology");
    let mut errors = label_selector(topology.value, &topology.path);
    capacity.get("storageClassName").follows_also_empty(&mut errors, names::dns1123_subdomain);
    let quantity = capacity.get("capacity");
    if let Some(negative) = quantity.quantity().filter(|q| q.sign() < 0) {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&quantity.path, negative.to_string(), detail));
    }
    errors
}

/// Validates that top-level fields do not change, each with upstream's error.
pub(super) fn validate_fixed(new: &Value, old: &Value, fields: &[&str]) -> Errors {
    let new = At::object(new);
    let old = At::object(old);
    let mut errors = Errors::new();
    fields.iter().for_each(|field| new.get(field).unchanged(&mut errors, &old.get(field)));
    errors
}
