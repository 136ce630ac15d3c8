//! The kubeconfig files that the binary writes: one per component beside the certificates, and the context `corten`
//! in the user's own file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::STANDARD};
use corten_meta::decode_yaml;
use serde_json::{Value, json};

use crate::pki::{Identity, write_private};

/// The name of cluster, user and context in the user's file.
pub const NAME: &str = "corten";

/// Returns a kubeconfig with one cluster, one user and one context.
pub fn single(server: &str, authority: &str, identity: &Identity) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(authority)}}],
        "users": [{"name": NAME, "user": {
            "client-certificate-data": STANDARD.encode(&identity.certificate),
            "client-key-data": STANDARD.encode(&identity.key),
        }}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    })
}

/// Returns a kubeconfig with a cluster and no user: the content of `cluster-info`.
pub fn cluster_only(server: &str, authority: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(authority)}}],
        "users": [],
        "contexts": [],
        "current-context": "",
    })
}

/// Returns a kubeconfig whose CA and user are files, which may change: the CA, and certificate and key in one.
pub fn by_files(server: &str, authority: &Path, identity: &Path) -> Value {
    let mut config = single(server, "", &Identity { certificate: String::new(), key: String::new() });
    config["clusters"][0]["cluster"] = json!({"server": server, "certificate-authority": authority});
    config["users"][0]["user"] = json!({"client-certificate": identity, "client-key": identity});
    config
}

/// Writes a kubeconfig that only its owner can read.
pub fn write(path: &Path, config: &Value) -> Result<()> {
    write_private(path, corten_meta::codec::encode_yaml(config).as_bytes())
}

/// Returns the user's kubeconfig: the flag, else the first file of $KUBECONFIG, else ~/.kube/config.
pub fn user_file(flag: Option<&Path>) -> Option<PathBuf> {
    if let Some(path) = flag {
        return Some(path.to_owned());
    }
    if let Some(list) = std::env::var_os("KUBECONFIG")
        && let Some(first) = std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty())
    {
        return Some(first);
    }
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"))
}

/// Merges the context into the user's file, and makes it the current one.
pub fn merge(path: &Path, config: &Value) -> Result<()> {
    let merged = merged(read(path)?, config);
    write(path, &merged)
}

/// Replaces the context in the user's file, if it is still there and of this cluster; the current context stays.
pub fn refresh(path: &Path, config: &Value) -> Result<()> {
    let before = read(path)?;
    let find = |config: &Value, list: &str| {
        let mut entries = config.get(list).and_then(Value::as_array).into_iter().flatten();
        entries.find(|entry| entry["name"] == NAME).cloned()
    };
    let server = |config: &Value| find(config, "clusters").map(|entry| entry["cluster"]["server"].clone());
    if server(&before).is_none() || server(&before) != server(config) {
        return Ok(());
    }
    let current = before.get("current-context").cloned();
    let mut after = merged(before.clone(), config);
    match current {
        Some(current) => after["current-context"] = current,
        None => drop(after.as_object_mut().and_then(|object| object.remove("current-context"))),
    }
    if after != before { write(path, &after) } else { Ok(()) }
}

/// Removes the context from the user's file; a file without it is not changed.
pub fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let before = read(path)?;
    let after = without(before.clone());
    if after != before { write(path, &after) } else { Ok(()) }
}

/// Returns the URL of the API server in a kubeconfig of ours.
pub fn server(path: &Path) -> Result<String> {
    let config = read(path)?;
    let server = config.pointer("/clusters/0/cluster/server").and_then(Value::as_str);
    Ok(server.with_context(|| format!("{} names no server", path.display()))?.to_owned())
}

/// Returns the address of that server, if the kubeconfig has an IP address.
pub fn server_address(path: &Path) -> Option<IpAddr> {
    let server: http::Uri = server(path).ok()?.parse().ok()?;
    server.host()?.trim_matches(['[', ']']).parse().ok()
}

/// Reports whether a kubeconfig holds the CA itself.
pub fn holds_authority(path: &Path) -> Result<bool> {
    Ok(read(path)?.pointer("/clusters/0/cluster/certificate-authority-data").is_some())
}

/// Returns the CA of a kubeconfig, in PEM.
pub fn authority(path: &Path) -> Result<String> {
    let config = read(path)?;
    if let Some(file) = config.pointer("/clusters/0/cluster/certificate-authority").and_then(Value::as_str) {
        let file = path.parent().unwrap_or(Path::new("/")).join(file);
        return std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()));
    }
    let data = config.pointer("/clusters/0/cluster/certificate-authority-data").and_then(Value::as_str);
    let data = data.with_context(|| format!("{} holds no certificate authority", path.display()))?;
    let pem = STANDARD.decode(data).with_context(|| format!("{} is damaged", path.display()))?;
    String::from_utf8(pem).with_context(|| format!("{} is damaged", path.display()))
}

