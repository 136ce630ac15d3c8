//! The identity of a StatefulSet's pod: its name and ordinal, its revision, its claims.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};

use crate::runtime::PodRow;
use crate::workload::history::REVISION_HASH_LABEL;
use crate::workload::template;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Returns the ordinal in a pod's name, if the set would generate that name.
pub fn ordinal_of(set: &StatefulSet, pod: &str) -> Option<i32> {
    pod.strip_prefix(set.name())?.strip_prefix('-')?.parse().ok().filter(|ordinal| *ordinal >= 0)
}

/// Returns the name of the pod's revision.
pub fn revision_of(pod: &PodRow) -> &str {
    pod.label(REVISION_HASH_LABEL)
}

/// Returns the claim names of an ordinal, each with its template. The claims stay when the pod is deleted.
pub fn claims_of(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = (String, &PersistentVolumeClaim)> {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.map(move |template| (format!("{}-{}-{ordinal}", template.name(), set.name()), template))
}

/// Returns the claim with that name from its template.
pub fn claim_of(set: &StatefulSet, name: String, template: &PersistentVolumeClaim) -> PersistentVolumeClaim {
    let mut claim = template.clone();
    claim.metadata.name = Some(name);
    claim.metadata.namespace = set.metadata.namespace.clone();
    let selected = set.spec.as_ref().and_then(|spec| spec.selector.match_labels.clone());
    claim.metadata.labels.get_or_insert_default().extend(selected.unwrap_or_default());
    claim.status = None;
    claim
}

/// Returns the pod of an ordinal from the template in the revision.
pub fn pod_of(set: &StatefulSet, revision: &ControllerRevision, ordinal: i32) -> Pod {
    let mut pod = template::pod_from(&template_of(set, revision), set);
    let name = format!("{}-{ordinal}", set.name());
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), name.clone());
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
    labels.insert(REVISION_HASH_LABEL.to_owned(), revision.name().to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    let templates: Vec<String> = set
        .spec
        .iter()
        .flat_map(|spec| spec.volume_claim_templates.iter().flatten())
        .map(|one| one.name().to_owned())
        .collect();
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| !templates.contains(&volume.name));
    volumes.extend(templates.into_iter().map(|name| Volume {
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: format!("{name}-{}-{ordinal}", set.name()),
            read_only: None,
        }),
        name,
        ..Volume::default()
    }));
    pod
}

/// Returns the template in a revision; the set's own if it does not decode.
fn template_of(
    set: &StatefulSet,
    revision: &ControllerRevision,
) -> corten_api::k8s_openapi::api::core::v1::PodTemplateSpec {
    let mut value = set.to_value();
    if let Some(data) = revision.data.as_ref() {
        let mut template = data.0["spec"]["template"].clone();
        if let Some(fields) = template.as_object_mut() {
            fields.remove("$patch");
            value["spec"]["template"] = template;
        }
    }
    let restored = StatefulSet::from_value(value).ok().and_then(|set| set.spec);
    restored.or_else(|| set.spec.clone()).map(|spec| spec.template).unwrap_or_default()
}
