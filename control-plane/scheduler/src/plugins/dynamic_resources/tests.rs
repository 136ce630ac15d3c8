//! ResourceClaims against pools of devices: by class, expression, count, constraint and node.

use super::*;
use crate::cycle::{Rotation, schedule};
use crate::profile::Profile;
use crate::rows::tests::{node, typed_pod};
use corten_api::Typed;
use corten_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn cluster() -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, model) in [("a", "old"), ("b", "new")] {
        snapshot.set_node(node(name, "4", json!({})));
        let device = |number: usize| {
            json!({"name": format!("gpu-{number}"), "capacity": {"memory": {"value": format!("{}Gi", 8 * (number + 1))}},
                "attributes": {"model": {"string": model}, "bus": {"int": number / 2},
                    "driverVersion": {"version": "1.2.3"}}})
        };
        let spec = json!({"driver": DRIVER, "nodeName": name, "devices": [device(0), device(1), device(2)],
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}});
        slice(&mut snapshot, name, spec);
    }
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]}});
    snapshot.devices.classes.insert("gpu".to_owned(), DeviceClass::from_value(class).unwrap());
    snapshot
}

fn slice(snapshot: &mut Snapshot, name: &str, spec: Value) {
    let slice =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec});
    snapshot.devices.set_slice(name, Some(ResourceSlice::from_value(slice).unwrap()));
}

fn claim(snapshot: &mut Snapshot, name: &str, devices: Value) {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": name}, "spec": {"devices": devices}});
    let key = Key { namespace: "default".to_owned(), name: name.to_owned() };
    snapshot.devices.set_claim(&key, Some(ResourceClaim::from_value(claim).unwrap()));
}

fn exactly(extra: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    corten_meta::patch::merge_patch(&mut exactly, &extra);
    json!({"requests": [{"name": "r", "exactly": exactly}]})
}

fn cel(expression: &str) -> Value {
    exactly(json!({"selectors": [{"cel": {"expression": expression}}]}))
}

fn using(name: &str) -> Value {
    json!({"containers": [], "resourceClaims": [{"name": "c", "resourceClaimName": name}]})
}

fn place(snapshot: &mut Snapshot, name: &str) -> Result<String, String> {
    let row = snapshot.row(typed_pod("p", using(name)));
    let profile = Profile::by_default();
    let slot = schedule(snapshot, &profile, &row, &mut Rotation::new(3)).map_err(|rejection| rejection.message())?;
    Ok(snapshot.node(slot).name.clone())
}

#[test]
fn expressions_choose_devices() {
    for (expression, expected) in [
        ("device.attributes['gpu.example.com'].model == 'new'", Some("b")),
        ("device.attributes['gpu.example.com'].model == 'newer'", None),
        (
            "has(device.attributes['other.example.com'].x) || device.attributes['gpu.example.com'].model == 'old'",
            Some("a"),
        ),
        (
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('24Gi')) >= 0 && device.attributes['gpu.example.com'].model == 'old'",
            Some("a"),
        ),
        ("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('2.0.0'))", None),
    ] {
        let mut snapshot = cluster();
        claim(&mut snapshot, "c", cel(expression));
        assert_eq!(place(&mut snapshot, "c").ok().as_deref(), expected, "{expression}");
    }
}

