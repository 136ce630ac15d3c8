//! Reads the facts: files of this machine, the flags of the running server, answers to probes, and objects.
//!
//! Nothing of the cluster is changed: requests that would change something are dry runs.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use corten_client::{Client, HttpsConfig};
use corten_meta::{Value, decode_yaml};
use http::{Method, Request};
use serde_json::json;

use super::facts::{Facts, FileFact, NodeFact, Objects, Probes};
use super::{etcd, tls};
use crate::cli::{self, DirectoryFlags};
use crate::components::audit::DEFAULT_POLICY;
use crate::directories::Directories;
use crate::{instance, kubeconfig};

/// The directory of CNI configurations.
const CNI: &str = "/etc/cni/net.d";
/// Paths that are requested without a credential.
const ANONYMOUS: [&str; 4] = ["/api/v1/secrets", "/apis/apps/v1/deployments", "/healthz", "/version"];
/// The least length of a value: shorter ones may be found by accident.
const LEAST_SECRET: usize = 16;

pub async fn facts(directories: &DirectoryFlags) -> Result<Facts> {
    let directories = Directories::of(directories);
    let Some(pid) = instance::running(&directories)? else { bail!("corten is not running; start it by `corten up`") };
    let flags = instance::flags(pid)?.context("the running process is no `corten server`; audit it there")?;
    let admin = directories.kubeconfig("admin");
    let client = Client::from_kubeconfig(&admin, None).context("the administrator's kubeconfig cannot be used")?;
    let server = kubeconfig::server(&admin)?;
    let objects = objects(&client).await?;
    let tables = corten_nftables::Socket::open().and_then(|mut socket| socket.tables());
    Ok(Facts {
        files: files(&directories, &flags),
        listening: listening(),
        nodes: nodes(&client).await?,
        etcd: etcd::fact(&directories).await?,
        probes: probes(&client, &server).await?,
        audit_policy: Some(document(flags.audit.audit_policy_file.as_deref(), DEFAULT_POLICY)?),
        encryption: flags
            .access
            .encryption_provider_config
            .as_deref()
            .map(|path| document(Some(path), ""))
            .transpose()?,
        has_plain_secret: has_plain_secret(&directories, &objects.secrets),
        tables: tables.unwrap_or_default().into_iter().map(|table| table.name).collect(),
        objects,
        flags,
        directories,
    })
}

/// Reads a configuration file; without one, a built-in document.
fn document(path: Option<&Path>, built_in: &str) -> Result<Value> {
    let text = match path {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => built_in.to_owned(),
    };
    decode_yaml(text.as_bytes()).map_err(|error| anyhow::anyhow!("a configuration cannot be read: {error}"))
}

/// Returns the files of the benchmark, and everything below their directories.
fn files(directories: &Directories, flags: &cli::Server) -> Vec<FileFact> {
    let mut all_directories = vec![directories.clone()];
    all_directories.extend(directories.further_nodes().iter().map(|name| directories.node(name)));
    let mut wanted: Vec<PathBuf> = vec![CNI.into()];
    for directories in &all_directories {
        wanted.extend(
            ["audit", "etcd", "kubeconfig", "pki", "store", "corten.log"].map(|name| directories.data.join(name)),
        );
    }
    wanted.extend(flags.kubelet.config.clone());
    wanted.extend(flags.audit.audit_log_path.clone());
    let mut facts = Vec::new();
    for directories in &all_directories {
        facts.extend(file(&directories.data));
        facts.extend(file(&directories.run));
    }
    wanted.iter().for_each(|path| walk(path, &mut facts));
    facts
}

fn walk(path: &Path, facts: &mut Vec<FileFact>) {
    let Some(fact) = file(path) else { return };
    if fact.is_directory {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.for_each(|entry| walk(&entry.path(), facts));
    }
    facts.push(fact);
}

fn file(path: &Path) -> Option<FileFact> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some(FileFact {
        path: path.to_owned(),
        is_directory: metadata.is_dir(),
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    })
}

/// Returns the addresses of all listening TCP sockets of this network namespace.
fn listening() -> Vec<SocketAddr> {
    let texts = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    texts.iter().flat_map(|text| text.lines().filter_map(listener)).collect()
}

/// Parses a line of /proc/net/tcp: address and port in hexadecimal, and the state, which is 0A for a listener.
pub fn listener(line: &str) -> Option<SocketAddr> {
    let mut words = line.split_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    (words.nth(1)? == "0A").then_some(())?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // The kernel writes words of 32 bits in the machine's byte order.
    let words = (0..address.len() / 8).map(|at| u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(address, port))
}

async fn nodes(client: &Client) -> Result<Vec<NodeFact>> {
    let mut facts = Vec::new();
    for node in list(client, "/api/v1/nodes", "Node").await? {
        facts.push(self::node(client, &node).await);
    }
    Ok(facts)
}

