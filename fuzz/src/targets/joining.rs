//! Answers of a cluster that a joining machine does not trust yet, and files that users write for the binary.

use serde_json::Value;

use super::{joined, json, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "cluster-info", seeds: info_seeds, run: cluster_info },
    Target { name: "cluster-settings", seeds: settings_seeds, run: settings },
    Target { name: "registries", seeds: registry_seeds, run: registries },
    Target { name: "user-kubeconfig", seeds: kubeconfig_seeds, run: user_kubeconfig },
    Target { name: "listeners", seeds: listener_seeds, run: listeners },
];

const TOKEN: &str = "abcdef.0123456789abcdef";

/// Returns the object, and the kubeconfig in it.
fn info_seeds() -> Vec<Vec<u8>> {
    let object = r#"{"data":{"kubeconfig":"a: b","jws-kubeconfig-abcdef":"eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..c2lnbmVk"}}"#;
    let authority = base64_of(include_bytes!("../../seeds/certificate.der"));
    let pem = format!("-----BEGIN CERTIFICATE-----\n{authority}\n-----END CERTIFICATE-----\n");
    let data = base64_of(pem.as_bytes());
    let kubeconfig = format!(
        "clusters:\n- name: ''\n  cluster: {{server: 'https://10.0.0.1:6443', certificate-authority-data: {data}}}\n"
    );
    vec![joined(&[object, &kubeconfig])]
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn cluster_info(input: &[u8]) {
    let [object, kubeconfig] = parts::<2>(input);
    if let Some(info) = json(object) {
        assert!(corten::fuzz::cluster_info(&info, TOKEN).is_err(), "no client knows the token's secret");
    }
    if let Some(Ok(hash)) = text(kubeconfig).map(corten::fuzz::discovered) {
        assert_eq!(hash.len(), "sha256:".len() + 64);
    }
}

fn settings_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"clusterCidr":"10.244.0.0/16","serviceCidr":"10.96.0.0/12","clusterDomain":"cluster.local","networkBackend":"vxlan","loadBalancerPool":["192.0.2.1-192.0.2.9"],"dnsStubDomains":["a=b"],"networkPolicyHostEgress":true}"#,
    ])
}

fn settings(input: &[u8]) {
    let Some(Ok(written)) = text(input).map(corten::fuzz::settings) else { return };
    let again =
        corten::fuzz::settings(written["cluster"].as_str().unwrap_or_default()).expect("what was written is read");
    assert_eq!(again, written, "settings are written the same again");
}

fn registry_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "registries:\n- host: docker.io\n  mirrors: [mirror.local:5000]\n- {host: 'mirror.local:5000', plainHTTP: true, insecureSkipVerify: false, stallTimeoutSeconds: 30, username: u, password: p}\n",
    ])
}

/// Reads a configuration without the files that it names.
fn registries(input: &[u8]) {
    if !input.windows(b"caFile".len()).any(|word| word == b"caFile") {
        let _ = corten::fuzz::registries(input);
    }
}

fn kubeconfig_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"clusters":[{"name":"prod"},{"name":"corten"}],"contexts":[{"name":"prod"}],"users":null,"current-context":"corten"}"#,
    ])
}

fn user_kubeconfig(input: &[u8]) {
    let Some(user) = json(input) else { return };
    let merged = corten::fuzz::merged_kubeconfig(user);
    assert_eq!(corten::fuzz::merged_kubeconfig(merged.clone()), merged, "merging twice changes nothing");
    assert!(merged["clusters"].as_array().is_some_and(|list| list.last().is_some_and(Value::is_object)));
}

fn listener_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "   0: 0100007F:1538 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0",
        "   1: 00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 1",
    ])
}

fn listeners(input: &[u8]) {
    for line in text(input).into_iter().flat_map(str::lines) {
        let _ = corten::fuzz::listener(line);
    }
}
