//! Registry credentials from a pod's pull secrets: selects those that match an image. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_api::k8s_openapi::api::core::v1::Secret;
use corten_cri::v1 as cri;
use serde_json::Value;

/// Returns the credentials that match the image, the most specific first.
pub fn lookup(secrets: &[Secret], image: &str) -> Vec<cri::AuthConfig> {
    let repository = repository(image);
    let mut fitting: Vec<(usize, cri::AuthConfig)> = secrets
        .iter()
        .flat_map(entries)
        .filter(|(registry, _)| fits(registry, &repository))
        .map(|(registry, auth)| (registry.len(), auth))
        .collect();
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    fitting.into_iter().map(|(_, auth)| auth).collect()
}

/// Returns `registry/path` of an image, with Docker Hub's names spelled out.
fn repository(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let (head, rest) = name.split_once('/').unwrap_or(("", name));
    let full = if head.contains(['.', ':']) || head == "localhost" {
        format!("{head}/{rest}")
    } else if head.is_empty() {
        format!("docker.io/library/{rest}")
    } else {
        format!("docker.io/{name}")
    };
    let tag = full.rfind(':').filter(|at| !full[*at..].contains('/'));
    tag.map_or(full.clone(), |at| full[..at].to_owned())
}

/// Reports whether a registry entry matches. It may be a URL, a host, or a host with a path; a host may have `*` in its
/// labels.
fn fits(entry: &str, repository: &str) -> bool {
    let entry = entry.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
    let entry = entry.trim_end_matches("/v1").trim_end_matches("/v2");
    let entry = if entry.starts_with("index.docker.io") {
        entry.replacen("index.docker.io", "docker.io", 1)
    } else {
        entry.to_owned()
    };
    let (entry_host, entry_path) = entry.split_once('/').unwrap_or((&entry, ""));
    let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
    let hosts_fit = entry_host.split('.').count() == host.split('.').count()
        && entry_host.split('.').zip(host.split('.')).all(|(pattern, label)| pattern == label || pattern == "*");
    hosts_fit && path.starts_with(entry_path)
}

fn entries(secret: &Secret) -> Vec<(String, cri::AuthConfig)> {
    let data = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        serde_json::from_slice::<Value>(&bytes.0).ok()
    };
    let auths = match data(".dockerconfigjson") {
        Some(mut config) => config.get_mut("auths").map(Value::take),
        None => data(".dockercfg"),
    };
    let Some(Value::Object(auths)) = auths else { return Vec::new() };
    auths.into_iter().map(|(registry, entry)| (registry.clone(), auth(&entry))).collect()
}

fn auth(entry: &Value) -> cri::AuthConfig {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let joined = STANDARD.decode(text("auth")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let (username, password) = match joined.as_deref().and_then(|joined| joined.split_once(':')) {
        Some((username, password)) => (username.to_owned(), password.to_owned()),
        None => (text("username"), text("password")),
    };
    cri::AuthConfig { username, password, identity_token: text("identitytoken"), ..cri::AuthConfig::default() }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_fit_by_registry_and_path() {
        let config = json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:secret")},
            "reg.example.com": {"username": "wide", "password": "w"},
            "reg.example.com/team": {"username": "narrow", "password": "n"},
            "*.cloud.io": {"username": "star", "password": "s"},
        }});
        let secret = Secret::from_value(json!({
            "data": {".dockerconfigjson": STANDARD.encode(config.to_string())},
        }))
        .unwrap();
        let users = |image: &str| -> Vec<String> {
            lookup(std::slice::from_ref(&secret), image).into_iter().map(|auth| auth.username).collect()
        };
        assert_eq!(users("busybox:1"), ["hub"]);
        assert_eq!(users("org/app"), ["hub"]);
        assert_eq!(users("reg.example.com/team/app:2"), ["narrow", "wide"]);
        assert_eq!(users("reg.example.com/other@sha256:00"), ["wide"]);
        assert_eq!(users("eu.cloud.io/x"), ["star"]);
        assert!(users("localhost:5000/x").is_empty());
    }
}