#[test]
fn an_expression_that_fails_on_one_node_keeps_the_pod_from_all() {
    // On node b the attribute is absent, and without a guard that is a runtime error.
    let expression = "device.attributes['gpu.example.com'].model == 'new' || device.attributes['gpu.example.com'].only";
    for (with_attribute, expected) in [("a", None), ("both", Some("b"))] {
        let mut snapshot = cluster();
        for (name, model) in [("a", "old"), ("b", "newer")] {
            let mut attributes = json!({"model": {"string": model}});
            if with_attribute == name || with_attribute == "both" {
                attributes["only"] = json!({"bool": name == "b"});
            }
            let spec = json!({"driver": DRIVER, "nodeName": name, "devices": [{"name": "gpu", "attributes": attributes}],
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}});
            slice(&mut snapshot, name, spec);
        }
        claim(&mut snapshot, "c", cel(expression));
        let row = snapshot.row(typed_pod("p", using("c")));
        let decided = schedule(&mut snapshot, &Profile::by_default(), &row, &mut Rotation::new(3));
        match expected {
            Some(name) => assert_eq!(snapshot.node(decided.unwrap()).name, name),
            None => {
                let rejection = decided.unwrap_err();
                assert!(rejection.is_error && rejection.plugins.is_empty());
                let message = rejection.message();
                let start = "running \"DynamicResources\" filter plugin: ";
                assert!(message.starts_with(start) && message.contains("CEL runtime error"), "{message}");
            }
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    let mut snapshot = cluster();
    let message = place(&mut snapshot, "absent").unwrap_err();
    assert!(message.contains("resourceclaim.resource.k8s.io \"absent\" not found"), "{message}");
    claim(&mut snapshot, "classless", json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "tpu"}}]}));
    let message = place(&mut snapshot, "classless").unwrap_err();
    assert!(message.contains("request r: device class tpu does not exist"), "{message}");
    claim(&mut snapshot, "many", exactly(json!({"count": 4})));
    let message = place(&mut snapshot, "many").unwrap_err();
    assert!(message.contains("2 cannot allocate all claims"), "{message}");
}

#[test]
fn a_device_is_given_once() {
    let mut snapshot = cluster();
    let slot = snapshot.find("a").unwrap().slot;
    let plugin = DynamicResources::default();
    for (name, count, fits) in [("first", 2, true), ("second", 2, false), ("third", 1, true), ("fourth", 1, false)] {
        claim(&mut snapshot, name, exactly(json!({"count": count})));
        let row = snapshot.row(typed_pod(name, using(name)));
        assert_eq!(plugin.reserve(&row, slot, &mut snapshot).is_ok(), fits, "{name}");
    }
    let first = snapshot.row(typed_pod("first", using("first")));
    plugin.unreserve(&first, &mut snapshot);
    let fourth = snapshot.row(typed_pod("fourth", using("fourth")));
    assert!(plugin.reserve(&fourth, slot, &mut snapshot).is_ok(), "what was given back can be had");
}

#[test]
fn devices_that_must_match_match() {
    let mut snapshot = cluster();
    let mut devices = exactly(json!({"count": 2}));
    devices["constraints"] = json!([{"matchAttribute": "gpu.example.com/bus"}]);
    claim(&mut snapshot, "c", devices);
    let row = snapshot.row(typed_pod("p", using("c")));
    let slot = snapshot.find("a").unwrap().slot;
    let effects = DynamicResources::default().reserve(&row, slot, &mut snapshot).unwrap();
    let [Effect::AllocateClaim { allocation: Some(allocation), .. }] = &effects[..] else { panic!("{effects:?}") };
    let results = allocation.devices.as_ref().unwrap().results.as_ref().unwrap();
    let names: Vec<&str> = results.iter().map(|result| result.device.as_str()).collect();
    assert_eq!(names, ["gpu-0", "gpu-1"]);
    assert!(allocation.node_selector.is_some(), "only this node can use them");
}

#[test]
fn the_first_alternative_that_works_is_taken() {
    let mut snapshot = cluster();
    let sub = |name: &str, count: u32| json!({"name": name, "deviceClassName": "gpu", "count": count});
    claim(
        &mut snapshot,
        "c",
        json!({"requests": [{"name": "r", "firstAvailable": [sub("large", 9), sub("small", 1)]}]}),
    );
    let row = snapshot.row(typed_pod("p", using("c")));
    let slot = snapshot.find("a").unwrap().slot;
    let effects = DynamicResources::default().reserve(&row, slot, &mut snapshot).unwrap();
    let text = format!("{effects:?}");
    assert!(text.contains("r/small"), "{text}");
}

#[test]
fn a_pool_that_is_being_rewritten_offers_nothing() {
    let mut snapshot = cluster();
    let spec = json!({"driver": DRIVER, "nodeName": "a", "devices": [{"name": "x"}],
        "pool": {"name": "a", "generation": 2, "resourceSliceCount": 2}});
    slice(&mut snapshot, "a-new", spec);
    claim(&mut snapshot, "c", exactly(json!({})));
    assert_eq!(place(&mut snapshot, "c"), Ok("b".to_owned()));
}

