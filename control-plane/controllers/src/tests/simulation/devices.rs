//! Devices that their driver taints, and the pods that use them by claims.
//!
//! No pod is deleted for a device without taints, or before its claim's toleration expires; at the end no pod uses a
//! device whose taint it does not tolerate, and no claim has a reservation for a deleted pod.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, all, any, delete, kubelet, now, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &["device-taint-eviction-controller", "resourceclaim-controller", "garbage-collector-controller"],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    pace: std::time::Duration::from_millis(1500),
    ..World::USUAL
};

const EVICTOR: &str = "device-taint-eviction-controller";
const DEVICES: usize = 4;
/// The finalizer of an allocated claim.
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Returns the claim templates by their tolerations.
fn templates() -> [(&'static str, Value); 3] {
    let sick = |extra: Value| {
        let mut toleration = json!({"key": "sick", "operator": "Exists", "effect": "NoExecute"});
        corten_meta::patch::merge_patch(&mut toleration, &extra);
        json!([toleration])
    };
    [("never", json!([])), ("a-while", sick(json!({"tolerationSeconds": 20}))), ("always", sick(json!({})))]
}

fn objects(_: &mut Random) -> Vec<Value> {
    let mut all = fixture::objects("ns default\nnode a");
    for (name, tolerations) in templates() {
        let mut template = fixture::object(&format!(
            "resourceclaimtemplate {name} spec.spec.devices.requests=[{{name: r, exactly: {{deviceClassName: c}}}}]"
        ));
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = tolerations;
        all.push(template);
    }
    all.extend((0..DEVICES).map(|number| {
        fixture::object(&format!(
            "resourceslice s{number} driver=example.com nodeName=a devices=[{{name: d}}] \
             pool={{name: pool-{number}, generation: 1, resourceSliceCount: 1}}"
        ))
    }));
    all
}

fn happens(server: &Server, random: &mut Random) {
    match random.next(12) {
        0..4 => {
            let (template, _) = &templates()[random.next(3)];
            let claims = json!([{"name": "g", "resourceClaimTemplateName": template}]);
            let new = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": format!("p{}", random.next(8))},
                "spec": {"resourceClaims": claims, "containers": [{"name": "c", "image": "i"}]}});
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        4 => taint(server, random),
        5 => {
            if let Some(pod) = any(server, random, "Pod") {
                delete(server, &pod, None);
            }
        }
        _ => {
            let kind = ["Pod", "ResourceClaim", "ResourceSlice", "ResourceClaimTemplate"][random.next(4)];
            touch(server, random, kind);
        }
    }
}

/// Adds or removes the taint of a device, as its driver.
fn taint(server: &Server, random: &mut Random) {
    let Some(mut slice) = any(server, random, "ResourceSlice") else { return };
    let well = slice["spec"]["devices"][0]["taints"].is_null();
    let effect = ["NoExecute", "NoExecute", "NoSchedule"][random.next(3)];
    let taint = json!([{"key": "sick", "value": "", "effect": effect, "timeAdded": corten_meta::time::rfc3339(now())}]);
    slice["spec"]["devices"][0] = if well { json!({"name": "d", "taints": taint}) } else { json!({"name": "d"}) };
    let generation = slice["spec"]["pool"]["generation"].as_i64().unwrap_or(0);
    slice["spec"]["pool"]["generation"] = json!(generation + 1);
    let _ = server.ask("driver", Method::PUT, &path_of(&slice), &slice);
}