async fn node(client: &Client, node: &Value) -> NodeFact {
    let name = corten_meta::name(node).to_owned();
    let answer = client.get_raw(&format!("/api/v1/nodes/{name}/proxy/configz")).await;
    let configuration: Value = answer.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let mut fact = NodeFact {
        name,
        configuration: configuration["kubeletconfig"].clone(),
        anonymous_status: None,
        tls: tls::TlsFact::default(),
        is_self_signed: false,
        certificate_days: 0,
    };
    let Some(address) = kubelet_address(node) else { return fact };
    fact.anonymous_status = status(&stranger(&format!("https://{address}"), None), get("/pods")).await.ok();
    fact.tls = tls::probe(address).await;
    if let Some(certificate) = tls::certificate(address).await {
        fact.is_self_signed = certificate.is_self_signed;
        fact.certificate_days = certificate.days;
    }
    fact
}

fn kubelet_address(node: &Value) -> Option<SocketAddr> {
    let mut addresses = node["status"]["addresses"].as_array()?.iter();
    let address = addresses.find(|address| address["type"] == "InternalIP")?["address"].as_str()?.parse().ok()?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port")?.as_u64()?;
    Some(SocketAddr::new(address, u16::try_from(port).ok()?))
}

/// Returns a client without a certificate; it verifies nothing, since it sends no secret.
fn stranger(server: &str, token: Option<&str>) -> Option<Client> {
    let config = HttpsConfig {
        server: server.to_owned(),
        token: token.map(str::to_owned),
        insecure_skip_tls_verify: true,
        ..HttpsConfig::default()
    };
    Client::https(config).ok()
}

async fn probes(client: &Client, server: &str) -> Result<Probes> {
    let admin = Some(client.clone());
    let anonymous = stranger(server, None);
    let mut statuses = BTreeMap::new();
    for path in ANONYMOUS {
        statuses.insert(path, status(&anonymous, get(path)).await?);
    }
    let address = server.trim_start_matches("https://").parse();
    Ok(Probes {
        anonymous: statuses,
        wrong_token: status(&stranger(server, Some("corten-audit")), get("/api")).await?,
        profiling: status(&admin, get("/debug/pprof/")).await?,
        default_account: default_account(client).await,
        absent_namespace: status(&admin, dry_run("corten-audit-absent", "configmaps", &json!({}))).await?,
        foreign_node: status(&admin, foreign_node(client).await?).await?,
        external_ips: status(&admin, dry_run("default", "services", &external_ips())).await?,
        tls: match address {
            Ok(address) => tls::probe(address).await,
            Err(_) => tls::TlsFact::default(),
        },
    })
}

fn get(path: &str) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

/// Returns a create request that is validated and not stored.
fn dry_run(namespace: &str, resource: &str, fields: &Value) -> Request<Bytes> {
    let mut object = fields.clone();
    object["metadata"] = json!({ "name": "corten-audit" });
    let mut request = get(&format!("/api/v1/namespaces/{namespace}/{resource}?dryRun=All"));
    *request.method_mut() = Method::POST;
    set_body(&mut request, "application/json", &object);
    request
}

fn set_body(request: &mut Request<Bytes>, kind: &'static str, object: &Value) {
    *request.body_mut() = object.to_string().into();
    request.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
}

fn external_ips() -> Value {
    json!({ "spec": { "externalIPs": ["192.0.2.1"], "ports": [{ "port": 80 }] } })
}

/// Returns a change of a Node by the user of another node.
async fn foreign_node(client: &Client) -> Result<Request<Bytes>> {
    let nodes = list(client, "/api/v1/nodes", "Node").await?;
    let name = nodes.first().map(corten_meta::name).unwrap_or_default();
    let mut request = get(&format!("/api/v1/nodes/{name}?dryRun=All"));
    *request.method_mut() = Method::PATCH;
    set_body(&mut request, "application/merge-patch+json", &json!({ "metadata": { "labels": { "audit": "1" } } }));
    let headers = request.headers_mut();
    headers.insert("impersonate-user", http::HeaderValue::from_static("system:node:corten-audit"));
    headers.insert("impersonate-group", http::HeaderValue::from_static("system:nodes"));
    Ok(request)
}

async fn default_account(client: &Client) -> Option<String> {
    let pod = json!({ "spec": { "containers": [{ "name": "a", "image": "a" }] } });
    let response = client.request(dry_run("default", "pods", &pod)).await.ok()?;
    let body = response.into_body().into_bytes().await.ok()?;
    let made: Value = serde_json::from_slice(&body).ok()?;
    made["spec"]["serviceAccountName"].as_str().map(str::to_owned)
}

