//! `persistentVolumeClaim` and `ephemeral`: the claim leads to its volume, and the volume to a path of the node.
//!
//! The controllers bind claims to volumes; here a claim that is not bound is only an error that the worker tries
//! again. The volumes of this node are `hostPath` and `local`; all others are refused with their name.

use std::path::PathBuf;

use corten_api::k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PersistentVolumeSpec,
};

use super::{Context, Mounted, host_path, ownership};
use crate::error::{Error, Result};
use crate::pods::spec;

pub async fn set_up(context: &Context<'_>, source: &PersistentVolumeClaimVolumeSource) -> Result<Mounted> {
    let namespace = spec::namespace(context.pod);
    let claim: PersistentVolumeClaim = context.client.get(namespace, &source.claim_name).await?;
    let volume: PersistentVolume = context.client.get("", &bound_volume(namespace, &claim)?).await?;
    let mut mounted = mount(context, &volume.spec.unwrap_or_default())?;
    mounted.writable &= source.read_only != Some(true);
    Ok(mounted)
}

/// The claim of an `ephemeral` volume, which a controller makes for this one pod.
pub async fn set_up_ephemeral(context: &Context<'_>, volume_name: &str) -> Result<Mounted> {
    let claim_name = format!("{}-{volume_name}", spec::name(context.pod));
    set_up(context, &PersistentVolumeClaimVolumeSource { claim_name, read_only: None }).await
}

fn bound_volume(namespace: &str, claim: &PersistentVolumeClaim) -> Result<String> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    if phase != "Bound" || volume.is_empty() {
        let message = "has non-bound phase or empty pvc.Spec.VolumeName";
        return Err(Error::pod(format!("PVC {namespace}/{name} {message} ({phase:?}, {volume:?})")));
    }
    Ok(volume.to_owned())
}

fn mount(context: &Context<'_>, volume: &PersistentVolumeSpec) -> Result<Mounted> {
    if volume.volume_mode.as_deref() == Some("Block") {
        return Err(Error::pod("block volumes are not supported by this node".to_owned()));
    }
    if let Some(source) = &volume.host_path {
        return host_path::set_up(source);
    }
    if let Some(source) = &volume.local {
        let path = PathBuf::from(&source.path);
        std::fs::metadata(&path).map_err(Error::file("stat", &path))?;
        ownership::give_to_group(context.pod, &path)?;
        return Ok(Mounted { path, writable: true });
    }
    let what = if volume.csi.is_some() {
        "csi"
    } else if volume.nfs.is_some() {
        "nfs"
    } else {
        "other"
    };
    Err(Error::pod(format!("no volume plugin matched: {what} persistent volumes are not supported by this node")))
}

#[cfg(test)]
mod tests {
    use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PersistentVolumeClaimStatus};

    use super::*;

    fn claim(phase: &str, volume: Option<&str>) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim {
            spec: Some(PersistentVolumeClaimSpec {
                volume_name: volume.map(str::to_owned),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: Some(PersistentVolumeClaimStatus {
                phase: Some(phase.to_owned()),
                ..PersistentVolumeClaimStatus::default()
            }),
            ..PersistentVolumeClaim::default()
        };
        claim.metadata.name = Some("data".to_owned());
        claim
    }

    #[test]
    fn only_a_bound_claim_leads_to_a_volume() {
        assert_eq!(bound_volume("ns", &claim("Bound", Some("pv"))).unwrap(), "pv");
        let refused = bound_volume("ns", &claim("Pending", Some("pv"))).unwrap_err().to_string();
        assert!(refused.starts_with("PVC ns/data has non-bound phase"), "{refused}");
        assert!(bound_volume("ns", &claim("Bound", None)).is_err());
        assert!(bound_volume("ns", &claim("Lost", Some("pv"))).is_err());
    }
}
