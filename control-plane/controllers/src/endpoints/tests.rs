//! Endpoints of Services on a model.

use super::*;
use crate::tests::model::{Model, converges, mapped, pod};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_meta::Value;
use serde_json::json;

fn service(extra: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web", "uid": "svc", "labels": {"team": "a"}},
        "spec": {"clusterIP": "10.96.0.5", "ipFamilies": ["IPv4"], "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}]},
    });
    corten_meta::patch::merge_patch(&mut service, &extra);
    service
}

fn backend(name: &str, ip: &str, port: i32) -> crate::tests::model::PodBuilder {
    let containers = json!([{"name": "c", "ports": [{"name": "web", "containerPort": port, "protocol": "TCP"}]}]);
    pod(name).label("app", "web").phase("Running").on("n").ip(ip).set("/spec/containers", containers)
}

fn cluster(extra: Value, pods: Vec<Value>) -> Model {
    let mut model = Model::default();
    model.put(service(extra));
    model.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}}}));
    pods.into_iter().for_each(|pod| model.put(pod));
    model
}

fn slices(model: &mut Model) -> Vec<Value> {
    converges(&EndpointSliceController, model, "default", "web");
    model.typed::<EndpointSlice>().iter().map(|slice| slice.to_value()).collect()
}

fn endpoints(model: &mut Model) -> Value {
    converges(&EndpointsController, model, "default", "web");
    model.value("Endpoints", "default", "web")
}

#[test]
fn a_slice_tells_everything_about_its_endpoints() {
    let mut model = cluster(json!({}), vec![backend("a", "10.0.0.1", 8080).ready(9).value()]);
    let slices = slices(&mut model);
    assert_eq!(slices.len(), 1);
    let slice = &slices[0];
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"team": "a", "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"})
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "svc");
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(slice["ports"], json!([{"name": "http", "port": 8080, "protocol": "TCP"}]));
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": "n", "zone": "z", "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": "uid-of-a"},
        }])
    );
}

#[test]
fn readiness_by_state_and_by_what_the_service_asks_for() {
    let cases = [
        ("ready", backend("a", "10.0.0.1", 1).ready(1), json!({}), Some((true, true, false))),
        ("not ready", backend("a", "10.0.0.1", 1), json!({}), Some((false, false, false))),
        (
            "not ready, published",
            backend("a", "10.0.0.1", 1),
            json!({"spec": {"publishNotReadyAddresses": true}}),
            Some((true, false, false)),
        ),
        ("terminating", backend("a", "10.0.0.1", 1).ready(1).deleting(), json!({}), Some((false, true, true))),
        ("ended", backend("a", "10.0.0.1", 1).phase("Succeeded"), json!({}), None),
        ("without an address", pod("a").label("app", "web"), json!({}), None),
    ];
    for (name, pod, extra, expected) in cases {
        let mut model = cluster(extra, vec![pod.value()]);
        let slices = slices(&mut model);
        let endpoint = slices[0]["endpoints"].as_array().and_then(|all| all.first().cloned());
        let told = endpoint.map(|endpoint| {
            let flag = |key: &str| endpoint["conditions"][key].as_bool().unwrap();
            (flag("ready"), flag("serving"), flag("terminating"))
        });
        assert_eq!(told, expected, "{name}");
    }
}

#[test]
fn a_service_without_backends_keeps_one_empty_slice() {
    let mut model = cluster(json!({}), vec![backend("a", "10.0.0.1", 1).ready(1).value()]);
    slices(&mut model);
    model.remove("Pod", "default", "a");
    let slices = slices(&mut model);
    assert_eq!(slices.len(), 1);
    assert_eq!((&slices[0]["endpoints"], &slices[0]["ports"]), (&json!([]), &json!([])));
}

#[test]
fn endpoints_stay_in_their_slice_and_slices_stay_small() {
    let many: Vec<Value> =
        (0..250).map(|n| backend(&format!("p{n:03}"), &format!("10.0.1.{n}"), 80).ready(1).value()).collect();
    let mut model = cluster(json!({}), many);
    let before = slices(&mut model);
    assert_eq!(
        before.iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect::<Vec<_>>(),
        [100, 100, 50]
    );
    model.put(backend("p120", "10.0.1.120", 80).value());
    assert_eq!(
        converges(&EndpointSliceController, &mut model, "default", "web"),
        1,
        "one endpoint changed, one slice is written"
    );
}

#[test]
fn pods_with_different_ports_have_slices_of_their_own() {
    let mut model = cluster(
        json!({}),
        vec![backend("a", "10.0.0.1", 80).ready(1).value(), backend("b", "10.0.0.2", 81).ready(1).value()],
    );
    assert_eq!(slices(&mut model).len(), 2);
    assert_eq!(endpoints(&mut model)["subsets"].as_array().unwrap().len(), 2);
}