#[test]
fn claims_have_parts_of_a_device_as_long_as_there_is_enough() {
    let mut snapshot = cluster();
    let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
    let shared = |number: usize| {
        json!({"name": format!("card-{number}"), "allowMultipleAllocations": true, "attributes": {"slot": {"int": number}},
            "capacity": {"memory": {"value": "8Gi", "requestPolicy": range}}})
    };
    let spec = json!({"driver": "card.example.com", "nodeName": "a", "devices": [shared(0), shared(1)],
        "pool": {"name": "cards", "generation": 1, "resourceSliceCount": 1}});
    slice(&mut snapshot, "cards", spec);
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "card"},
        "spec": {"selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}]}});
    snapshot.devices.classes.insert("card".to_owned(), DeviceClass::from_value(class).unwrap());
    let ask = |memory: &str, extra: Value| {
        let mut exactly = json!({"deviceClassName": "card", "capacity": {"requests": {"memory": memory}}});
        corten_meta::patch::merge_patch(&mut exactly, &extra);
        json!({"requests": [{"name": "r", "exactly": exactly}]})
    };
    let plugin = DynamicResources::default();
    let mut take = |name: &str, devices: Value| -> Option<Vec<String>> {
        claim(&mut snapshot, name, devices);
        let row = snapshot.row(typed_pod("p", using(name)));
        let slot = snapshot.find("a").unwrap().slot;
        let effects = plugin.reserve(&row, slot, &mut snapshot).ok()?;
        let Effect::AllocateClaim { allocation: Some(allocation), .. } = &effects[0] else { panic!("{effects:?}") };
        let results = allocation.devices.as_ref()?.results.as_ref()?;
        let shown = |one: &corten_api::k8s_openapi::api::resource::v1::DeviceRequestAllocationResult| {
            assert!(one.share_id.is_some());
            format!("{} {}", one.device, one.consumed_capacity.as_ref().unwrap()["memory"].0)
        };
        Some(results.iter().map(shown).collect())
    };
    let parts = |list: &[&str]| Some(list.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
    assert_eq!(take("one", ask("5000Mi", json!({}))), parts(&["card-0 5Gi"]));
    assert_eq!(take("two", ask("3Gi", json!({}))), parts(&["card-0 3Gi"]));
    let mut distinct = ask("2Gi", json!({"count": 2}));
    assert_eq!(take("both", distinct.clone()), parts(&["card-1 2Gi", "card-1 2Gi"]));
    distinct["constraints"] = json!([{"distinctAttribute": "card.example.com/slot"}]);
    assert_eq!(take("apart", distinct), None, "the first card is full");
    assert_eq!(take("large", ask("5Gi", json!({}))), None);
    assert_eq!(take("rest", ask("4Gi", json!({}))), parts(&["card-1 4Gi"]));
}

#[test]
fn a_pod_waits_for_its_devices_to_be_ready() {
    let ready = |conditions: Value| {
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x",
            "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {}, "status": {"allocation": {"devices": {"results": [result]}},
                "devices": [{"driver": "d", "pool": "p", "device": "x", "conditions": conditions}]}});
        is_ready(&ResourceClaim::from_value(claim).unwrap())
    };
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    assert_eq!(ready(json!([])), Ok(false));
    assert_eq!(ready(json!([condition("Attached", "False")])), Ok(false));
    assert_eq!(ready(json!([condition("Attached", "True"), condition("Broken", "False")])), Ok(true));
    let why = "device binding failed: claim=c, reason=R, message=\"m\"";
    assert_eq!(ready(json!([condition("Attached", "True"), condition("Broken", "True")])), Err(why.to_owned()));
}

