//! Requests of nodes for names of their own and of others.

use base64::Engine;
use corten_meta::Value;
use serde_json::json;

use super::*;
use crate::certificates::request::tests::request;
use crate::cidr::Cidr;
use crate::tests::model::{Model, converges};

pub fn serving() -> KubeletServing {
    KubeletServing {
        cluster_domain: "cluster.local".to_owned(),
        reserved_ranges: ["10.96.0.0/12", "10.244.0.0/16"].map(|range| Cidr::parse(range).unwrap()).to_vec(),
        reserved_addresses: vec!["10.9.9.9".parse().unwrap()],
        reserved_names: vec!["api.example.com".to_owned()],
    }
}

pub fn node(name: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": addresses}})
}

struct Asked<'a> {
    user: &'a str,
    groups: &'a [&'a str],
    common_name: &'a str,
    organization: &'a str,
    names: &'a [&'a str],
    usages: &'a [&'a str],
}

const OWN: Asked<'_> = Asked {
    user: "system:node:n1",
    groups: &["system:nodes"],
    common_name: "system:node:n1",
    organization: "system:nodes",
    names: &["n1", "10.0.0.1"],
    usages: &["digital signature", "server auth"],
};

fn object(asked: &Asked<'_>) -> Value {
    let pem = request(asked.common_name, asked.organization, asked.names);
    let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "r"},
        "spec": {
            "request": encoded, "signerName": KUBELET_SERVING, "usages": asked.usages, "username": asked.user,
            "groups": asked.groups,
        },
    })
}

/// Returns a cluster of two nodes with recorded names, and one request.
fn model(asked: &Asked<'_>) -> Model {
    let mut model = Model::default();
    // The addresses that a node reports now do not count, only the recorded ones.
    for (name, pinned) in [("n1", "n1,10.0.0.1"), ("n2", "10.0.0.2")] {
        let mut node = node(name, &["10.0.0.7", "kubernetes"]);
        node["metadata"]["annotations"] = json!({pin::PIN: pinned});
        model.put(node);
    }
    model.put(object(asked));
    model
}

fn decided(mut model: Model) -> (bool, Vec<String>) {
    let approver = ServingApprover { serving: serving() };
    converges(&approver, &mut model, "", "r");
    let conditions = model.value("CertificateSigningRequest", "", "r")["status"]["conditions"].clone();
    (conditions[0]["type"] == "Approved", model.events)
}

#[test]
fn a_node_gets_its_own_names() {
    for names in [&["n1", "10.0.0.1"][..], &["N1"], &["10.0.0.1"]] {
        let (is_approved, events) = decided(model(&Asked { names, ..OWN }));
        assert!(is_approved && events.is_empty(), "{names:?} {events:?}");
    }
}

#[test]
fn a_request_for_more_stays_pending_and_says_why() {
    let pending = "the subject is not the requester";
    for (asked, why) in [
        (
            Asked { names: &["10.0.0.7"], ..OWN },
            "10.0.0.7 is not a name that the node had when it joined (n1,10.0.0.1)",
        ),
        (Asked { names: &["n1", "10.0.0.2"], ..OWN }, "10.0.0.2 is not a name"),
        (Asked { names: &["n2"], ..OWN }, "n2 is the name of another node"),
        (Asked { names: &["kubernetes"], ..OWN }, "kubernetes is never signed for a kubelet"),
        (Asked { names: &["n1", "10.9.9.9"], ..OWN }, "10.9.9.9 is never signed for a kubelet"),
        (Asked { names: &[], ..OWN }, "DNS or IP subjectAltName is required"),
        (Asked { common_name: "system:node:n2", ..OWN }, pending),
        (Asked { groups: &["system:authenticated"], ..OWN }, pending),
        (Asked { organization: "system:masters", ..OWN }, "subject organization is not system:nodes"),
        (Asked { usages: &["client auth"], ..OWN }, "usages did not match"),
    ] {
        let (is_approved, events) = decided(model(&asked));
        assert!(!is_approved, "{why}");
        assert!(events.len() >= 2 && events.iter().all(|event| event.contains(why)), "{why}: {events:?}");
    }
}

#[test]
fn nothing_is_decided_before_the_names_are_recorded() {
    let mut model = Model::default();
    model.put(node("n1", &["10.0.0.1"]));
    model.put(object(&OWN));
    assert_eq!(decided(model), (false, Vec::new()));
}

#[test]
fn an_answered_request_is_left_alone() {
    let mut model = model(&OWN);
    let mut denied = model.value("CertificateSigningRequest", "", "r");
    denied["status"]["conditions"] = json!([{"type": "Denied", "status": "True"}]);
    model.put(denied);
    assert_eq!(decided(model), (false, Vec::new()));
}
