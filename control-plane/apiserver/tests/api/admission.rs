//! Admission of CertificateSigningRequests.

use crate::server::TestServer;
use base64::Engine;
use serde_json::json;

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
