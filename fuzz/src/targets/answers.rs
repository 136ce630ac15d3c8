//! Answers of servers that the control plane calls: webhooks, aggregated API servers, kubelets.

use serde_json::{Value, json};

use super::{json, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "admission-answer", seeds: admission_seeds, run: admission },
    Target { name: "conversion-answer", seeds: conversion_seeds, run: conversion },
    Target { name: "review-status", seeds: review_seeds, run: review_status },
    Target { name: "aggregated-document", seeds: document_seeds, run: aggregated_document },
    Target { name: "metrics", seeds: metrics_seeds, run: metrics },
    Target { name: "xml-document", seeds: xml_seeds, run: xml },
];

fn xml_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "<?xml version=\"1.0\"?><R xmlns=\"x\"><set><item><id>a&amp;b</id></item><item/></set><t><![CDATA[<&>]]></t></R>",
        "<E><!-- c --><Code>&#65;&#x42;</Code></E>",
    ])
}

fn xml(input: &[u8]) {
    use corten_outbound::xml;
    fn write(element: &xml::Element) -> String {
        let children: String = element.children.iter().map(write).collect();
        format!("<{0}>{1}{children}</{0}>", element.name, xml::escape(&element.text))
    }
    let Some(root) = std::str::from_utf8(input).ok().and_then(|text| xml::parse(text).ok()) else { return };
    let written = write(&root.children[0]);
    assert_eq!(xml::parse(&written).map(|again| again.children), Ok(root.children), "{written}");
}

fn admission_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W10=","warnings":["w"],"auditAnnotations":{"a":"b"}}}"#,
        r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u","allowed":false,"status":{"code":403,"reason":"Forbidden","message":"m","details":{"causes":[]}}}}"#,
    ])
}

fn admission(input: &[u8]) {
    let _ = corten_admission::fuzz::admission_answer(input, "v1");
    let _ = corten_admission::fuzz::admission_answer(input, "v1beta1");
    if let Some(review) = json(input) {
        let code = corten_admission::fuzz::denial(&review["response"]["status"]);
        assert!(code >= 400, "a denial is an error");
    }
}

fn original() -> Value {
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "a", "namespace": "n", "uid": "x", "labels": {"a": "b"}}})
}

fn conversion_seeds() -> Vec<Vec<u8>> {
    let mut converted = original();
    converted["apiVersion"] = json!("g/v2");
    let response = json!({"uid": "u", "result": {"status": "Success"}, "convertedObjects": [converted]});
    let review = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1", "response": response});
    vec![review.to_string().into_bytes()]
}

fn conversion(input: &[u8]) {
    let original = original();
    let Ok(objects) = corten_apiserver::fuzz::converted(input, &original, "g/v2") else { return };
    for object in objects {
        for field in ["name", "namespace", "uid"] {
            assert_eq!(object["metadata"][field], original["metadata"][field], "a webhook makes no other object");
        }
    }
}

fn review_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"allowed":true,"denied":false,"reason":"r","evaluationError":"e"}"#,
        r#"{"authenticated":true,"user":{"username":"u","uid":"1","groups":["g"],"extra":{"k":["v"]}},"audiences":["a"]}"#,
    ])
}

fn review_status(input: &[u8]) {
    let _ = json(input).as_ref().map(corten_apiserver::fuzz::review_status);
}

fn document_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"resources":[{"name":"a","singularName":"b","namespaced":true,"kind":"A","verbs":["get"],"shortNames":["c"]},{"name":"a/status","kind":"A","group":"h","version":"v2"}]}"#,
        r#"{"paths":{"/apis/g/v1/a":{"get":{}}},"definitions":{"d":{}}}"#,
    ])
}

fn aggregated_document(input: &[u8]) {
    let _ = json(input).as_ref().map(corten_apiserver::fuzz::aggregated);
}

fn metrics_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"items":[{"metadata":{"name":"a"},"timestamp":"2026-01-02T03:04:05Z","window":"10.5s","containers":[{"name":"c","usage":{"cpu":"12n","memory":"3Mi"}}]}]}"#,
        r#"{"items":[{"describedObject":{"name":"a"},"timestamp":"2026-01-02T03:04:05Z","windowSeconds":60,"value":"9223372036854775807m"},{"describedObject":{"name":"b"},"value":"5"}]}"#,
        r#"{"containers":[{"name":"c","cpu":{"usageNanoCores":5,"time":"2026-01-02T03:04:05Z"},"memory":{"workingSetBytes":7}}]}"#,
    ])
}

fn metrics(input: &[u8]) {
    let Some(value) = json(input) else { return };
    if let Some(replicas) = corten_controllers::fuzz::autoscaled(&value) {
        assert!((2..=10).contains(&replicas), "an autoscaler keeps its bounds");
    }
    let _ = corten_apiserver::fuzz::pod_usage(&value);
}
