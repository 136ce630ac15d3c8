//! PersistentVolume.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::persistentvolume_validation::{validate_volume, validate_volume_update};
use super::pod_warnings;
use super::volume_cells::{access_modes, quantity, storage_class};
use crate::cells::{age, name, or, text};
use crate::check::At;
use crate::defaulting::{absent, default_at};
use crate::kind::{Behaviour, Kind};

struct PersistentVolume;

pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolume", "persistentvolumes")
        .cluster()
        .short(&["pv"])
        .status()
        .table("Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age; VolumeMode")
        .returns_deleted()
        .behaviour(PersistentVolume)
}

impl Behaviour for PersistentVolume {
    fn default(&self, object: &mut Value) {
        default_at(object, "/status/phase", "Pending");
        default_at(object, "/spec/persistentVolumeReclaimPolicy", "Retain");
        default_at(object, "/spec/volumeMode", "Filesystem");
        default_at(object, "/spec/hostPath/type", "");
    }

    fn prepare_create(&self, object: &mut Value) {
        let now = text(object, "/metadata/creationTimestamp").to_string();
        let status = serde_json::json!({"phase": "Pending", "lastPhaseTransitionTime": now});
        crate::defaulting::put(object, "/status", status);
    }

    /// Sets the time of the last phase transition if the writer of the phase does not.
    fn prepare_status_update(&self, new: &mut Value, old: &Value, now: Timestamp) {
        const SINCE: &str = "/status/lastPhaseTransitionTime";
        let is_same = text(new, "/status/phase") == text(old, "/status/phase");
        let since = text(new, SINCE).to_string();
        let before = text(old, SINCE).to_string();
        if is_same && since.is_empty() && !before.is_empty() {
            crate::defaulting::put(new, SINCE, before);
        } else if !is_same && (since.is_empty() || since == before) {
            crate::defaulting::put(new, SINCE, corten_meta::time::rfc3339(now));
        }
    }

    fn warnings(&self, volume: &Value, _old: Option<&Value>) -> Vec<String> {
        const OPTIONS: (&str, &str) = (
            "volume.beta.kubernetes.io/mount-options",
            "deprecated since v1.31; use \"mountOptions\" attribute instead",
        );
        const OLD: [&str; 6] = ["cephfs", "photonPersistentDisk", "scaleIO", "storageos", "glusterfs", "rbd"];
        let mut out = pod_warnings::of_old_annotations(volume, &[pod_warnings::OLD_CLASS[0], OPTIONS]);
        let spec = At::object(volume).get("spec");
        let policy = spec.get("persistentVolumeReclaimPolicy");
        if policy.text() == "Recycle" {
            let instead = "Instead, the recommended approach is to use dynamic provisioning.";
            out.push(format!("{}: The Recycle reclaim policy is deprecated. {instead}", policy.path));
        }
        let terms = spec.get("nodeAffinity").get("required").get("nodeSelectorTerms");
        terms.items().for_each(|term| pod_warnings::of_node_selector_term(&term, false, &mut out));
        for source in OLD.iter().filter(|source| spec.get(source).is_set()) {
            let why = pod_warnings::OLD_VOLUMES.iter().find(|(kind, _)| kind == source).map(|(_, why)| *why);
            out.extend(why.map(|why| pod_warnings::of_old_volume(&spec, source, why)));
        }
        out
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validate_volume(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validate_volume_update(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let claim = match object.pointer("/spec/claimRef").filter(|c| c.is_object()) {
            Some(claim) => format!("{}/{}", text(claim, "/namespace"), text(claim, "/name")),
            None => String::new(),
        };
        let phase =
            if absent(object, "/metadata/deletionTimestamp") { text(object, "/status/phase") } else { "Terminating" };
        vec![
            name(object),
            quantity(object, "/spec/capacity/storage").into(),
            access_modes(object, "/spec/accessModes").into(),
            text(object, "/spec/persistentVolumeReclaimPolicy").into(),
            phase.into(),
            claim.into(),
            storage_class(object).into(),
            or(text(object, "/spec/volumeAttributesClassName"), "<unset>").into(),
            text(object, "/status/reason").into(),
            age(object, now),
            or(text(object, "/spec/volumeMode"), "<unset>").into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_old_source_is_warned_of() {
        let messages = PersistentVolume.warnings(&json!({"spec": {"storageos": {}}}), None);
        assert_eq!(messages, ["spec.storageOS: deprecated in v1.22, non-functional in v1.25+"]);
    }

    #[test]
    fn a_volume_has_the_time_of_its_phase_transition() {
        let status =
            |phase: &str, since: Option<&str>| json!({"status": {"phase": phase, "lastPhaseTransitionTime": since}});
        let then = "2020-01-01T00:00:00Z";
        let now = "1970-01-01T00:00:00Z";
        let old = status("Available", Some(then));
        for (new, expected) in [
            (status("Available", None), then),
            (status("Bound", None), now),
            (status("Bound", Some(then)), now),
            (status("Bound", Some("2021-01-01T00:00:00Z")), "2021-01-01T00:00:00Z"),
        ] {
            let mut written = new.clone();
            PersistentVolume.prepare_status_update(&mut written, &old, Timestamp::UNIX_EPOCH);
            assert_eq!(text(&written, "/status/lastPhaseTransitionTime"), expected, "{new}");
        }
    }
}
