//! The rules of volume sources, both of pods and of persistent volumes.
//!
//! A source is a row: its field, the name of the field in errors, its required strings, and a rule for the rest.
//! Upstream accepts one source per volume and reports every further one, in the order of the table.

use corten_meta::field::FieldError;
use corten_meta::names;

use super::projected_validation::{
    validate_downward_items, validate_file_mode, validate_key_to_path, validate_projected,
};
use crate::check::{At, Errors, local_descending, no_backsteps};

/// The object that has the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Pod,
    Template,
    PersistentVolume,
}

/// One kind of source.
struct Source {
    field: &'static str,
    required: &'static [&'static str],
    rule: fn(&At<'_>, Holder, &mut Errors),
}

const fn plain(field: &'static str, required: &'static [&'static str]) -> Source {
    Source { field, required, rule: |_, _, _| {} }
}

const fn ruled(
    field: &'static str,
    required: &'static [&'static str],
    rule: fn(&At<'_>, Holder, &mut Errors),
) -> Source {
    Source { field, required, rule }
}

/// Every source, in upstream's order for pods; a persistent volume has a subset.
const SOURCES: &[Source] = &[
    ruled("emptyDir", &[], empty_dir),
    ruled("hostPath", &["path"], host_path),
    ruled("gitRepo", &["repository"], |at, _, e| local_descending(&at.get("directory"), e)),
    ruled("gcePersistentDisk", &["pdName"], partition),
    ruled("awsElasticBlockStore", &["volumeID"], partition),
    ruled("secret", &["secretName"], files),
    ruled("nfs", &["server", "path"], nfs),
    ruled("iscsi", &["targetPortal", "iqn"], iscsi),
    ruled("glusterfs", &["endpoints", "path"], glusterfs),
    ruled("flocker", &[], flocker),
    plain("persistentVolumeClaim", &["claimName"]),
    plain("rbd", &["monitors", "image"]),
    ruled("cinder", &["volumeID"], secret_reference),
    plain("cephfs", &["monitors"]),
    ruled("quobyte", &[], quobyte),
    ruled("downwardAPI", &[], downward_api),
    ruled("fc", &[], fibre_channel),
    ruled("flexVolume", &["driver"], flex_volume),
    ruled("configMap", &["name"], files),
    ruled("azureFile", &["secretName", "shareName"], azure_file),
    plain("vsphereVolume", &["volumePath"]),
    plain("photonPersistentDisk", &["pdID"]),
    plain("portworxVolume", &["volumeID"]),
    ruled("azureDisk", &["diskName", "diskURI"], azure_disk),
    ruled("local", &["path"], |at, _, e| no_backsteps(&at.get("path"), e)),
    ruled("storageos", &["volumeName"], storage_os),
    ruled("projected", &[], |at, _, e| validate_projected(at, e)),
    plain("scaleIO", &["gateway", "system", "volumeName"]),
    ruled("csi", &[], csi),
    ruled("ephemeral", &[], ephemeral),
    ruled("image", &[], image),
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
    let mut sources: Vec<&Source> = SOURCES.iter().filter(|source| at.get(source.field).is_object()).collect();
    if holder == Holder::PersistentVolume {
        sources.sort_by_key(|source| PERSISTENT.iter().position(|field| *field == source.field));
    }
    let mut sources = sources.into_iter();
    let Some(first) = sources.next() else {
        errors.push(at.required("must specify a volume type"));
        return None;
    };
    let source = at.get(first.field);
    // Upstream reports the fields of this one under an older name.
    let source = if first.field == "gcePersistentDisk" { source.with(at.path.child("persistentDisk")) } else { source };
    check_source(first, &source, holder, errors);
    more(first.field, errors);
    for other in sources {
        // Upstream spells two of them differently, and lets a persistent volume have this one beside another.
        let shown = match other.field {
            "cephfs" => "cephFS",
            "downwardAPI" => "downwarAPI",
            "flexVolume" if holder == Holder::PersistentVolume => {
                check_source(other, &at.get(other.field), holder, errors);
                continue;
            }
            field => field,
        };
        errors.push(at.get(shown).forbidden("may not specify more than 1 volume type"));
    }
    Some(first.field)
}

fn check_source(source: &Source, at: &At<'_>, holder: Holder, errors: &mut Errors) {
    for field in source.required {
        at.get(field).must(errors);
    }
    (source.rule)(at, holder, errors);
}

fn empty_dir(at: &At<'_>, _: Holder, errors: &mut Errors) {
    if at.get("sizeLimit").quantity().is_some_and(|q| q.sign() < 0) {
        errors.push(at.get("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity"));
    }
}

fn host_path(at: &At<'_>, _: Holder, errors: &mut Errors) {
    const TYPES: &[&str] =
        &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    if !at.get("path").is_empty() {
        no_backsteps(&at.get("path"), errors);
        at.get("type").one_of(errors, TYPES);
    }
}

/// Validates a partition. Zero means the entire disk, which the message does not mention.
fn partition(at: &At<'_>, _: Holder, errors: &mut Errors) {
    let partition = at.get("partition");
    if partition.number() != Some(0) {
        partition.within(errors, 1, 255);
    }
}

fn files(at: &At<'_>, _: Holder, errors: &mut Errors) {
    validate_file_mode(&at.get("defaultMode"), errors);
    at.get("items").each(errors, validate_key_to_path);
}

fn downward_api(at: &At<'_>, _: Holder, errors: &mut Errors) {
    validate_file_mode(&at.get("defaultMode"), errors);
    validate_downward_items(at, errors);
}

fn nfs(at: &At<'_>, _: Holder, errors: &mut Errors) {
    if !at.get("path").text().starts_with('/') {
        errors.push(FieldError::invalid(&at.path.child("path"), at.get("path").text(), "must be an absolute path"));
    }
}

fn iscsi(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    let persistent = holder == Holder::PersistentVolume;
    let qualified = at.get("iqn");
    let initiator = at.get("initiatorName");
    if !qualified.is_empty() {
        errors.extend(iscsi_name(qualified.text(), persistent).map(|detail| qualified.invalid(detail)));
    }
    at.get("lun").within(errors, 0, 255);
    let chap = at.get("chapAuthDiscovery").is_true() || at.get("chapAuthSession").is_true();
    if chap && !at.get("secretRef").is_object() {
        errors.push(at.get("secretRef").required(""));
    }
    if persistent {
        at.get("secretRef").when_object(errors, |at, e| {
            at.get("name").must(e);
        });
    }
    if initiator.is_set() {
        let shown = initiator.with(at.path.child("initiatorname"));
        errors.extend(iscsi_name(initiator.text(), persistent).map(|detail| shown.invalid(detail)));
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

fn glusterfs(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    let namespace = at.get("endpointsNamespace");
    if holder == Holder::PersistentVolume && namespace.is_set() {
        if namespace.text().is_empty() {
            errors.push(namespace.invalid("if the endpointnamespace is set, it must be a valid namespace name"));
        }
        namespace.follows(errors, names::dns1123_label);
    }
}

fn flocker(at: &At<'_>, _: Holder, errors: &mut Errors) {
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

fn secret_reference(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    at.get("secretRef").when_object(errors, |at, e| {
        at.get("name").must(e);
        if holder == Holder::PersistentVolume {
            at.get("namespace").must(e);
        }
    });
}

fn quobyte(at: &At<'_>, _: Holder, errors: &mut Errors) {
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

fn fibre_channel(at: &At<'_>, _: Holder, errors: &mut Errors) {
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

fn flex_volume(at: &At<'_>, _: Holder, errors: &mut Errors) {
    for (key, option) in at.get("options").entries() {
        let namespace = format!(".{}", key.split('/').next().unwrap_or(key).to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.push(FieldError::invalid(&option.path, key, detail));
        }
    }
}

fn azure_file(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    let namespace = at.get("secretNamespace");
    if holder == Holder::PersistentVolume && namespace.is_set() {
        namespace.must(errors);
    }
}

fn azure_disk(at: &At<'_>, _: Holder, errors: &mut Errors) {
    at.get("cachingMode").one_of(errors, &["None", "ReadOnly", "ReadWrite"]);
    let kind = at.get("kind");
    let uri = at.get("diskURI");
    kind.one_of(errors, &["Dedicated", "Managed", "Shared"]);
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

fn storage_os(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    at.get("volumeName").follows(errors, names::dns1123_label);
    at.get("volumeNamespace").follows(errors, names::dns1123_label);
    secret_reference(at, holder, errors);
}

fn csi(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    csi_driver_name(&at.get("driver"), errors);
    if holder != Holder::PersistentVolume {
        let name = at.get("nodePublishSecretRef").get("name");
        if at.get("nodePublishSecretRef").is_object() && name.must(errors) {
            name.with(at.path.child("name")).follows(errors, names::dns1123_subdomain);
        }
        return;
    }
    at.get("volumeHandle").must(errors);
    for field in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        at.get(field).when_object(errors, |at, e| {
            at.get("name").must_follow(e, names::dns1123_subdomain);
            at.get("namespace").must_follow(e, names::dns1123_label);
        });
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

fn ephemeral(at: &At<'_>, _: Holder, errors: &mut Errors) {
    let template = at.get("volumeClaimTemplate");
    if template.is_object() {
        super::claim_validation::validate_claim_template(&template, errors);
    } else {
        errors.push(template.required(""));
    }
}

fn image(at: &At<'_>, holder: Holder, errors: &mut Errors) {
    if holder == Holder::Pod {
        at.get("reference").must(errors);
    }
    at.get("pullPolicy").must_be_one_of(errors, &["Always", "IfNotPresent", "Never"]);
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
