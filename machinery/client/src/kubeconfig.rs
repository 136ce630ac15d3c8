//! Kubeconfig files: read, merged as `kubectl` merges them, changed and written back.
//!
//! The document is kept as it was read, so that fields unknown to this project (exec plugins, preferences, extensions)
//! survive a change. Credentials are certificates and tokens; exec plugins are not run.

use crate::{Error, HttpsConfig, Pem};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use corten_meta::codec::{decode_yaml, encode_yaml};
use serde_json::json;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A kubeconfig document and the directory that its relative paths start from.
#[derive(Debug, Clone, PartialEq)]
pub struct Kubeconfig {
    document: Value,
    directory: PathBuf,
}

impl Default for Kubeconfig {
    fn default() -> Kubeconfig {
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "",
            "clusters": [], "users": [], "contexts": [],
        });
        Kubeconfig { document, directory: PathBuf::from(".") }
    }
}

impl Kubeconfig {
    pub fn load(path: impl AsRef<Path>) -> Result<Kubeconfig, Error> {
        let path = path.as_ref();
        let text = std::fs::read(path).map_err(|e| Error::Config(format!("cannot read {}: {e}", path.display())))?;
        let mut config =
            Kubeconfig::parse(&text).map_err(|e| Error::Config(format!("error loading {}: {e}", path.display())))?;
        config.directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(config)
    }

    /// Parses a kubeconfig. An empty input is an empty configuration.
    pub fn parse(text: &[u8]) -> Result<Kubeconfig, Error> {
        if text.trim_ascii().is_empty() {
            return Ok(Kubeconfig::default());
        }
        let document = decode_yaml(text)?;
        if !document.is_object() {
            return Err(Error::Config("a kubeconfig must be a YAML mapping".into()));
        }
        Ok(Kubeconfig { document, ..Kubeconfig::default() })
    }

    /// Adds the entries of `other` that this document lacks: as with several files in `KUBECONFIG`, the first one wins.
    pub fn merge(&mut self, other: &Kubeconfig) {
        for list in ["clusters", "users", "contexts"] {
            for entry in entries(&other.document, list) {
                let name = entry_name(entry);
                if self.entry(list, name).is_none() {
                    self.put(list, name, entry.clone());
                }
            }
        }
        if self.current_context().is_empty() {
            self.set_current_context(other.current_context());
        }
    }

