//! Controllers that create other objects than pods: EndpointSlices and Endpoints, claims for pods, volumes for claims,
//! Jobs of CronJobs, and the objects of every namespace.
//!
//! No object is created twice for the same owner, and at the end there is one of each and nothing left over. No slice
//! ever contains a pod that was deleted long ago; at the end slices and Endpoints show every endpoint correctly, and
//! Endpoints that a user wrote for a Service without a selector are mirrored as written.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, play};
use super::eviction::is_ready;
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, all, any, delete, kubelet, now, touch};
use crate::tests::model::Model;

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

pub const WORLD: World = World {
    controllers: &[
        "endpointslice-controller",
        "endpoints-controller",
        "endpointslice-mirroring-controller",
        "resourceclaim-controller",
        "ephemeral-volume-controller",
        "persistentvolume-binder-controller",
        "persistentvolumeclaim-protection-controller",
        "persistentvolume-protection-controller",
        "local-volume-controller",
        "cronjob-controller",
        "serviceaccount-controller",
        "root-ca-certificate-publisher-controller",
        "garbage-collector-controller",
    ],
    objects,
    happens,
    goes_on: kubelet,
    invariant,
    at_rest,
    pace: std::time::Duration::from_millis(300),
    steps: 200,
    ..World::USUAL
};

fn backend(number: usize) -> Value {
    fixture::object(&format!(
        "pod p{number} label.app=web node=a resourceClaims=[{{name: g, resourceClaimTemplateName: gpu}}] \
         volumes=[{{name: scratch, ephemeral: {{volumeClaimTemplate: {{ \
         metadata: {{annotations: {{volume.kubernetes.io/selected-node: a}}}}, spec: {{accessModes: [ReadWriteOnce], \
         storageClassName: standard, resources: {{requests: {{storage: 1Gi}}}}}}}}}}}}]"
    ))
}

fn objects(_: &mut Random) -> Vec<Value> {
    let mut all = fixture::objects(
        "ns default
         ns other
         node a label.kubernetes.io/hostname=a annotation.corten/local-volumes=/data
         sc standard provisioner=corten/local-path reclaimPolicy=Delete volumeBindingMode=WaitForFirstConsumer
         resourceclaimtemplate gpu spec.spec.devices.requests=[{name: r, exactly: {deviceClassName: c}}]
         cj tick schedule=\"0 0 1 1 *\" startingDeadlineSeconds=1000000000 \
         status.lastScheduleTime=2025-06-01T00:00:00Z \
         jobTemplate.spec.template.spec.restartPolicy=Never
         svc web clusterIP=10.96.0.5 clusterIPs=10.96.0.5 ipFamilies=IPv4 ipFamilyPolicy=SingleStack \
         selector.app=web port=http:80->8080
         svc outside clusterIP=10.96.0.5 clusterIPs=10.96.0.5 ipFamilies=IPv4 ipFamilyPolicy=SingleStack \
         port=http:80->8080
         endpoints outside subsets=[{addresses: [{ip: 192.0.2.1}], ports: [{name: http, port: 80, protocol: TCP}]}]",
    );
    all.extend((0..3).map(backend));
    all
}

