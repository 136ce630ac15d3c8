//! The rules of volume mounts and volume devices of a container.

use std::collections::{BTreeMap, BTreeSet};

use super::volume_validation::Volumes;
use crate::check::{At, Errors, local_descending, no_backsteps};

/// Returns the paths of the volumes of a list, by name.
fn paths_by_name<'a>(list: &At<'a>, path: &str) -> BTreeMap<&'a str, &'a str> {
    list.items().map(|item| (item.get("name").text(), item.get(path).text())).collect()
}

pub(super) fn validate_mounts(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let mounts = container.get("volumeMounts");
    let devices = paths_by_name(&container.get("volumeDevices"), "devicePath");
    let privileged = container.get("securityContext").get("privileged").is_true();
    let mut taken = BTreeSet::new();
    for mount in mounts.items() {
        let name = mount.get("name");
        let path = mount.get("mountPath");
        name.must(errors);
        if !volumes.contains_key(name.text()) {
            errors.push(corten_meta::FieldError::not_found(&name.path, name.text()));
        }
        path.must(errors);
        if !taken.insert(path.text()) {
            errors.push(path.invalid("must be unique"));
        }
        if devices.contains_key(name.text()) {
            errors.push(name.invalid("must not already exist in volumeDevices"));
        }
        if devices.values().any(|device| *device == path.text()) {
            errors.push(path.invalid("must not already exist as a path in volumeDevices"));
        }
        // The errors below name the list: upstream leaves the index out.
        let place = mount.with(mounts.path.clone());
        validate_sub_paths(&mount, &place, errors);
        validate_propagation(&place, privileged, errors);
        validate_recursive_read_only(&place, errors);
    }
}

fn validate_sub_paths(mount: &At<'_>, place: &At<'_>, errors: &mut Errors) {
    let path = place.get("subPath");
    let expression = place.get("subPathExpr");
    local_descending(&path, errors);
    if !path.is_empty() && !expression.is_empty() {
        errors.push(mount.get("subPathExpr").invalid("subPathExpr and subPath are mutually exclusive"));
    }
    local_descending(&expression, errors);
}

fn validate_propagation(mount: &At<'_>, privileged: bool, errors: &mut Errors) {
    let propagation = mount.get("mountPropagation");
    propagation.one_of(errors, &["Bidirectional", "HostToContainer", "None"]);
    if propagation.text() == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(propagation.forbidden(detail));
    }
}

fn validate_recursive_read_only(mount: &At<'_>, errors: &mut Errors) {
    let recursive = mount.get("recursiveReadOnly");
    recursive.one_of(errors, &["Disabled", "Enabled", "IfPossible"]);
    if !["Enabled", "IfPossible"].contains(&recursive.text()) {
        return;
    }
    if !mount.get("readOnly").is_true() {
        errors.push(recursive.forbidden("may only be specified when readOnly is true"));
    }
    if !["", "None"].contains(&mount.get("mountPropagation").text()) {
        errors.push(recursive.forbidden("may only be specified when mountPropagation is None or not specified"));
    }
}

pub(super) fn validate_devices(container: &At<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let mounts = paths_by_name(&container.get("volumeMounts"), "mountPath");
    let mut names = BTreeSet::new();
    let mut paths = BTreeSet::new();
    for device in container.get("volumeDevices").items() {
        let name = device.get("name");
        let path = device.get("devicePath");
        name.must(errors);
        if names.contains(name.text()) {
            errors.push(name.invalid("must be unique"));
        }
        match volumes.get(name.text()) {
            None => errors.push(corten_meta::FieldError::not_found(&name.path, name.text())),
            Some(volume) if !volume["persistentVolumeClaim"].is_object() && !volume["ephemeral"].is_object() => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(name.invalid(detail));
            }
            Some(_) => {}
        }
        path.must(errors);
        if paths.contains(path.text()) {
            errors.push(path.invalid("must be unique"));
        }
        let mut steps = Errors::new();
        no_backsteps(&path, &mut steps);
        if steps.is_empty() {
            paths.insert(path.text());
        } else {
            errors.push(path.invalid("can not contain backsteps ('..')"));
        }
        if mounts.contains_key(name.text()) {
            errors.push(name.invalid("must not already exist in volumeMounts"));
        }
        if mounts.values().any(|mount| *mount == path.text()) {
            errors.push(path.invalid("must not already exist as a path in volumeMounts"));
        }
        if !name.is_empty() {
            names.insert(name.text());
        }
    }
}