#[test]
fn a_pod_whose_claim_has_yet_to_be_made_is_not_tried() {
    let mut snapshot = cluster();
    let spec = json!({"containers": [], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]});
    let mut pod = typed_pod("p", spec);
    let verdict = DynamicResources::default().pre_enqueue(&snapshot.row(pod.clone()));
    assert_eq!(verdict.reasons().unwrap().text(), "pod \"default/p\": ResourceClaim not created yet");
    let status = json!({"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "made"}]});
    pod.status = Some(serde_json::from_value(status).unwrap());
    assert!(DynamicResources::default().pre_enqueue(&snapshot.row(pod)).fits());
}

fn extended_pod(containers: Value, init: Value) -> Value {
    json!({"containers": containers, "initContainers": init})
}

fn asking(name: &str, resource: &str, count: u32) -> Value {
    json!({"name": name, "resources": {"requests": {"cpu": "1m", resource: count.to_string()}}})
}

/// A DeviceClass provides an extended resource that no node advertises: a claim is created when the pod is bound; a
/// claim from an earlier attempt is deleted first.
#[test]
fn extended_resources_are_devices_where_a_class_says_so() {
    let mut snapshot = cluster();
    let resource = "example.com/gpu";
    let spec = extended_pod(json!([asking("c", resource, 2)]), json!([]));
    let row = snapshot.row(typed_pod("p", spec));
    let place = |snapshot: &mut Snapshot, row: &PodRow| {
        schedule(snapshot, &Profile::by_default(), row, &mut Rotation::new(7)).map_err(|rejection| rejection.message())
    };
    assert!(place(&mut snapshot, &row).unwrap_err().contains("Insufficient example.com/gpu"));

    let mut class = snapshot.devices.classes["gpu"].clone();
    class.spec.extended_resource_name = Some(resource.to_owned());
    snapshot.devices.classes.insert("gpu".to_owned(), class);
    let fit = crate::plugins::NodeResourcesFit::default();
    assert!(fit.wakes(&row, &ClusterEvent::DevicesChanged, &snapshot));
    let slot = place(&mut snapshot, &row).unwrap();
    let effects = DynamicResources::default().reserve(&row, slot, &mut snapshot).unwrap();
    let [Effect::CreateClaim { claim, allocation, mappings, .. }] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(claim.metadata.generate_name.as_deref(), Some("p-extended-resources-"));
    let request = &claim.spec.devices.as_ref().unwrap().requests.as_ref().unwrap()[0];
    assert_eq!((request.name.as_str(), request.exactly.as_ref().unwrap().count), ("container-0-request-1", Some(2)));
    assert_eq!(allocation.devices.as_ref().unwrap().results.as_ref().unwrap().len(), 2);
    assert_eq!(mappings[0].request_name, "container-0-request-1");

    // The first pod has two of three devices on its node: the next is scheduled on the other, and then there is no
    // room.
    let other = snapshot.row(typed_pod("q", extended_pod(json!([asking("c", resource, 2)]), json!([]))));
    let next = place(&mut snapshot, &other).unwrap();
    assert_ne!(next, slot);
    DynamicResources::default().reserve(&other, next, &mut snapshot).unwrap();
    let third = snapshot.row(typed_pod("r", extended_pod(json!([asking("c", resource, 2)]), json!([]))));
    assert!(place(&mut snapshot, &third).unwrap_err().contains("cannot allocate all claims"));
    DynamicResources::default().unreserve(&row, &mut snapshot);
    assert_eq!(place(&mut snapshot, &third), Ok(slot));

    let mut left = (**claim).clone();
    left.metadata.name = Some("left".into());
    snapshot.devices.set_claim(&key(&row, "left"), Some(left));
    assert!(place(&mut snapshot, &row).unwrap_err().contains("cannot schedule extended resource claim"));
}

#[test]
fn init_containers_have_the_devices_of_those_after_them() {
    let mut snapshot = cluster();
    let resource = "deviceclass.resource.kubernetes.io/gpu";
    let init = json!([asking("first", resource, 3), asking("second", resource, 1)]);
    let row = snapshot.row(typed_pod("p", extended_pod(json!([asking("c", resource, 2)]), init)));
    let classes = extended::classes(&row, &snapshot.devices);
    let made = extended::claim(&row, &classes, snapshot.find("a").unwrap()).unwrap();
    let requests = made.claim.spec.devices.unwrap().requests.unwrap();
    let asked: Vec<(&str, i64)> =
        requests.iter().map(|one| (one.name.as_str(), one.exactly.as_ref().unwrap().count.unwrap())).collect();
    assert_eq!(asked, [("container-0-request-1", 1), ("container-2-request-1", 2)]);
    let found: Vec<(&str, &str)> =
        made.mappings.iter().map(|one| (one.container_name.as_str(), one.request_name.as_str())).collect();
    let expected = [
        ("c", "container-2-request-1"),
        ("first", "container-2-request-1"),
        ("second", "container-2-request-1"),
        ("first", "container-0-request-1"),
    ];
    assert_eq!(found, expected);
}