fn happens(server: &Server, random: &mut Random) {
    if random.chance(40) {
        let number = random.next(4);
        let new = backend(number);
        match all(server, "Pod").iter().find(|pod| corten_meta::name(pod) == corten_meta::name(&new)) {
            Some(pod) => {
                // Some are deleted after their dependents.
                let policy = ["Background", "Foreground"][random.next(2)];
                let now = json!({"gracePeriodSeconds": 0, "propagationPolicy": policy});
                let _ = server.ask("kubelet", Method::DELETE, &super::path_of(pod), &now);
            }
            None => drop(server.ask("user", Method::POST, &collection(&new), &new)),
        }
        return;
    }
    match random.next(12) {
        // A pod fails its readiness probe, or passes it again.
        0 => {
            let Some(pod) = any(server, random, "Pod").filter(|pod| pod["status"]["phase"] == "Running") else {
                return;
            };
            let ready = if is_ready(&pod) { "False" } else { "True" };
            let at = corten_meta::time::rfc3339(now());
            let conditions = json!([{"type": "Ready", "status": ready, "lastTransitionTime": at}]);
            let status = json!({"status": {"conditions": conditions}});
            return drop(server.ask("kubelet", Method::PATCH, &format!("{}/status", super::path_of(&pod)), &status));
        }
        // A user writes other addresses for the Service without a selector.
        1 => {
            let address = |last: usize| json!({"ip": format!("192.0.2.{}", 1 + last)});
            let (ready, rest) = (random.next(3), 3 + random.next(3));
            let port = json!([{"name": "http", "port": 80 + random.next(2), "protocol": "TCP"}]);
            let subsets = json!([{"addresses": [address(ready)], "notReadyAddresses": [address(rest)], "ports": port}]);
            let path = "/api/v1/namespaces/default/endpoints/outside";
            return drop(server.ask("user", Method::PATCH, path, &json!({ "subsets": subsets })));
        }
        _ => {}
    }
    let kinds = ["Service", "Endpoints", "EndpointSlice", "PersistentVolume", "CronJob", "Pod", "ServiceAccount"];
    let kind = kinds[random.next(kinds.len())];
    if ["EndpointSlice", "ServiceAccount"].contains(&kind) && random.chance(50) {
        if let Some(object) = any(server, random, kind) {
            delete(server, &object, None);
        }
        return;
    }
    touch(server, random, kind);
}

/// Returns the Service, the manager and the IP family of a slice.
fn slice_of(slice: &Value) -> String {
    let labels = &slice["metadata"]["labels"];
    format!("{} {} {}", labels[SERVICE_NAME], labels[MANAGED_BY], slice["addressType"])
}

/// Returns how to find the owner of a created object, by kind.
fn whose(kind: &str) -> Option<fn(&Value) -> String> {
    let owner: fn(&Value) -> String = |object| object["metadata"]["ownerReferences"][0]["uid"].to_string();
    match kind {
        "EndpointSlice" => Some(slice_of),
        "ResourceClaim" | "PersistentVolumeClaim" | "Job" => Some(owner),
        "PersistentVolume" => Some(|volume| volume["spec"]["claimRef"]["uid"].to_string()),
        _ => None,
    }
}

fn invariant() -> Invariant {
    // The time of each pod's deletion.
    let mut gone: BTreeMap<String, Timestamp> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        if let ("Pod", Some(pod), None) = (write.kind, &write.old, &write.new) {
            gone.insert(corten_meta::uid(pod).to_owned(), now());
        }
        let Some(new) = &write.new else { return Ok(()) };
        if write.who == "endpointslice-controller" {
            let targets = new["endpoints"].as_array().into_iter().flatten().map(|one| &one["targetRef"]["uid"]);
            let long_gone = |uid: &&Value| {
                let since = gone.get(uid.as_str().unwrap_or_default());
                since.is_some_and(|since| now().duration_since(*since) > SETTLED)
            };
            if let Some(uid) = targets.into_iter().find(long_gone) {
                return Err(format!("it names the pod {uid}, which is long gone"));
            }
        }
        let (None, Some(whose)) = (&write.old, whose(write.kind)) else { return Ok(()) };
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for object in write.after.objects().filter(|(kind, _)| *kind == write.kind).map(|(_, object)| object.value()) {
            *counts.entry(whose(&object)).or_default() += 1;
        }
        let (of, late) = (whose(new), write.late);
        match counts.get(&of).copied().unwrap_or(0) {
            count if count > 1 + late => Err(format!("{count} for {of}")),
            _ => Ok(()),
        }
    })
}

/// Endpoints as an object shows them: the address and whether it is ready.
type Backends = BTreeSet<(String, bool)>;

