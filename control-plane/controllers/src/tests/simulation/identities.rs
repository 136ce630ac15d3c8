//! Identities: ServiceAccounts and their tokens, aggregated roles, bootstrap tokens, certificates.
//!
//! A Secret gets one token and keeps it, and is deleted only with its account; a request is signed at most once and
//! never without approval; a kubelet's request for names of the cluster is approved only by a user; an expired
//! bootstrap token is neither kept nor used for signatures.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, age, all, any, delete, now, touch};

const ACCOUNT: &str = "kubernetes.io/service-account.name";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

pub const WORLD: World = World {
    controllers: &[
        "serviceaccount-controller",
        "serviceaccount-token-controller",
        "legacy-serviceaccount-token-cleaner-controller",
        "root-ca-certificate-publisher-controller",
        "clusterrole-aggregation-controller",
        "bootstrap-signer-controller",
        "token-cleaner-controller",
        "certificatesigningrequest-approving-controller",
        "certificatesigningrequest-signing-controller",
        "certificatesigningrequest-cleaner-controller",
        "kubelet-serving-approving-controller",
    ],
    objects,
    happens,
    invariant,
    at_rest,
    ..World::USUAL
};

fn objects(_: &mut Random) -> Vec<Value> {
    fixture::objects(
        "ns default
         ns kube-public
         cm kube-public/cluster-info data.kubeconfig=\"{}\"
         clusterrole sum aggregationRule.clusterRoleSelectors=[{matchLabels: {part: \"yes\"}}] rules=[]
         node a status.addresses=[{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: kubernetes}]",
    )
}

/// The requests of a kubelet: for a client certificate, for its own names, and for one of the API server's.
static REQUEST: LazyLock<String> = LazyLock::new(|| encoded(&[]));
static SERVING: LazyLock<String> = LazyLock::new(|| encoded(&["a", "10.0.0.1"]));
static STOLEN: LazyLock<String> = LazyLock::new(|| encoded(&["a", "kubernetes"]));

fn encoded(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:a");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    let key = rcgen::KeyPair::generate().expect("a key");
    BASE64.encode(params.serialize_request(&key).expect("a request").pem().expect("as text"))
}

fn happens(server: &Server, random: &mut Random) {
    let new = match random.next(16) {
        0 | 1 => json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": "default", "name": format!("robot-{}", random.next(3))}}),
        2..5 => token_secret(random),
        5 => bootstrap_token(random),
        6 => role(random),
        7 | 8 => request(random),
        9 => return answer(server, random),
        10 | 11 => {
            let kinds = ["ServiceAccount", "Secret", "ClusterRole", "ConfigMap"];
            let kind = kinds[random.next(kinds.len())];
            let spared = |one: &Value| ["sum", "cluster-info"].contains(&corten_meta::name(one));
            if let Some(object) = any(server, random, kind).filter(|one| !spared(one)) {
                delete(server, &object, None);
            }
            return;
        }
        _ => {
            let kinds = ["ServiceAccount", "Secret", "ClusterRole", "ConfigMap", "CertificateSigningRequest"];
            let kind = kinds[random.next(kinds.len())];
            return touch(server, random, kind);
        }
    };
    let _ = server.ask("user", Method::POST, &collection(&new), &new);
}

fn token_secret(random: &mut Random) -> Value {
    let (number, account) = (random.next(4), random.next(3));
    let kind = "type=kubernetes.io/service-account-token";
    fixture::object(&format!("secret token-{number} {kind} annotation.{ACCOUNT}=robot-{account}"))
}

fn bootstrap_token(random: &mut Random) -> Value {
    let id = ["abcdef", "ghijkl"][random.next(2)];
    let after = jiff::SignedDuration::from_secs(i64::try_from(random.next(200)).unwrap_or(0));
    let expires = corten_meta::time::rfc3339(now() + after);
    let data = [("token-id", id), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
    let mut data: serde_json::Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), json!(BASE64.encode(value)))).collect();
    if random.chance(70) {
        data.insert("expiration".to_owned(), json!(BASE64.encode(expires)));
    }
    json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"namespace": "kube-system", "name": format!("bootstrap-token-{id}")}, "data": data})
}

