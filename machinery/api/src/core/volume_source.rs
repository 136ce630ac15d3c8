//! The rules of volume sources, both of pods and of persistent volumes.
//!
//! The rules of a source are those of its type in the validation table. Upstream accepts one source per volume and
//! reports every further one, in an order of its own.

use corten_meta::field::FieldError;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::rules;

/// The object that has the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Pod,
    Template,
    PersistentVolume,
}

/// Every source of a pod's volume, in upstream's order. The rules of each are those of its type.
const SOURCES: [&str; 31] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "local",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// The sources of a persistent volume, in upstream's order for them.
const PERSISTENT: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Validates that there is exactly one valid source. Returns its field.
pub(super) fn validate_source(at: &At<'_>, holder: Holder, errors: &mut Errors) -> Option<&'static str> {
    validate_source_and(at, holder, errors, |_, _| {})
}

/// Validates a source with a further rule, which runs before the other sources are reported.
pub(super) fn validate_source_and(
    at: &At<'_>,
    holder: Holder,
    errors: &mut Errors,
    more: impl FnOnce(&str, &mut Errors),
) -> Option<&'static str> {
    let order: &[&'static str] = if holder == Holder::PersistentVolume { &PERSISTENT } else { &SOURCES };
    let mut sources = order.iter().copied().filter(|field| at.value.get(field).is_some_and(Value::is_object));
    let Some(first) = sources.next() else {
        errors.push(at.required("must specify a volume type"));
        return None;
    };
    let source = at.get(first);
    // Upstream reports the fields of this one under an older name.
    let source = if first == "gcePersistentDisk" { source.with(at.path.child("persistentDisk")) } else { source };
    check_source(first, &source, holder, errors);
    more(first, errors);
    for other in sources {
        // Upstream spells two of them differently, and lets a persistent volume have this one beside another.
        let shown = match other {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            "flexVolume" if holder == Holder::PersistentVolume => {
                check_source(other, &at.get(other), holder, errors);
                continue;
            }
            field => field,
        };
        errors.push(at.get(shown).forbidden("may not specify more than 1 volume type"));
    }
    Some(first)
}

fn check_source(field: &str, at: &At<'_>, holder: Holder, errors: &mut Errors) {
    if field == "image" && holder == Holder::Pod {
        at.get("reference").must(errors);
    }
    let of = if holder == Holder::PersistentVolume { "PersistentVolumeSpec" } else { "Volume" };
    rules::check_field(&format!("io.k8s.api.core.v1.{of}"), field, at, errors);
}

pub(crate) fn size_limit(at: &At<'_>, errors: &mut Errors) {
    if at.quantity().is_some_and(|q| q.sign() < 0) {
        errors.push(at.forbidden("SizeLimit field must be a valid resource quantity"));
    }
}

pub(crate) fn absolute_path(at: &At<'_>, errors: &mut Errors) {
    if !at.text().starts_with('/') {
        errors.push(FieldError::invalid(&at.path, at.text(), "must be an absolute path"));
    }
}

pub(crate) fn iscsi_target(at: &At<'_>, errors: &mut Errors) {
    errors.extend(iscsi_name(at.text(), false).map(|detail| at.invalid(detail)));
}

pub(crate) fn persistent_iscsi_target(at: &At<'_>, errors: &mut Errors) {
    errors.extend(iscsi_name(at.text(), true).map(|detail| at.invalid(detail)));
}

/// Validates that a target with CHAP has a secret.
pub(crate) fn chap_secret(at: &At<'_>, errors: &mut Errors) {
    let chap = at.get("chapAuthDiscovery").is_true() || at.get("chapAuthSession").is_true();
    if chap && !at.get("secretRef").is_object() {
        errors.push(at.get("secretRef").required(""));
    }
}

/// Validates `iqn.<year>-<month>.<domain>:<name>`, or `eui.` with 16 or `naa.` with 32 letters and digits.
fn iscsi_name(name: &str, persistent: bool) -> Option<&'static str> {
    let code = |length: usize| name.len() == 4 + length && name.bytes().skip(4).all(|b| b.is_ascii_alphanumeric());
    let good = match name.get(..3) {
        Some("iqn") => is_qualified_iscsi_name(name),
        Some("eui") => code(16),
        Some("naa") => code(32),
        _ if persistent => false,
        _ => return Some("must be valid format starting with iqn, eui, or naa"),
    };
    (!good).then_some("must be valid format")
}

