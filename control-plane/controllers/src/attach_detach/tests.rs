//! A volume that moves from one node to another.

use super::*;
use crate::tests::model::{Model, NOW, converges, decide, pod};
use serde_json::Value;

const UNIQUE: &str = "kubernetes.io/csi/d^handle";

fn node(name: &str, in_use: &[&str], ready: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": {MANAGED: "true"}},
        "status": {"volumesInUse": in_use, "conditions": [{"type": "Ready", "status": ready}]}})
}

fn user(name: &str, on: &str) -> Value {
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    pod(name).on(on).phase("Running").set("/spec/volumes", volumes).value()
}

fn cluster() -> Model {
    let mut model = Model::default();
    model.put(node("a", &[], "True"));
    model.put(node("b", &[], "True"));
    model.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "data", "uid": "claim"}, "spec": {"volumeName": "v"}}));
    model.put(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "d", "volumeHandle": "handle"}, "claimRef": {"namespace": "default", "name": "data", "uid": "claim"}}}));
    model
}

/// Attaches as the external-attacher does.
fn attach(model: &mut Model, node: &str) {
    let mut attachment = model.value("VolumeAttachment", "", &attachment_name("handle", "d", node));
    attachment["status"] = json!({"attached": true});
    model.put(attachment);
}

fn attached(model: &Model, node: &str) -> Value {
    model.value("Node", "", node)["status"]["volumesAttached"].take()
}

#[test]
fn a_volume_is_attached_where_its_pod_is_and_detached_when_the_node_lets_go() {
    let controller = AttachDetachController::default();
    let mut model = cluster();
    model.put(user("p", "a"));
    converges(&controller, &mut model, "", "a");
    assert_eq!(model.names("VolumeAttachment"), [attachment_name("handle", "d", "a")]);
    assert_eq!(attached(&model, "a"), Value::Null);
    attach(&mut model, "a");
    converges(&controller, &mut model, "", "a");
    assert_eq!(attached(&model, "a"), json!([{"name": UNIQUE, "devicePath": ""}]));
    assert_eq!(model.events, ["Normal SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"v\" "]);

    model.remove("Pod", "default", "p");
    let mut mounted = model.value("Node", "", "a");
    mounted["status"]["volumesInUse"] = json!([UNIQUE]);
    model.put(mounted.clone());
    assert_eq!(converges(&controller, &mut model, "", "a"), 0, "it is still mounted");
    mounted["status"]["volumesInUse"] = json!([]);
    model.put(mounted);
    converges(&controller, &mut model, "", "a");
    assert_eq!(model.names("VolumeAttachment").len(), 0);
    assert_eq!(attached(&model, "a"), json!([]));
}

#[test]
fn a_volume_for_one_node_waits_until_the_other_lost_it() {
    let controller = AttachDetachController::default();
    let mut model = cluster();
    model.put(user("p", "a"));
    converges(&controller, &mut model, "", "a");
    attach(&mut model, "a");
    model.put(user("q", "b"));
    converges(&controller, &mut model, "", "b");
    assert_eq!(model.names("VolumeAttachment").len(), 1);
    assert_eq!(
        model.events,
        ["Warning FailedAttachVolume Multi-Attach error for volume \"v\" Volume is already used by pod(s) p"]
    );
    model.remove("Pod", "default", "p");
    converges(&controller, &mut model, "", "a");
    converges(&controller, &mut model, "", "b");
    assert_eq!(model.names("VolumeAttachment"), [attachment_name("handle", "d", "b")]);
}

#[test]
fn only_a_node_that_is_lost_is_robbed_and_not_at_once() {
    let minutes = |count| jiff::SignedDuration::from_mins(count);
    for (ready, taint, after, gone) in [
        ("True", false, 60, false),
        ("Unknown", false, 0, false),
        ("Unknown", false, 7, true),
        ("Unknown", true, 0, true),
    ] {
        let controller = AttachDetachController::default();
        let mut model = cluster();
        model.put(user("p", "a"));
        converges(&controller, &mut model, "", "a");
        attach(&mut model, "a");
        converges(&controller, &mut model, "", "a");
        model.remove("Pod", "default", "p");
        let mut lost = node("a", &[UNIQUE], ready);
        if taint {
            lost["spec"] = json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]});
        }
        model.put(lost);
        decide(&controller, &model, "", "a");
        let since = NOW.checked_sub(minutes(after)).unwrap();
        controller.unwanted.lock().unwrap().values_mut().for_each(|at| *at = since);
        converges(&controller, &mut model, "", "a");
        assert_eq!(model.names("VolumeAttachment").is_empty(), gone, "{ready}, taint {taint}, after {after} min");
    }
}

#[test]
fn a_driver_may_need_no_attachment() {
    let mut model = cluster();
    model.put(user("p", "a"));
    model.put(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    assert_eq!(converges(&AttachDetachController::default(), &mut model, "", "a"), 0);
}

/// The pod has the volume mounted, and yet nothing needs to be detached from the node.
#[test]
fn an_attachment_goes_when_its_driver_needs_none_any_more() {
    let controller = AttachDetachController::default();
    let mut model = cluster();
    model.put(user("p", "a"));
    converges(&controller, &mut model, "", "a");
    assert_eq!(model.names("VolumeAttachment").len(), 1);
    model.put(node("a", &[UNIQUE], "True"));
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d"},
        "spec": {"attachRequired": false}});
    model.put(driver);
    converges(&controller, &mut model, "", "a");
    assert_eq!(model.names("VolumeAttachment").len(), 0);
}