fn role(random: &mut Random) -> Value {
    let name = format!("part-{}", random.next(4));
    let labels = if random.chance(80) { json!({"part": "yes"}) } else { json!({}) };
    let rules = json!([{"apiGroups": [""], "resources": [format!("things-{}", random.next(3))], "verbs": ["get"]}]);
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels}, "rules": rules})
}

fn request(random: &mut Random) -> Value {
    let signers =
        ["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kube-apiserver-client", "example.com/s"];
    let user = ["system:node:a", "somebody"][random.next(2)];
    let usages = [json!(["digital signature", "client auth"]), json!(["server auth"])][random.next(2)].clone();
    let spec = json!({"request": *REQUEST, "signerName": signers[random.next(3)], "usages": usages, "username": user});
    let spec = if random.chance(30) { serving_spec(random, user) } else { spec };
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": format!("csr-{}", random.next(30))}, "spec": spec})
}

fn serving_spec(random: &mut Random, user: &str) -> Value {
    let request = if random.chance(50) { &*SERVING } else { &*STOLEN };
    json!({"request": request, "signerName": KUBELET_SERVING, "usages": ["digital signature", "server auth"],
        "username": user, "groups": ["system:nodes"]})
}

/// Approves or denies a request, as a user.
fn answer(server: &Server, random: &mut Random) {
    let Some(mut request) = any(server, random, "CertificateSigningRequest") else { return };
    if request["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty()) {
        return;
    }
    let kind = ["Approved", "Denied"][random.next(2)];
    request["status"]["conditions"] = json!([{"type": kind, "status": "True", "reason": "ByHand", "message": "",
        "lastUpdateTime": corten_meta::time::rfc3339(now()), "lastTransitionTime": corten_meta::time::rfc3339(now())}]);
    let _ = server.ask("user", Method::PUT, &format!("{}/approval", path_of(&request)), &request);
}

fn has(request: &Value, condition: &str) -> bool {
    request["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == condition))
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| match (write.kind, write.who) {
        (_, "user") => Ok(()),
        ("Secret", "kube-controller-manager") => check_secret(write),
        ("CertificateSigningRequest", _) => check_request(write),
        _ => Ok(()),
    })
}

fn check_secret(write: &Write<'_>) -> Result<(), String> {
    let Some(old) = &write.old else { return Err("it made a Secret".to_owned()) };
    let Some(new) = &write.new else {
        let account = old["metadata"]["annotations"][ACCOUNT].as_str().unwrap_or_default();
        let named = write.after.find("ServiceAccount", corten_meta::namespace(old), account);
        let uid = old["metadata"]["annotations"][ACCOUNT_UID].as_str().unwrap_or_default();
        return match named {
            // An account that was created a moment ago may not be in any cache.
            Some(account) if (uid.is_empty() || account["metadata"]["uid"] == uid) && age(&account) > SETTLED => {
                Err("it went while its account lives".to_owned())
            }
            _ => Ok(()),
        };
    };
    let (before, after) = (&old["data"]["token"], &new["data"]["token"]);
    if !before.is_null() && before != after {
        return Err("it had a token and got another".to_owned());
    }
    Ok(())
}

fn check_request(write: &Write<'_>) -> Result<(), String> {
    let (Some(old), Some(new)) = (&write.old, &write.new) else { return Ok(()) };
    let (before, after) = (&old["status"]["certificate"], &new["status"]["certificate"]);
    if before != after && (!before.is_null() || has(old, "Denied") || !has(old, "Approved")) {
        return Err(format!("it was signed against its state: {}", old["status"]["conditions"]));
    }
    if has(new, "Approved") && !has(old, "Approved") {
        if has(old, "Denied") {
            return Err("it was approved against somebody's word".to_owned());
        }
        if new["spec"]["username"] != "system:node:a" {
            return Err("it was approved for one who may not have it".to_owned());
        }
        if new["spec"]["request"] == *STOLEN {
            return Err("it was approved for a name of the API server".to_owned());
        }
    }
    Ok(())
}