fn is_qualified_iscsi_name(name: &str) -> bool {
    let Some((date, rest)) = name.strip_prefix("iqn.").and_then(|n| n.split_once('.')) else { return false };
    let digits = |text: &str, length: usize| text.len() == length && text.bytes().all(|b| b.is_ascii_digit());
    let dated = date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let domain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b));
    let local = |text: &str| !text.is_empty() && !text.contains([',', ';', '*', '&', '$', '|', ' ', '\t', '\n']);
    dated && rest.split_once(':').is_some_and(|(authority, name)| domain(authority) && local(name))
}

pub(crate) fn flocker(at: &At<'_>, errors: &mut Errors) {
    let name = at.get("datasetName");
    let uuid = at.get("datasetUUID");
    if name.is_empty() && uuid.is_empty() {
        errors.push(at.required("one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(FieldError::invalid(&at.path, "resource", detail));
    }
    if name.text().contains('/') {
        errors.push(name.invalid("must not contain '/'"));
    }
}

pub(crate) fn quobyte(at: &At<'_>, errors: &mut Errors) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = at.get("registry");
    if !registry.must_say(errors, PAIRS) {
    } else if at.get("tenant").text().len() > 64 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(at.get("tenant").required(detail));
    } else {
        let odd = registry.text().split(',').filter(|pair| !is_host_and_port(pair));
        errors.extend(odd.map(|_| registry.invalid(PAIRS)));
    }
    at.get("volume").must(errors);
}

/// Reports whether a string is a host and a port, either of which may be empty; an IPv6 address is in brackets.
fn is_host_and_port(text: &str) -> bool {
    let plain = |part: &str| !part.contains(['[', ']']);
    match text.strip_prefix('[').map(|rest| rest.split_once("]:")) {
        Some(Some((host, port))) => plain(host) && plain(port) && !port.contains(':'),
        Some(None) => false,
        None => plain(text) && text.split(':').count() == 2,
    }
}

pub(crate) fn fibre_channel(at: &At<'_>, errors: &mut Errors) {
    let targets = at.get("targetWWNs");
    let ids = at.get("wwids");
    match (targets.is_empty(), ids.is_empty()) {
        (true, true) => errors.push(targets.required("must specify either targetWWNs or wwids, but not both")),
        (false, false) => {
            errors.push(targets.invalid("targetWWNs and wwids can not be specified simultaneously"));
        }
        _ => {}
    }
    if !targets.is_empty() {
        at.get("lun").must_say(errors, "lun is required if targetWWNs is specified");
        at.get("lun").within(errors, 0, 255);
    }
}

pub(crate) fn flex_options(options: &At<'_>, errors: &mut Errors) {
    for (key, option) in options.entries() {
        let namespace = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(&option.path, key, detail));
        }
    }
}

/// Validates that the URI of a disk has the form of its kind.
pub(crate) fn azure_disk(at: &At<'_>, errors: &mut Errors) {
    let kind = at.get("kind");
    let uri = at.get("diskURI");
    let (start, form) = match kind.text() {
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => ("https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if kind.is_set() && !uri.text().starts_with(start) {
        errors.push(uri.not_supported(&[form]));
    }
}

/// Validates the name of a CSI driver: a subdomain in any case, of at most 63 characters.
pub(crate) fn csi_driver_name(at: &At<'_>, errors: &mut Errors) {
    if at.must(errors) {
        at.at_most_bytes(errors, 63);
        let messages = names::dns1123_subdomain(&at.text().to_lowercase());
        errors.extend(messages.into_iter().map(|m| at.invalid(m)));
    }
}

#[cfg(test)]
mod tests {
    use super::is_host_and_port;

    #[test]
    fn pairs_of_host_and_port() {
        for good in ["a:1", ":80", "a:", ":", "[fd00::1]:80", "[]:", "[a]:1"] {
            assert!(is_host_and_port(good), "{good:?}");
        }
        for bad in [
            "",
            "a",
            "fd00::1",
            "a:b:c",
            "[fd00::1]",
            "[fd00::1]80",
            "[fd00::1:80",
            "a]:1",
            "[[a]:1",
            "[a]:1:2",
            "[a]]:1",
        ] {
            assert!(!is_host_and_port(bad), "{bad:?}");
        }
    }
}
