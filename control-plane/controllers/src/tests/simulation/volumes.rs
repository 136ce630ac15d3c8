//! Claims, volumes and the nodes that volumes are attached to.
//!
//! A volume is never bound to two claims, nor a claim to two volumes; at the end both sides agree. A volume with
//! single-node access is never attached to two nodes. Objects in use are not deleted: no claim that a scheduled pod
//! uses, no volume that is bound, no class that a claim or a volume names. A claim that requests more than its capacity
//! gets an event that names the component it waits for.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, age, all, any, delete, kubelet, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &[
        "persistentvolume-binder-controller",
        "persistentvolume-attach-detach-controller",
        "persistentvolume-expander-controller",
        "persistentvolumeclaim-protection-controller",
        "persistentvolume-protection-controller",
        "volumeattributesclass-protection-controller",
    ],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    pace: std::time::Duration::from_millis(900),
    ..World::USUAL
};

fn volume(number: usize) -> Value {
    fixture::object(&format!(
        "pv v{number} size=5Gi accessModes=ReadWriteOnce class=manual policy=Retain \
         csi={{driver: example.com, volumeHandle: h{number}}}"
    ))
}

fn class(number: usize) -> Value {
    fixture::object(&format!("vac fast-{number} driverName=example.com parameters.iops=9"))
}

fn objects(_: &mut Random) -> Vec<Value> {
    let mut all = fixture::objects(
        "ns default
         sc manual provisioner=kubernetes.io/no-provisioner volumeBindingMode=Immediate
         csidriver example.com attachRequired=true
         node a annotation.volumes.kubernetes.io/controller-managed-attach-detach=true
         node b annotation.volumes.kubernetes.io/controller-managed-attach-detach=true",
    );
    all.extend((0..3).map(volume));
    all.extend((0..2).map(class));
    all
}

fn claim(random: &mut Random) -> Value {
    let class = ["volumeAttributesClassName=fast-0", "volumeAttributesClassName=fast-1", ""][random.next(3)];
    let number = random.next(4);
    fixture::object(&format!("pvc c{number} size=1Gi accessModes=ReadWriteOnce class=manual {class}"))
}

fn happens(server: &Server, random: &mut Random) {
    let new = match random.next(14) {
        0..3 => claim(random),
        3..6 => fixture::object(&format!("pod p{} pvc=c{}", random.next(6), random.next(4))),
        6 => volume(random.next(6)),
        7 | 8 => {
            let kinds = ["Pod", "Pod", "PersistentVolumeClaim", "PersistentVolume", "VolumeAttributesClass"];
            let kind = kinds[random.next(kinds.len())];
            if let Some(object) = any(server, random, kind) {
                delete(server, &object, None);
            }
            return;
        }
        9 => class(random.next(2)),
        // A pod is bound, and its claim deleted in the same moment.
        11 => {
            let Some(pod) = any(server, random, "Pod").filter(|pod| pod["spec"]["nodeName"].is_null()) else { return };
            let name = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default();
            let target = json!({"target": {"name": "a"}});
            let _ = server.ask("scheduler", Method::POST, &format!("{}/binding", path_of(&pod)), &target);
            let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{name}");
            let _ = server.ask("user", Method::DELETE, &path, &json!({}));
            return;
        }
        // A user requests more than the capacity of a claim.
        10 => {
            let Some(claim) = any(server, random, "PersistentVolumeClaim") else { return };
            if claim["status"]["phase"] == "Bound" {
                let size = format!("{}Gi", 2 + random.next(8));
                let more = json!({"spec": {"resources": {"requests": {"storage": size}}}});
                let _ = server.ask("user", Method::PATCH, &path_of(&claim), &more);
            }
            return;
        }
        _ => {
            let kind = ["Pod", "Node", "PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment"][random.next(5)];
            return touch(server, random, kind);
        }
    };
    let _ = server.ask("user", Method::POST, &collection(&new), &new);
}