/// Returns the endpoints in the slices of a Service.
fn of_slices<'a>(slices: impl Iterator<Item = &'a Value>) -> Backends {
    let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let written = endpoints.map(|one| (one["addresses"][0].to_string(), one["conditions"]["ready"] == true));
    written.collect()
}

/// Returns the endpoints in an Endpoints object.
fn of_endpoints(endpoints: &Value) -> Backends {
    let mut written = Backends::new();
    for subset in endpoints["subsets"].as_array().into_iter().flatten() {
        for (field, ready) in [("addresses", true), ("notReadyAddresses", false)] {
            written.extend(subset[field].as_array().into_iter().flatten().map(|one| (one["ip"].to_string(), ready)));
        }
    }
    written
}

/// Checks that slices and Endpoints match the pods.
fn endpoints_match_pods(model: &Model, pods: &[Value], slices: &[Value]) -> Result<(), String> {
    let of = |name: &'static str| slices.iter().filter(move |one| one["metadata"]["labels"][SERVICE_NAME] == name);
    let (ours, written) = (model.value("Endpoints", "default", "web"), model.value("Endpoints", "default", "outside"));
    let ready: Backends = pods.iter().map(|pod| (pod["status"]["podIP"].to_string(), is_ready(pod))).collect();
    for (what, written, expected) in [
        ("the slices", of_slices(of("web")), &ready),
        ("the Endpoints", of_endpoints(&ours), &ready),
        ("the mirrored slices", of_slices(of("outside")), &of_endpoints(&written)),
    ] {
        if written != *expected {
            return Err(format!("{what} have {written:?}, expected {expected:?}"));
        }
    }
    let ports = |list: &Value| list[0]["port"].clone();
    let mirrored = of("outside").map(|slice| ports(&slice["ports"]));
    match mirrored.into_iter().find(|port| *port != ports(&written["subsets"][0]["ports"])) {
        Some(port) => Err(format!("the mirrored port is {port}: {written}")),
        None => Ok(()),
    }
}

fn names(model: &Model, kind: &str) -> usize {
    model.keys(kind).len()
}

fn at_rest(server: &Server) -> Result<(), String> {
    let (pods, slices) = (all(server, "Pod"), all(server, "EndpointSlice"));
    let of = |name: &'static str| slices.iter().filter(move |one| one["metadata"]["labels"][SERVICE_NAME] == name);
    let state = server.state();
    let model = &state.api.model;
    endpoints_match_pods(model, &pods, &slices)?;
    for (what, count, wanted) in [
        ("mirrored slices", of("outside").count(), 1),
        ("claims of devices", names(model, "ResourceClaim"), pods.len()),
        ("claims", names(model, "PersistentVolumeClaim"), pods.len()),
        ("volumes", names(model, "PersistentVolume"), pods.len()),
        ("Jobs", names(model, "Job"), 1),
        ("accounts", names(model, "ServiceAccount"), 3),
    ] {
        if count != wanted {
            return Err(format!("{count} {what}, not {wanted}"));
        }
    }
    let volumes: Vec<Value> =
        model.keys("PersistentVolume").iter().map(|key| model.value("PersistentVolume", "", &key.name)).collect();
    if let Some(loose) = volumes.iter().find(|volume| volume["status"]["phase"] != "Bound") {
        return Err(format!("a volume is not bound: {}", loose["status"]));
    }
    // The directory of every deleted volume is removed, and no other.
    let made = state.trace.iter().filter_map(|line| line.split("/localVolumes/").nth(1));
    let removed: BTreeSet<&str> = made.filter_map(|rest| rest.split(['_', ':']).next()).collect();
    match volumes.iter().find(|volume| removed.contains(corten_meta::name(volume))) {
        Some(volume) => Err(format!("the directory of {} is gone", corten_meta::name(volume))),
        None => Ok(()),
    }
}

#[test]
fn no_fault_makes_anything_twice_or_leaves_it_behind() {
    play(&WORLD);
}