    pub fn current_context(&self) -> &str {
        self.document.get("current-context").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn set_current_context(&mut self, name: &str) {
        self.document["current-context"] = json!(name);
    }

    pub fn contexts(&self) -> Vec<&str> {
        entries(&self.document, "contexts").map(entry_name).collect()
    }

    /// Returns the namespace of a context; `default` if it has none.
    pub fn namespace(&self, context: Option<&str>) -> &str {
        let name = context.unwrap_or_else(|| self.current_context());
        let namespace = self.entry("contexts", name).and_then(|e| e.pointer("/context/namespace")?.as_str());
        namespace.filter(|n| !n.is_empty()).unwrap_or("default")
    }

    /// Adds or replaces a cluster.
    pub fn set_cluster(&mut self, name: &str, server: &str, ca: &[u8]) {
        let cluster = json!({"server": server, "certificate-authority-data": STANDARD.encode(ca)});
        self.put("clusters", name, json!({"name": name, "cluster": cluster}));
    }

    /// Adds or replaces a user with a client certificate.
    pub fn set_user_certificate(&mut self, name: &str, certificate: &[u8], key: &[u8]) {
        let user = json!({
            "client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key),
        });
        self.put("users", name, json!({"name": name, "user": user}));
    }

    /// Adds or replaces a user with a bearer token.
    pub fn set_user_token(&mut self, name: &str, token: &str) {
        self.put("users", name, json!({"name": name, "user": {"token": token}}));
    }

    /// Adds or replaces a context; an empty namespace is left out.
    pub fn set_context(&mut self, name: &str, cluster: &str, user: &str, namespace: &str) {
        let mut context = json!({"cluster": cluster, "user": user});
        if !namespace.is_empty() {
            context["namespace"] = json!(namespace);
        }
        self.put("contexts", name, json!({"name": name, "context": context}));
    }

    /// Removes the cluster, the user and the context of this name.
    pub fn remove(&mut self, name: &str) {
        for list in ["clusters", "users", "contexts"] {
            if let Some(items) = self.document.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|entry| entry_name(entry) != name);
            }
        }
        if self.current_context() == name {
            self.set_current_context("");
        }
    }

    pub fn to_yaml(&self) -> String {
        encode_yaml(&self.document)
    }

    /// Writes the file atomically, readable by its owner only.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let failed = |e: std::io::Error| Error::Config(format!("cannot write {}: {e}", path.display()));
        let text = self.to_yaml();
        if let Some(directory) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", uuid::Uuid::new_v4().simple()));
        let write = || {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|e| {
            let _ = std::fs::remove_file(&temporary);
            failed(e)
        })
    }

    /// Returns the connection to the cluster of a context, as its user.
    pub fn https_config(&self, context: Option<&str>) -> Result<HttpsConfig, Error> {
        let name = context.unwrap_or_else(|| self.current_context());
        let missing = |what: &str, name: &str| Error::Config(format!("{what} {name:?} does not exist"));
        let context = self.entry("contexts", name).ok_or_else(|| missing("context", name))?;
        let word = |pointer: &str| context.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let cluster = self.entry("clusters", word("/context/cluster"));
        let cluster = cluster.and_then(|e| e.get("cluster"));
        let cluster = cluster.ok_or_else(|| missing("cluster", word("/context/cluster")))?;
        let no_user = json!({});
        let user = self.entry("users", word("/context/user")).and_then(|e| e.get("user")).unwrap_or(&no_user);
        let text = |from: &Value, key: &str| from.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(HttpsConfig {
            server: text(cluster, "server").unwrap_or_default(),
            ca: self.pem(cluster, "certificate-authority")?,
            client_certificate: self.pem(user, "client-certificate")?,
            client_key: self.pem(user, "client-key")?,
            token: text(user, "token").filter(|t| !t.is_empty()),
            token_file: text(user, "tokenFile").filter(|t| !t.is_empty()).map(|path| self.directory.join(path)),
            tls_server_name: text(cluster, "tls-server-name").filter(|t| !t.is_empty()),
            insecure_skip_tls_verify: cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    /// Returns `<key>-data` decoded from base64, or else the file `<key>`.
    fn pem(&self, from: &Value, key: &str) -> Result<Option<Pem>, Error> {
        let text = |key: &str| from.get(key).and_then(Value::as_str).filter(|t| !t.is_empty());
        if let Some(data) = text(&format!("{key}-data")) {
            let pem = STANDARD.decode(data).map_err(|e| Error::Config(format!("{key}-data: {e}")))?;
            return Ok(Some(Pem::Text(pem)));
        }
        Ok(text(key).map(|path| Pem::File(self.directory.join(path))))
    }

    fn entry(&self, list: &str, name: &str) -> Option<&Value> {
        entries(&self.document, list).find(|entry| entry_name(entry) == name)
    }

    fn put(&mut self, list: &str, name: &str, entry: Value) {
        if !self.document.get(list).is_some_and(Value::is_array) {
            self.document[list] = json!([]);
        }
        let Some(items) = self.document[list].as_array_mut() else { return };
        match items.iter_mut().find(|item| entry_name(item) == name) {
            Some(item) => *item = entry,
            None => items.push(entry),
        }
    }
}

fn entries<'a>(document: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    document.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn entry_name(entry: &Value) -> &str {
    entry.get("name").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
apiVersion: v1
kind: Config
current-context: dev
clusters:
- name: dev
  cluster: {server: 'https://10.0.0.1:6443', certificate-authority: pki/ca.crt}
users:
- name: me
  user:
    client-certificate-data: Y2VydA==
    client-key-data: a2V5
- name: plugin
  user: {exec: {command: get-token}}
contexts:
- name: dev
  context: {cluster: dev, user: me, namespace: team}
";

    #[test]
    fn describes_a_connection() {
        let mut config = Kubeconfig::parse(TEXT.as_bytes()).unwrap();
        config.directory = "/etc/kube".into();
        let https = config.https_config(None).unwrap();
        assert_eq!(https.server, "https://10.0.0.1:6443");
        assert_eq!(https.ca, Some(Pem::File("/etc/kube/pki/ca.crt".into())));
        assert_eq!(https.client_certificate, Some(Pem::Text(b"cert".to_vec())));
        assert_eq!(https.client_key, Some(Pem::Text(b"key".to_vec())));
        assert_eq!(config.namespace(None), "team");
        assert_eq!(config.https_config(Some("x")).err().unwrap().to_string(), "context \"x\" does not exist");
    }

    #[test]
    fn the_first_file_wins_and_unknown_fields_stay() {
        let mut config = Kubeconfig::default();
        config.set_cluster("dev", "https://other:6443", b"ca");
        config.merge(&Kubeconfig::parse(TEXT.as_bytes()).unwrap());
        assert_eq!(config.https_config(Some("dev")).unwrap().server, "https://other:6443");
        assert_eq!(config.current_context(), "dev");
        let again = Kubeconfig::parse(config.to_yaml().as_bytes()).unwrap();
        assert_eq!(again.document, config.document);
        assert!(again.to_yaml().contains("get-token"));
    }

    #[test]
    fn entries_are_replaced_and_removed() {
        let mut config = Kubeconfig::parse(TEXT.as_bytes()).unwrap();
        config.set_cluster("corten", "https://a:6443", b"ca");
        config.set_cluster("corten", "https://b:6443", b"ca");
        config.set_user_token("corten", "secret");
        config.set_context("corten", "corten", "corten", "");
        config.set_current_context("corten");
        let https = config.https_config(None).unwrap();
        assert_eq!((https.server.as_str(), https.token.as_deref()), ("https://b:6443", Some("secret")));
        assert_eq!(config.contexts(), ["dev", "corten"]);
        config.remove("corten");
        assert_eq!((config.contexts(), config.current_context()), (vec!["dev"], ""));
    }

    #[test]
    fn files_are_private_and_written_atomically() {
        use std::os::unix::fs::PermissionsExt;
        let directory = std::env::temp_dir().join(format!("kubeconfig-{}", uuid::Uuid::new_v4()));
        let path = directory.join("sub/config");
        let mut config = Kubeconfig::default();
        config.set_cluster("c", "https://c", b"ca");
        config.write(&path).unwrap();
        config.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Kubeconfig::load(&path).unwrap().document, config.document);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