/// Runs the kubelets, which report mounted volumes, and the driver's external-attacher.
fn goes_on(server: &Server, random: &mut Random) {
    kubelet(server, random);
    if let Some(attachment) = any(server, random, "VolumeAttachment") {
        let _ = server.ask(
            "attacher",
            Method::PATCH,
            &format!("{}/status", path_of(&attachment)),
            &json!({"status": {"attached": true}}),
        );
    }
    let Some(node) = any(server, random, "Node") else { return };
    let in_use: Vec<String> = mounted(server, corten_meta::name(&node));
    if node["status"]["volumesInUse"].as_array().map_or(0, Vec::len) != in_use.len() {
        let _ = server.ask(
            "kubelet",
            Method::PATCH,
            &format!("{}/status", path_of(&node)),
            &json!({"status": {"volumesInUse": in_use}}),
        );
    }
}

/// Returns the volumes that the pods of a node have mounted.
fn mounted(server: &Server, node: &str) -> Vec<String> {
    let state = server.state();
    let model = &state.api.model;
    let mut names = Vec::new();
    for key in model.keys("Pod") {
        let pod = model.value("Pod", &key.namespace, &key.name);
        let claim =
            pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].as_str().unwrap_or_default().to_owned();
        let claim = model.find("PersistentVolumeClaim", "default", &claim);
        let volume = claim.and_then(|claim| claim["spec"]["volumeName"].as_str().map(str::to_owned));
        let handle = volume.and_then(|name| model.find("PersistentVolume", "", &name));
        if pod["spec"]["nodeName"] == node && pod["status"]["phase"] == "Running" {
            names.extend(handle.map(|volume| {
                format!(
                    "kubernetes.io/csi/example.com^{}",
                    volume["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default()
                )
            }));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

fn values(model: &Model, kind: &'static str) -> impl Iterator<Item = Value> {
    model.objects().filter(move |(of, _)| *of == kind).map(|(_, object)| object.value())
}

type Revisions = BTreeMap<String, u64>;

fn invariant() -> Invariant {
    // The revisions at which each pod was bound and each claim deleted: a claim in use at that time stays.
    let (mut placed, mut asked): (Revisions, Revisions) = Default::default();
    Box::new(move |write: &Write<'_>| {
        if let Some(new) = &write.new {
            let revision = write.after.revision;
            match write.kind {
                "Pod" if !new["spec"]["nodeName"].is_null() => {
                    placed.entry(corten_meta::uid(new).to_owned()).or_insert(revision);
                }
                "PersistentVolumeClaim" if !new["metadata"]["deletionTimestamp"].is_null() => {
                    asked.entry(corten_meta::uid(new).to_owned()).or_insert(revision);
                }
                _ => {}
            }
        }
        let Some(new) = &write.new else { return check_end(write, &placed, &asked) };
        match (write.who, write.kind) {
            ("persistent-volume-binder", "PersistentVolume") => check_volume(write, new),
            ("persistent-volume-binder", "PersistentVolumeClaim") => {
                let volume = new["spec"]["volumeName"].as_str().unwrap_or_default();
                let same = |one: &Value| !volume.is_empty() && one["spec"]["volumeName"] == volume;
                let count = values(write.after, "PersistentVolumeClaim").filter(same).count();
                if count > 1 { Err(format!("{count} claims have {volume}")) } else { Ok(()) }
            }
            ("attachdetach-controller", "VolumeAttachment") if write.old.is_none() => {
                let source = &new["spec"]["source"]["persistentVolumeName"];
                let same = |one: &Value| one["spec"]["source"]["persistentVolumeName"] == *source;
                let count = values(write.after, "VolumeAttachment").filter(same).count();
                if count > 1 + write.late { Err(format!("{source} is wanted on {count} nodes")) } else { Ok(()) }
            }
            ("expand-controller", _) => Err("who only tells wrote something".to_owned()),
            _ => Ok(()),
        }
    })
}

/// Checks an object whose protection finalizer was removed.
fn check_end(write: &Write<'_>, placed: &Revisions, asked: &Revisions) -> Result<(), String> {
    let Some(old) = write.old.as_ref().filter(|_| write.who.contains("protection")) else { return Ok(()) };
    let name = corten_meta::name(old);
    let asked = asked.get(corten_meta::uid(old));
    let used = match write.kind {
        "PersistentVolumeClaim" => values(write.after, "Pod").any(|pod| {
            let since = placed.get(corten_meta::uid(&pod));
            pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == name
                && !["Failed", "Succeeded"].iter().any(|phase| pod["status"]["phase"] == *phase)
                && since.zip(asked).is_some_and(|(since, asked)| since < asked)
        }),
        "PersistentVolume" => old["status"]["phase"] == "Bound",
        "VolumeAttributesClass" => {
            values(write.after, "PersistentVolumeClaim").any(|claim| names_class(&claim, name) && age(&claim) > SETTLED)
        }
        _ => false,
    };
    if used { Err("it went while it was in use".to_owned()) } else { Ok(()) }
}

fn names_class(claim: &Value, class: &str) -> bool {
    claim["spec"]["volumeAttributesClassName"] == class
}

fn check_volume(write: &Write<'_>, new: &Value) -> Result<(), String> {
    let claim = |one: &Value| one["spec"]["claimRef"]["uid"].as_str().unwrap_or_default().to_owned();
    let before = write.old.as_ref().map(claim).unwrap_or_default();
    if !before.is_empty() && claim(new) != before {
        return Err(format!("it was of {before} and is of {}", claim(new)));
    }
    let sharing =
        values(write.after, "PersistentVolume").filter(|one| !before.is_empty() && claim(one) == before).count();
    if sharing > 1 { Err(format!("{sharing} volumes are of {before}")) } else { Ok(()) }
}

fn at_rest(server: &Server) -> Result<(), String> {
    let volumes = all(server, "PersistentVolume");
    for claim in all(server, "PersistentVolumeClaim") {
        let Some(name) = claim["spec"]["volumeName"].as_str() else { continue };
        let volume = volumes.iter().find(|volume| corten_meta::name(volume) == name);
        let agrees = |volume: &Value| {
            volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
                && volume["status"]["phase"] == "Bound"
                && claim["status"]["phase"] == "Bound"
        };
        if claim["status"]["phase"] != "Lost" && !volume.is_some_and(agrees) {
            return Err(format!("{} and {name} do not agree: {claim} {volume:?}", corten_meta::name(&claim)));
        }
    }
    let free =
        |volume: &Value| volume["spec"]["claimRef"].is_null() && volume["metadata"]["deletionTimestamp"].is_null();
    let waits =
        |claim: &Value| claim["spec"]["volumeName"].is_null() && claim["metadata"]["deletionTimestamp"].is_null();
    if volumes.iter().any(free) && all(server, "PersistentVolumeClaim").iter().any(waits) {
        return Err("a claim waits while a volume is free".to_owned());
    }
    let claims = all(server, "PersistentVolumeClaim");
    for class in all(server, "VolumeAttributesClass") {
        let name = corten_meta::name(&class);
        let leaves = !class["metadata"]["deletionTimestamp"].is_null();
        let held = class["metadata"]["finalizers"] == json!(["kubernetes.io/vac-protection"]);
        if !held || leaves && !claims.iter().any(|claim| names_class(claim, name)) {
            return Err(format!("{name} is held or not, wrongly: {class}"));
        }
    }
    claims.iter().try_for_each(|claim| waits_with_an_event(server, claim))
}

/// Checks that a claim with a larger request got the event.
fn waits_with_an_event(server: &Server, claim: &Value) -> Result<(), String> {
    let size = |value: &Value| value.as_str().and_then(|text| text.strip_suffix("Gi")?.parse::<u32>().ok());
    let (wanted, has) = (&claim["spec"]["resources"]["requests"]["storage"], &claim["status"]["capacity"]["storage"]);
    let waits = claim["status"]["phase"] == "Bound" && size(wanted) > size(has);
    let event = ("ExternalExpanding".to_owned(), corten_meta::uid(claim).to_owned());
    match waits && !server.state().events.contains(&event) {
        true => Err(format!("{} waits without an event: {claim}", corten_meta::name(claim))),
        false => Ok(()),
    }
}

#[test]
fn claims_and_volumes_are_of_each_other_alone() {
    play(&WORLD);
}