#[test]
fn headless_services_are_marked_and_publish_hostnames() {
    let named =
        backend("a", "10.0.0.1", 80).ready(1).set("/spec/hostname", json!("a-0")).set("/spec/subdomain", json!("web"));
    let mut model = cluster(json!({"spec": {"clusterIP": "None"}}), vec![named.value()]);
    let slice = slices(&mut model).remove(0);
    assert_eq!(slice["metadata"]["labels"]["service.kubernetes.io/headless"], "");
    assert_eq!(slice["endpoints"][0]["hostname"], "a-0");
    assert_eq!(endpoints(&mut model)["subsets"][0]["addresses"][0]["hostname"], "a-0");
}

#[test]
fn endpoints_part_the_ready_from_the_others() {
    let mut model = cluster(
        json!({}),
        vec![
            backend("a", "10.0.0.1", 80).ready(1).value(),
            backend("b", "10.0.0.2", 80).value(),
            backend("c", "10.0.0.3", 80).ready(1).deleting().value(),
        ],
    );
    let told = endpoints(&mut model);
    assert_eq!(told["subsets"][0]["addresses"][0]["ip"], "10.0.0.1");
    assert_eq!(told["subsets"][0]["notReadyAddresses"][0]["ip"], "10.0.0.2");
    assert_eq!(told["subsets"][0]["ports"], json!([{"name": "http", "port": 80, "protocol": "TCP"}]));
    assert_eq!(told["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"], "endpoint-controller");
    model.remove("Service", "default", "web");
    converges(&EndpointsController, &mut model, "default", "web");
    assert!(model.find("Endpoints", "default", "web").is_none());
}

#[test]
fn services_without_a_selector_belong_to_others() {
    for extra in [json!({"spec": {"selector": null}}), json!({"spec": {"type": "ExternalName", "externalName": "x"}})] {
        let mut model = cluster(extra, vec![backend("a", "10.0.0.1", 80).ready(1).value()]);
        assert_eq!(converges(&EndpointSliceController, &mut model, "default", "web"), 0);
        assert_eq!(converges(&EndpointsController, &mut model, "default", "web"), 0);
    }
}

#[test]
fn a_pod_wakes_the_services_that_select_or_selected_it() {
    let model = cluster(json!({}), vec![]);
    let (with, without) = (pod("a").label("app", "web").value(), pod("a").label("app", "db").value());
    assert_eq!(mapped::<Pod>(&EndpointSliceController, &model, Some(&with), Some(&without)), ["default/web"]);
    assert!(mapped::<Pod>(&EndpointSliceController, &model, None, Some(&without)).is_empty());
}

#[test]
fn traffic_that_should_stay_near_is_hinted() {
    let mut model = cluster(
        json!({"spec": {"trafficDistribution": "PreferClose"}}),
        vec![backend("a", "10.0.0.1", 80).ready(1).value()],
    );
    assert_eq!(slices(&mut model)[0]["endpoints"][0]["hints"], json!({"forZones": [{"name": "z"}]}));
}

#[test]
fn the_time_of_the_last_change_is_told_with_it() {
    let time = |value: &Value| value["metadata"]["annotations"][LAST_CHANGE].as_str().map(str::to_owned);
    let mut born = service(json!({}));
    born["metadata"]["creationTimestamp"] = json!("2026-01-02T03:00:00Z");
    let mut model = cluster(json!({}), Vec::new());
    let mut empty = cluster(json!({}), Vec::new());
    empty.put(born.clone());
    assert_eq!(time(&slices(&mut empty)[0]).as_deref(), Some("2026-01-02T03:00:00Z"), "also of a Service without pods");
    model.put(born);
    model.put(backend("a", "10.0.0.1", 8080).ready(9).value());
    assert_eq!(time(&slices(&mut model)[0]).as_deref(), Some("2026-01-02T03:00:00Z"), "the Service is new");
    assert_eq!(time(&endpoints(&mut model)).as_deref(), Some("2026-01-02T03:00:00Z"));

    model.put(backend("b", "10.0.0.2", 8080).ready(5).value());
    assert_eq!(time(&slices(&mut model)[0]).as_deref(), Some("2026-01-02T03:04:00Z"), "a pod became ready");
    assert_eq!(time(&endpoints(&mut model)).as_deref(), Some("2026-01-02T03:04:00Z"));

    model.remove("Pod", "default", "b");
    assert_eq!(time(&slices(&mut model)[0]), None, "a pod went");
    assert_eq!(time(&endpoints(&mut model)), None);
}

/// A Service that asks for topology aware routing has hints once there are endpoints and nodes in two zones.
#[test]
fn endpoints_are_told_which_zone_they_serve() {
    let mode = json!({"metadata": {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}});
    let pods = [("a", "n1", "10.0.0.1"), ("b", "n2", "10.0.0.2")]
        .map(|(name, node, ip)| backend(name, ip, 8080).on(node).ready(9).value());
    let mut model = cluster(mode, pods.to_vec());
    let hints = |model: &mut Model| -> Vec<Value> {
        let slices = slices(model);
        slices[0]["endpoints"].as_array().unwrap().iter().map(|endpoint| endpoint["hints"].clone()).collect()
    };
    assert_eq!(hints(&mut model), [Value::Null, Value::Null]);
    for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
        model.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]}}));
    }
    let expected = ["z1", "z2"].map(|zone| json!({"forZones": [{"name": zone}]}));
    assert_eq!(hints(&mut model), expected);
}