fn at_rest(server: &Server) -> Result<(), String> {
    let there = |kind: &str, namespace: &str, name: &str| server.state().api.model.find(kind, namespace, name);
    for namespace in ["default", "kube-system", "kube-public"] {
        if there("ServiceAccount", namespace, "default").is_none()
            || there("ConfigMap", namespace, "kube-root-ca.crt").is_none()
        {
            return Err(format!("{namespace} lacks what every namespace has"));
        }
    }
    for secret in all(server, "Secret") {
        let name = corten_meta::name(&secret);
        if secret["type"] == "kubernetes.io/service-account-token" {
            let account = secret["metadata"]["annotations"][ACCOUNT].as_str().unwrap_or_default();
            let account = there("ServiceAccount", "default", account).ok_or(format!("{name} is of nobody"))?;
            if secret["data"]["token"].is_null()
                || secret["metadata"]["annotations"][ACCOUNT_UID] != account["metadata"]["uid"]
            {
                return Err(format!("{name} has no token of its account: {secret}"));
            }
        }
    }
    signed_for_the_living(server)?;
    let parts = all(server, "ClusterRole").into_iter().filter(|one| one["metadata"]["labels"]["part"] == "yes");
    let mut rules: Vec<Value> = Vec::new();
    for rule in parts.flat_map(|part| part["rules"].as_array().cloned().unwrap_or_default()) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    let sum = there("ClusterRole", "", "sum").ok_or("the sum is gone")?;
    if sum["rules"].as_array().cloned().unwrap_or_default() != rules {
        return Err(format!("{} is not {rules:?}", sum["rules"]));
    }
    all(server, "CertificateSigningRequest").iter().try_for_each(answered)
}

/// Checks that no expired token is left, and that each remaining one has a signature.
fn signed_for_the_living(server: &Server) -> Result<(), String> {
    let info = server.state().api.model.value("ConfigMap", "kube-public", "cluster-info");
    let signed = info["data"].as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("jws-kubeconfig-"));
    let mut signed: Vec<String> = signed.map(|(key, _)| key.replace("jws-kubeconfig-", "bootstrap-token-")).collect();
    let tokens = all(server, "Secret").into_iter().filter(|one| one["type"] == "bootstrap.kubernetes.io/token");
    let mut names: Vec<String> = tokens.map(|one| corten_meta::name(&one).to_owned()).collect();
    signed.sort_unstable();
    names.sort_unstable();
    if signed == names { Ok(()) } else { Err(format!("signed by {signed:?}, there are {names:?}")) }
}

/// Checks the end of every request: a certificate, a failure, or nothing if another component answers.
fn answered(request: &Value) -> Result<(), String> {
    if request["spec"]["signerName"] == KUBELET_SERVING {
        return serving_answered(request);
    }
    let kubelet = request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet";
    let ours = kubelet || request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client";
    let fitting = request["spec"]["usages"] == json!(["digital signature", "client auth"]);
    let named = request["spec"]["username"] == "system:node:a";
    if kubelet && fitting && named && !has(request, "Approved") && !has(request, "Denied") {
        return Err(format!("nobody approved it: {request}"));
    }
    let signed = !request["status"]["certificate"].is_null();
    if signed != (ours && fitting && has(request, "Approved")) {
        return Err(format!("it is signed or not, wrongly: {request}"));
    }
    Ok(())
}

fn serving_answered(request: &Value) -> Result<(), String> {
    let own = request["spec"]["request"] == *SERVING && request["spec"]["username"] == "system:node:a";
    if own && !has(request, "Approved") && !has(request, "Denied") {
        return Err(format!("nobody approved it: {request}"));
    }
    let signed = !request["status"]["certificate"].is_null();
    if signed != (has(request, "Approved") && request["spec"]["request"] == *SERVING) {
        return Err(format!("it is signed or not, wrongly: {request}"));
    }
    Ok(())
}

#[test]
fn a_secret_has_one_token_a_request_one_answer() {
    play(&WORLD);
}