/// Returns the client certificate and key of a kubeconfig, in PEM. Both may be in one file, which is then the
/// certificate.
pub fn identity(path: &Path) -> Result<Identity> {
    let config = read(path)?;
    let user = &config["users"][0]["user"];
    let part = |file: &str, data: &str| -> Result<String> {
        if let Some(file) = user[file].as_str() {
            let file = path.parent().unwrap_or(Path::new("/")).join(file);
            return std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()));
        }
        let data = user[data].as_str().with_context(|| format!("{} holds no client certificate", path.display()))?;
        let pem = STANDARD.decode(data).with_context(|| format!("{} is damaged", path.display()))?;
        String::from_utf8(pem).with_context(|| format!("{} is damaged", path.display()))
    };
    let certificate = part("client-certificate", "client-certificate-data")?;
    let key = part("client-key", "client-key-data")?;
    let key = if certificate == key { String::new() } else { key };
    Ok(Identity { certificate, key })
}

/// Reads a kubeconfig; a missing file is an empty one.
pub fn read(path: &Path) -> Result<Value> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(json!({})),
        Ok(text) => decode_yaml(text.as_bytes()).with_context(|| format!("{} is not a kubeconfig", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(json!({})),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

pub fn merged(base: Value, config: &Value) -> Value {
    let mut result = without(base);
    if !result.is_object() {
        result = json!({});
    }
    for list in ["clusters", "users", "contexts"] {
        if !result[list].is_array() {
            result[list] = json!([]);
        }
        let ours = config[list].as_array().cloned().unwrap_or_default();
        if let Some(entries) = result[list].as_array_mut() {
            entries.extend(ours);
        }
    }
    for field in ["apiVersion", "kind", "current-context"] {
        result[field] = config[field].clone();
    }
    result
}

fn without(mut config: Value) -> Value {
    for list in ["clusters", "users", "contexts"] {
        if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| entry["name"] != NAME);
        }
    }
    if config.get("current-context").is_some_and(|current| current == NAME)
        && let Some(object) = config.as_object_mut()
    {
        object.remove("current-context");
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Value {
        single("https://127.0.0.1:6443", "CA", &Identity { certificate: "C".into(), key: "K".into() })
    }

    #[test]
    fn merging_keeps_the_users_own_contexts() {
        let base = json!({"clusters": [{"name": "prod"}], "contexts": [{"name": "prod"}], "current-context": "prod"});
        let once = merged(base, &ours());
        assert_eq!(once["clusters"][0]["name"], "prod");
        assert_eq!(once["clusters"][1]["name"], NAME);
        assert_eq!(once["current-context"], NAME);
        assert_eq!(merged(once.clone(), &ours()), once, "merging twice changes nothing");
    }

    #[test]
    fn removing_takes_out_what_merging_put_in() {
        let base = json!({"clusters": [{"name": "prod"}], "contexts": [{"name": "prod"}], "users": [{"name": "me"}]});
        let after = without(merged(base.clone(), &ours()));
        for list in ["clusters", "contexts", "users"] {
            assert_eq!(after[list], base[list], "{list}");
        }
        assert!(after.get("current-context").is_none());
    }

    #[test]
    fn a_context_is_refreshed_where_it_is_and_is_of_this_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        refresh(&path, &ours()).unwrap();
        assert!(!path.exists());
        let mut chosen = merged(json!({"contexts": [{"name": "prod"}]}), &ours());
        chosen["current-context"] = json!("prod");
        write(&path, &chosen).unwrap();
        let identity = Identity { certificate: "D".into(), key: "L".into() };
        refresh(&path, &single("https://127.0.0.1:6443", "CA", &identity)).unwrap();
        let after = read(&path).unwrap();
        assert_eq!(after["current-context"], "prod");
        assert_eq!(after["users"][0]["user"]["client-certificate-data"], STANDARD.encode("D"));
        refresh(&path, &single("https://10.0.0.9:6443", "CA", &Identity { certificate: "E".into(), key: "M".into() }))
            .unwrap();
        assert_eq!(read(&path).unwrap(), after, "another cluster's context is left alone");
    }

    #[test]
    fn files_survive_the_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/config");
        merge(&path, &ours()).unwrap();
        merge(&path, &ours()).unwrap();
        assert_eq!(read(&path).unwrap()["contexts"].as_array().unwrap().len(), 1);
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap()["contexts"].as_array().unwrap().len(), 0);
    }
}