async fn status(client: &Option<Client>, request: Request<Bytes>) -> Result<u16> {
    let path = request.uri().path().to_owned();
    let client = client.as_ref().context("no client without a certificate can be made")?;
    let response = client.request(request).await.with_context(|| format!("{path} is not answered"))?;
    Ok(response.status().as_u16())
}

async fn list(client: &Client, path: &str, kind: &str) -> Result<Vec<Value>> {
    let body = client.get_raw(path).await.with_context(|| format!("{path} cannot be listed"))?;
    let mut list: Value = serde_json::from_slice(&body).with_context(|| format!("{path} is no list"))?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let of_kind = |mut item: Value| {
        item["kind"] = kind.into();
        item
    };
    Ok(items.into_iter().map(of_kind).collect())
}

async fn objects(client: &Client) -> Result<Objects> {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let rbac = |plural: &str| format!("{RBAC}/{plural}");
    let flow_schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    Ok(Objects {
        namespaces: list(client, "/api/v1/namespaces", "Namespace").await?,
        pods: list(client, "/api/v1/pods", "Pod").await?,
        services: list(client, "/api/v1/services", "Service").await?,
        roles: list(client, &rbac("roles"), "Role").await?,
        cluster_roles: list(client, &rbac("clusterroles"), "ClusterRole").await?,
        role_bindings: list(client, &rbac("rolebindings"), "RoleBinding").await?,
        cluster_role_bindings: list(client, &rbac("clusterrolebindings"), "ClusterRoleBinding").await?,
        service_accounts: list(client, "/api/v1/serviceaccounts", "ServiceAccount").await?,
        network_policies: list(client, "/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy").await?,
        flow_schemas: list(client, flow_schemas, "FlowSchema").await?,
        secrets: list(client, "/api/v1/secrets", "Secret").await?,
    })
}

/// Searches the store's files for the values of Secrets: in their JSON form in the embedded store, as bytes in etcd's log.
fn has_plain_secret(directories: &Directories, secrets: &[Value]) -> bool {
    let data = secrets.iter().filter_map(|secret| secret["data"].as_object());
    let values = data.flat_map(|data| data.values().filter_map(Value::as_str));
    let values: Vec<&str> = values.filter(|value| value.len() >= LEAST_SECRET).collect();
    let encoded: Vec<Vec<u8>> = values.iter().map(|value| value.as_bytes().to_vec()).collect();
    let decoded = values.iter().filter_map(|value| STANDARD.decode(value).ok());
    let decoded: Vec<Vec<u8>> = decoded.filter(|value| value.len() >= LEAST_SECRET).collect();
    contains(&directories.data.join("store"), &encoded)
        || contains(&directories.data.join("etcd/data/member/wal"), &[encoded, decoded].concat())
}

/// Reports whether a file of a directory contains one of the values.
fn contains(directory: &Path, values: &[Vec<u8>]) -> bool {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read(file.path()).ok())
        .any(|bytes| values.iter().any(|value| memchr::memmem::find(&bytes, value).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_from_the_kernels_table() {
        let line = "   0: 0100007F:2811 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert_eq!(listener(line), Some("127.0.0.1:10257".parse().unwrap()));
        let connected = line.replace(" 0A ", " 01 ");
        assert_eq!(listener(&connected), None);
        let line =
            "   0: 00000000000000000000000001000000:192B 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 1";
        assert_eq!(listener(line), Some("[::1]:6443".parse().unwrap()));
        for bad in ["", "sl local_address", "0: zz:1 0:0 0A", "0: 0100007F:28110 0:0 0A", "0: é100007F:2811 0:0 0A"] {
            assert_eq!(listener(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_secret_in_a_file_of_the_store_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories { data: dir.path().to_owned(), run: dir.path().to_owned() };
        std::fs::create_dir(dir.path().join("store")).unwrap();
        let secrets = [json!({ "data": { "key": "c2VjcmV0LXZhbHVlLWhlcmU=" } })];
        std::fs::write(dir.path().join("store/1.log"), "k8s:enc:secretbox:v1:…").unwrap();
        assert!(!has_plain_secret(&directories, &secrets));
        std::fs::write(dir.path().join("store/2.log"), r#"{"data":{"key":"c2VjcmV0LXZhbHVlLWhlcmU="}}"#).unwrap();
        assert!(has_plain_secret(&directories, &secrets));
        // The log of an etcd member has the bytes themselves.
        std::fs::remove_dir_all(dir.path().join("store")).unwrap();
        std::fs::create_dir_all(dir.path().join("etcd/data/member/wal")).unwrap();
        assert!(!has_plain_secret(&directories, &secrets));
        let secrets = [json!({ "data": { "key": "bG9uZy1zZWNyZXQtdmFsdWUtaGVyZQ==" } })];
        std::fs::write(dir.path().join("etcd/data/member/wal/0.wal"), "k8s\0…long-secret-value-here…").unwrap();
        assert!(has_plain_secret(&directories, &secrets));
    }
}
