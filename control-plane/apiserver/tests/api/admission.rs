//! Small admission plugins, each through a request.

use crate::server::TestServer;
use base64::Engine;
use serde_json::{Value, json};

const DEFAULT: &str = "/api/v1/namespaces/default";

#[tokio::test]
async fn a_bound_pod_has_the_topology_labels_of_its_node() {
    let s = TestServer::start().await;
    let labels = json!({ "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o" });
    s.post("/api/v1/nodes", json!({ "metadata": { "name": "n", "labels": labels } })).await.expect(201);
    let account = json!({ "metadata": { "name": "default" } });
    s.post(&format!("{DEFAULT}/serviceaccounts"), account).await;
    let pod = |name: &str| {
        json!({ "metadata": { "name": name, "labels": { "topology.kubernetes.io/zone": "wrong", "own": "1" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] } })
    };
    s.post(&format!("{DEFAULT}/pods"), pod("p")).await.expect(201);
    s.get("/api/v1/nodes").await.expect(200);
    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n" } });
    s.post(&format!("{DEFAULT}/pods/p/binding"), binding).await.expect(201);
    let bound = s.get(&format!("{DEFAULT}/pods/p")).await.expect(200);
    let expected = json!({ "own": "1", "topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r" });
    assert_eq!(bound["metadata"]["labels"], expected);
    let mut placed = pod("q");
    placed["spec"]["nodeName"] = "n".into();
    let placed = s.post(&format!("{DEFAULT}/pods"), placed).await.expect(201);
    assert_eq!(placed["metadata"]["labels"], expected);
}

#[tokio::test]
async fn an_update_with_the_body_of_the_create_keeps_the_defaults_of_admission() {
    let s = TestServer::start().await;
    s.post(&format!("{DEFAULT}/serviceaccounts"), json!({ "metadata": { "name": "default" } })).await;
    let pod = |labels: Value| {
        json!({ "metadata": { "name": "p", "labels": labels },
                "spec": { "serviceAccountName": "default", "automountServiceAccountToken": false,
                          "containers": [{ "name": "c", "image": "i" }] } })
    };
    s.post(&format!("{DEFAULT}/pods"), pod(json!({}))).await.expect(201);
    let written = s.put(&format!("{DEFAULT}/pods/p"), pod(json!({ "a": "b" }))).await.expect(200);
    assert_eq!(written["spec"]["priority"], 0);
    assert_eq!(written["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let failed = json!({ "metadata": { "name": "p" }, "status": { "phase": "Failed" } });
    let reported = s.put(&format!("{DEFAULT}/pods/p/status"), failed).await.expect(200);
    assert_eq!(reported["status"], json!({ "phase": "Failed", "qosClass": "BestEffort" }));
}

#[tokio::test]
async fn the_qos_class_of_a_pod_follows_from_the_defaults_of_its_namespace() {
    let s = TestServer::start().await;
    s.post(&format!("{DEFAULT}/serviceaccounts"), json!({ "metadata": { "name": "default" } })).await;
    let both = json!({ "cpu": "1", "memory": "1Gi" });
    let range = json!({ "metadata": { "name": "r" }, "spec": { "limits": [
        { "type": "Container", "default": both, "max": { "cpu": "2" }, "maxLimitRequestRatio": { "cpu": "2" } }] } });
    s.post(&format!("{DEFAULT}/limitranges"), range).await.expect(201);
    s.get(&format!("{DEFAULT}/limitranges")).await.expect(200);
    let pod = |name: &str, resources: Value| {
        json!({ "metadata": { "name": name }, "status": { "phase": "Failed" },
                "spec": { "containers": [{ "name": "c", "image": "i", "resources": resources }] } })
    };
    let made = s.post(&format!("{DEFAULT}/pods"), pod("p", json!({}))).await.expect(201);
    assert_eq!(made["spec"]["containers"][0]["resources"], json!({ "limits": both, "requests": both }));
    assert_eq!(made["status"], json!({ "phase": "Pending", "qosClass": "Guaranteed" }));
    // The creator of a pod may set its QoS class.
    let mut with_class = pod("s", json!({}));
    with_class["status"]["qosClass"] = "BestEffort".into();
    let made_with_class = s.post(&format!("{DEFAULT}/pods"), with_class).await.expect(201);
    assert_eq!(made_with_class["status"], json!({ "phase": "Pending", "qosClass": "BestEffort" }));
    let annotation = "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c";
    assert_eq!(made["metadata"]["annotations"], json!({ "kubernetes.io/limit-ranger": annotation }));
    let far = json!({ "requests": { "cpu": "500m" }, "limits": { "cpu": "1500m", "memory": "1Gi" } });
    let refused = s.post(&format!("{DEFAULT}/pods"), pod("q", far)).await.expect(403);
    let why =
        "pods \"q\" is forbidden: cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000";
    assert_eq!(refused["message"], why);
}

#[tokio::test]
async fn device_selectors_compile() {
    let s = TestServer::start().await;
    let class = |text: &str| json!({ "metadata": { "name": "c" }, "spec": { "selectors": [{ "cel": { "expression": text } }] } });
    let classes = "/apis/resource.k8s.io/v1/deviceclasses";
    let message = s.post(classes, class("a/b/c")).await.message(422);
    let wanted = "spec.selectors[0].cel.expression: Invalid value: \"a/b/c\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'a' (in container '')";
    assert!(message.contains(wanted), "{message}");
    s.post(classes, class("device.driver == 'd'")).await.expect(201);
}

#[tokio::test]
async fn a_claim_is_expanded_if_its_class_allows_it() {
    let s = TestServer::start().await;
    for (name, grows) in [("grows", true), ("fixed", false)] {
        let class = json!({ "metadata": { "name": name }, "provisioner": "p", "allowVolumeExpansion": grows });
        s.post("/apis/storage.k8s.io/v1/storageclasses", class).await.expect(201);
    }
    let claims = format!("{DEFAULT}/persistentvolumeclaims");
    let patch = async |name: &str, pointer: &str, body: Value| {
        s.patch(&format!("{claims}/{name}{pointer}"), "merge", body).await
    };
    let size = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    for class in ["grows", "fixed"] {
        let claim = json!({ "metadata": { "name": class }, "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                            "volumeName": "v", "resources": { "requests": { "storage": "1Gi" } } } });
        s.post(&claims, claim).await.expect(201);
        let message = patch(class, "", size("2Gi")).await.message(422);
        assert!(message.contains("for bound claims"), "{message}");
        patch(class, "/status", json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } }))
            .await
            .expect(200);
    }
    s.get("/apis/storage.k8s.io/v1/storageclasses").await.expect(200);
    patch("grows", "", size("2Gi")).await.expect(200);
    let message = patch("fixed", "", size("2Gi")).await.message(403);
    assert!(message.contains("the storageclass that provisions the pvc must support resize"), "{message}");
}

#[tokio::test]
async fn no_user_requests_a_certificate_of_the_masters() {
    let s = TestServer::start().await;
    let request = |group: &str, signer: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({ "metadata": { "generateName": "r" }, "spec": { "signerName": signer, "usages": ["client auth"],
                "request": base64::engine::general_purpose::STANDARD.encode(pem) } })
    };
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    s.post(path, request("dev", "kubernetes.io/kube-apiserver-client")).await.expect(201);
    s.post(path, request("system:masters", "example.com/own")).await.expect(201);
    let message = s.post(path, request("system:masters", "kubernetes.io/kube-apiserver-client")).await.message(403);
    assert!(message.ends_with("signer with system:masters group is not allowed"), "{message}");
}
