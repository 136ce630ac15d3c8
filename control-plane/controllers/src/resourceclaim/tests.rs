//! The lifecycle of a claim: created, allocated, deallocated, deleted.

use super::*;
use crate::tests::model::{Model, converges, decide, mapped, pod};
use serde_json::Value;

fn template() -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"namespace": "default", "name": "gpu"},
        "spec": {"metadata": {"labels": {"l": "1"}}, "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}})
}

fn user() -> Value {
    pod("p").set("/spec/resourceClaims", json!([{"name": "g", "resourceClaimTemplateName": "gpu"}])).value()
}

fn claim(model: &Model) -> Value {
    let names = model.names("ResourceClaim");
    assert_eq!(names.len(), 1, "{names:?}");
    model.value("ResourceClaim", "default", &names[0])
}

#[test]
fn a_claim_is_made_once_and_told_in_the_status() {
    let mut model = Model::default();
    model.put(user());
    converges(&ClaimMaker, &mut model, "default", "p");
    assert_eq!(
        model.events,
        [
            "Warning FailedResourceClaimCreation PodResourceClaim g: resource claim template \"gpu\": resourceclaimtemplate.resource.k8s.io \"gpu\" not found"
        ]
    );
    model.put(template());
    assert_eq!(mapped::<ResourceClaimTemplate>(&ClaimMaker, &model, None, Some(&template())), ["default/p"]);
    assert_eq!(converges(&ClaimMaker, &mut model, "default", "p"), 2);
    let made = claim(&model);
    assert_eq!(made["metadata"]["annotations"][POD_CLAIM], "g");
    assert_eq!(made["metadata"]["generateName"], "p-g-");
    assert_eq!(made["metadata"]["labels"], json!({"l": "1"}));
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "uid-of-p");
    assert_eq!(made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"], "c");
    let status = &model.value("Pod", "default", "p")["status"]["resourceClaimStatuses"];
    assert_eq!(*status, json!([{"name": "g", "resourceClaimName": made["metadata"]["name"]}]));
}

#[test]
fn a_claim_that_is_deleted_by_accident_is_made_again() {
    let mut model = Model::default();
    model.put(user());
    model.put(template());
    converges(&ClaimMaker, &mut model, "default", "p");
    let first = claim(&model)["metadata"]["name"].clone();
    model.remove("ResourceClaim", "default", first.as_str().unwrap());
    converges(&ClaimMaker, &mut model, "default", "p");
    let second = claim(&model)["metadata"]["name"].clone();
    assert_ne!(first, second);
    assert_eq!(model.value("Pod", "default", "p")["status"]["resourceClaimStatuses"][0]["resourceClaimName"], second);
}

#[test]
fn what_a_pod_is_done_with_is_given_back_and_what_was_made_for_it_deleted() {
    let allocated = |model: &mut Model, owned: bool| {
        let mut claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": "default", "name": "c", "finalizers": ["resource.kubernetes.io/delete-protection"]},
            "spec": {}, "status": {"allocation": {"devices": {"results": []}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-of-p"}]}});
        if owned {
            claim["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-of-p", "controller": true}]);
        }
        model.put(claim);
    };
    for (phase, present, owned, held) in [
        (Some("Running"), true, true, true),
        (Some("Succeeded"), true, false, false),
        (Some("Succeeded"), false, true, false),
        (None, true, false, false),
    ] {
        let mut model = Model::logged();
        allocated(&mut model, owned);
        if let Some(phase) = phase {
            model.put(pod("p").on("n").phase(phase).value());
        }
        converges(&ClaimReleaser, &mut model, "default", "c");
        let now = model.find("ResourceClaim", "default", "c");
        assert_eq!(now.is_some(), present, "{phase:?}");
        if let Some(now) = now {
            assert_eq!(now["status"]["allocation"].is_object(), held, "{phase:?}");
            assert_eq!(now["status"]["reservedFor"].is_array(), held, "{phase:?}");
        }
    }
}

#[test]
fn a_placed_pod_gets_its_place_in_an_allocated_claim() {
    let mut model = Model::default();
    model.put(
        pod("p").on("n").set("/spec/resourceClaims", json!([{"name": "g", "resourceClaimName": "shared"}])).value(),
    );
    model.put(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"namespace": "default", "name": "shared"},
        "spec": {}, "status": {"allocation": {}}}));
    assert_eq!(converges(&ClaimMaker, &mut model, "default", "p"), 1);
    assert_eq!(claim(&model)["status"]["reservedFor"][0]["uid"], "uid-of-p");
    assert!(decide(&ClaimReleaser, &model, "default", "shared").is_empty());
}

#[test]
fn a_long_name_is_cut_in_proportion() {
    let name = prefix(&"p".repeat(60), &"c".repeat(20));
    assert!(name.len() <= MAX_PREFIX && name.contains("-ccc"), "{name}");
    assert_eq!(prefix("p", "c"), "p-c-");
}