/// Runs the kubelets, and a scheduler that allocates and reserves claims.
fn goes_on(server: &Server, random: &mut Random) {
    for pod in all(server, "Pod").iter().filter(|pod| pod["spec"]["nodeName"].is_null()) {
        let Some(name) = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str() else { continue };
        let path = format!("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}");
        let Ok(claim) = server.ask("scheduler", Method::GET, &path, &json!({})) else { continue };
        let tolerations = &claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"];
        let pool = format!("pool-{}", random.next(DEVICES));
        let mut result = json!({"request": "r", "driver": "example.com", "pool": pool, "device": "d"});
        if tolerations.as_array().is_some_and(|all| !all.is_empty()) {
            result["tolerations"] = tolerations.clone();
        }
        let place = json!([{"resource": "pods", "name": corten_meta::name(pod), "uid": pod["metadata"]["uid"]}]);
        let mut allocated = claim.clone();
        allocated["metadata"]["finalizers"] = json!([PROTECTION]);
        let Ok(mut allocated) = server.ask("scheduler", Method::PUT, &path, &allocated) else { continue };
        allocated["status"] = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": place});
        if server.ask("scheduler", Method::PUT, &format!("{path}/status"), &allocated).is_ok() {
            let target = json!({"target": {"name": "a"}});
            let _ = server.ask("scheduler", Method::POST, &format!("{}/binding", path_of(pod)), &target);
        }
        return;
    }
    // The usual kubelet would bind pods that still wait for their device.
    if all(server, "Pod").iter().all(|pod| !pod["spec"]["nodeName"].is_null()) {
        kubelet(server, random);
    }
}

/// Returns the slice of the device that a pod uses, and its tolerations.
fn device(model: &Model, pod: &Value) -> Option<(Value, Value)> {
    let name = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"].as_str()?;
    let claim = model.find("ResourceClaim", "default", name)?;
    let result = claim["status"]["allocation"]["devices"]["results"][0].clone();
    if claim["status"]["reservedFor"][0]["uid"] != pod["metadata"]["uid"] {
        return None;
    }
    let slice = result["pool"].as_str()?.replace("pool-", "s");
    Some((model.find("ResourceSlice", "", &slice)?, result["tolerations"].clone()))
}

/// Returns when a pod may no longer use its device; none if it may.
fn due(slice: &Value, tolerations: &Value) -> Option<Timestamp> {
    let taint = &slice["spec"]["devices"][0]["taints"][0];
    let since: Timestamp = taint["timeAdded"].as_str().filter(|_| taint["effect"] == "NoExecute")?.parse().ok()?;
    match tolerations.as_array().and_then(|all| all.first()) {
        None => Some(since),
        Some(one) => since.checked_add(SignedDuration::from_secs(one["tolerationSeconds"].as_i64()?)).ok(),
    }
}

fn invariant() -> Invariant {
    // The time of each device's last change: caches may not show it for a moment.
    let mut changed: BTreeMap<String, Timestamp> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        if let ("ResourceSlice", Some(new)) = (write.kind, &write.new) {
            let devices = |slice: &Option<Value>| slice.as_ref().map(|slice| slice["spec"]["devices"].clone());
            if devices(&write.old) != devices(&write.new) {
                changed.insert(corten_meta::name(new).to_owned(), now());
            }
        }
        let (EVICTOR, "Pod", Some(old)) = (write.who, write.kind, &write.old) else { return Ok(()) };
        let lives = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null();
        if !lives(old) || write.new.as_ref().is_some_and(lives) {
            return Ok(());
        }
        let Some((slice, tolerations)) = device(write.after, old) else { return Err("it has no device".to_owned()) };
        let since = changed.get(corten_meta::name(&slice)).copied();
        if since.is_some_and(|since| now().duration_since(since) <= SETTLED)
            && tolerations.as_array().is_none_or(Vec::is_empty)
        {
            return Ok(());
        }
        match due(&slice, &tolerations) {
            Some(at) if at <= now() => Ok(()),
            at => Err(format!("it may use its device until {at:?}: {slice}")),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let pods = all(server, "Pod");
    let state = server.state();
    let model = &state.api.model;
    for pod in &pods {
        let name = corten_meta::name(pod);
        let (slice, tolerations) = device(model, pod).ok_or(format!("{name} has no device: {pod}"))?;
        if due(&slice, &tolerations).is_some() {
            return Err(format!("{name} uses a device that it does not tolerate"));
        }
    }
    for key in model.keys("ResourceClaim") {
        let claim = model.value("ResourceClaim", &key.namespace, &key.name);
        let of = &claim["status"]["reservedFor"][0]["uid"];
        if !pods.iter().any(|pod| pod["metadata"]["uid"] == *of) {
            return Err(format!("{key} is kept for nobody: {claim}"));
        }
    }
    Ok(())
}

#[test]
fn pods_leave_devices_that_are_unwell_and_no_others() {
    play(&WORLD);
}
