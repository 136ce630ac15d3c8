//! Resolves the ResourceClaims of a pod, and checks that it may use them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::api::resource::v1::ResourceClaim;

use crate::error::{Error, Result};
use crate::pod::spec;

/// Returns the claims of the pod by the name in its spec: the object's name, and whether the object was created for
/// this pod.
pub fn claims(pod: &Pod) -> Result<BTreeMap<String, (String, bool)>> {
    let mut found = BTreeMap::new();
    for claim in spec::spec(pod).resource_claims.iter().flatten() {
        if let Some(name) = &claim.resource_claim_name {
            found.insert(claim.name.clone(), (name.clone(), false));
            continue;
        }
        let statuses = spec::status(pod).resource_claim_statuses.iter().flatten();
        let Some(status) = statuses.into_iter().find(|status| status.name == claim.name) else {
            return Err(Error::pod(format!(
                "pod \"{}/{}\": ResourceClaim not created yet",
                spec::namespace(pod),
                spec::name(pod)
            )));
        };
        // A template that was not needed has no claim.
        if let Some(name) = &status.resource_claim_name {
            found.insert(claim.name.clone(), (name.clone(), true));
        }
    }
    let extended = spec::status(pod).extended_resource_claim_status.as_ref();
    if let Some(extended) = extended {
        found.insert(String::new(), (extended.resource_claim_name.clone(), false));
    }
    Ok(found)
}

/// Checks that the pod may use the claim.
pub fn check(pod: &Pod, claim: &ResourceClaim, owned: bool) -> Result<()> {
    let uid = spec::uid(pod);
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let owners = claim.metadata.owner_references.iter().flatten();
    if owned && !owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        return Err(Error::pod(format!(
            "ResourceClaim {}/{name} was not created for pod {}/{} (pod is not owner)",
            spec::namespace(pod),
            spec::namespace(pod),
            spec::name(pod)
        )));
    }
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if users.into_iter().any(|user| user.uid == uid) {
        return Ok(());
    }
    Err(Error::pod(format!(
        "pod {} ({uid}) is not allowed to use ResourceClaim {name} ({})",
        spec::name(pod),
        claim.metadata.uid.as_deref().unwrap_or_default()
    )))
}

/// Returns the drivers of the devices that are allocated to the claim.
pub fn drivers(claim: &ResourceClaim) -> Result<BTreeSet<String>> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let Some(allocation) = allocation else {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(Error::pod(format!("ResourceClaim {name}: not allocated")));
    };
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    Ok(results.map(|result| result.driver.clone()).collect())
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        Pod::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "direct", "resourceClaimName": "mine"},
                {"name": "made", "resourceClaimTemplateName": "t"},
            ]},
            "status": status,
        }))
        .unwrap()
    }

    fn claim(value: Value) -> ResourceClaim {
        let mut claim = json!({"metadata": {"name": "c", "uid": "claim-uid"}, "spec": {}});
        claim["status"] = value;
        ResourceClaim::from_value(claim).unwrap()
    }

    #[test]
    fn claims_of_templates_are_found_by_the_pods_status() {
        assert!(claims(&pod(json!({}))).unwrap_err().to_string().contains("ResourceClaim not created yet"));
        let made = json!({"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}]});
        let found = claims(&pod(made)).unwrap();
        assert_eq!(found["direct"], ("mine".to_owned(), false));
        assert_eq!(found["made"], ("p-made-x".to_owned(), true));
        let unneeded = json!({"resourceClaimStatuses": [{"name": "made"}]});
        assert_eq!(claims(&pod(unneeded)).unwrap().len(), 1);
    }

    #[test]
    fn a_claim_must_be_reserved_for_the_pod() {
        let pod = pod(json!({}));
        let free = claim(json!({}));
        assert_eq!(
            check(&pod, &free, false).unwrap_err().to_string(),
            "pod p (pod-uid) is not allowed to use ResourceClaim c (claim-uid)"
        );
        let reserved = claim(json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}]}));
        check(&pod, &reserved, false).unwrap();
        assert!(check(&pod, &reserved, true).is_err(), "a claim of a template has the pod for its owner");
    }

    #[test]
    fn drivers_are_those_of_the_allocated_devices() {
        let allocated = json!({"allocation": {"devices": {"results": [
            {"request": "a", "driver": "d1", "pool": "p", "device": "x"},
            {"request": "b", "driver": "d2", "pool": "p", "device": "y"},
        ]}}});
        assert_eq!(drivers(&claim(allocated)).unwrap().len(), 2);
        assert!(drivers(&claim(json!({}))).is_err());
    }
}
