//! Locates the backend of a connecting subresource: its host, port, transport and path.

use corten_api::Role;
use corten_meta::address::is_global_unicast;
use corten_meta::quote::quote;
use corten_meta::{Status, Value};

use crate::request::Query;
use crate::write::Scope;

/// The backend that a request is forwarded to.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    pub host: String,
    pub port: u16,
    pub via: Via,
    pub path_and_query: String,
}

/// The transport to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// A kubelet: over TLS, with our client certificate, and it must prove that it is this node's.
    Kubelet { node: String },
    /// A pod or service by `https:`: over TLS without verification, as no authority of ours could have signed its
    /// certificate.
    Tls,
    /// A pod or service: plain HTTP.
    Plain,
}

impl Via {
    fn of_scheme(scheme: &str) -> Option<Via> {
        match scheme {
            "" | "http" => Some(Via::Plain),
            "https" => Some(Via::Tls),
            _ => None,
        }
    }
}

/// Returns the kubelet's endpoint for logs, exec, attach or port-forward of a pod; none for the logs of a pod without a
/// node.
pub async fn of_pod(target: &Scope<'_>, role: Role) -> Result<Option<Backend>, Status> {
    let pod = intermediate_object(target, "pods", target.namespace, target.name).await?;
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    let container = if role == Role::PortForward { String::new() } else { container(target, &pod)? };
    if node.is_empty() && role == Role::Log {
        return Ok(None);
    }
    if node.is_empty() {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", target.name)));
    }
    let namespace = target.namespace;
    let name = target.name;
    let query = &target.context.info.query;
    let path = match role {
        Role::Log => with_query(format!("/containerLogs/{namespace}/{name}/{container}"), &log_query(query)),
        Role::Exec | Role::Attach => {
            let verb = if role == Role::Exec { "exec" } else { "attach" };
            with_query(format!("/{verb}/{namespace}/{name}/{container}"), &stream_query(query))
        }
        _ => {
            let ports: Vec<(String, String)> = query.all("ports").map(|p| ("port".to_owned(), p.to_owned())).collect();
            with_query(format!("/portForward/{namespace}/{name}"), &ports)
        }
    };
    kubelet_of(target, node, path).await.map(Some)
}

/// Returns the container of the query, or the only one.
fn container(target: &Scope<'_>, pod: &Value) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        let items = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let main = names("containers");
    let init = names("initContainers");
    let ephemeral = names("ephemeralContainers");
    if let Some(requested) = target.context.info.query.get("container") {
        return match [&main, &init, &ephemeral].iter().any(|list| list.iter().any(|n| n == requested)) {
            true => Ok(requested.to_owned()),
            false => Err(Status::bad_request(format!("container {requested} is not valid for pod {}", target.name))),
        };
    }
    match main.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {}", target.name))),
        many => {
            let mut message = format!(
                "a container name must be specified for pod {}, choose one of: [{}]",
                target.name,
                many.join(" ")
            );
            if !init.is_empty() {
                message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Status::bad_request(message))
        }
    }
}

fn log_query(query: &Query) -> Vec<(String, String)> {
    let flags = ["follow", "previous", "timestamps"].into_iter().filter(|key| query.flag(key)).map(|key| (key, "true"));
    let values = ["sinceSeconds", "sinceTime", "tailLines", "limitBytes"];
    let values = values.into_iter().filter_map(|key| query.get(key).map(|value| (key, value)));
    flags.chain(values).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Converts the query of a stream to the kubelet's parameters.
fn stream_query(query: &Query) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for (ours, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if query.flag(ours) {
            pairs.push((theirs.to_owned(), "1".to_owned()));
        }
    }
    pairs.extend(query.all("command").map(|word| ("command".to_owned(), word.to_owned())));
    pairs
}

fn with_query(path: String, pairs: &[(String, String)]) -> String {
    if pairs.is_empty() {
        return path;
    }
    let encoded: Vec<String> = pairs.iter().map(|(k, v)| format!("{}={}", encode(k), encode(v))).collect();
    format!("{path}?{}", encoded.join("&"))
}

/// Percent-encodes everything but unreserved characters.
fn encode(string: &str) -> String {
    let mut out = String::with_capacity(string.len());
    for byte in string.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns the object that a request leads through. The error of a missing object names the request's own resource.
async fn intermediate_object(target: &Scope<'_>, plural: &str, namespace: &str, name: &str) -> Result<Value, Status> {
    let resource = target.core.registry.required("", "v1", plural)?;
    match target.core.registry.read(&resource, namespace, name).await? {
        Some(object) => Ok(resource.serve(&object).await?.value()),
        None => Err(Status::not_found(&target.resource.group_resource(), name)),
    }
}

/// Returns the address and port of a node's kubelet.
async fn kubelet_of(target: &Scope<'_>, node: &str, path_and_query: String) -> Result<Backend, Status> {
    kubelet(&intermediate_object(target, "nodes", "", node).await?, path_and_query)
}

/// Returns the address and port of the kubelet of a Node object.
pub fn kubelet(node: &Value, path_and_query: String) -> Result<Backend, Status> {
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    let of_type = |kind: &str| addresses.iter().find(|a| a["type"] == kind).and_then(|a| a["address"].as_str());
    let host = ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"].into_iter().find_map(of_type);
    let host = host.ok_or_else(|| {
        let string = |address: &Value, field: &str| address[field].as_str().unwrap_or_default().to_owned();
        let known = addresses.iter().map(|a| format!("{{{} {}}}", string(a, "type"), string(a, "address")));
        let known = known.collect::<Vec<_>>().join(" ");
        let message = format!("no preferred addresses found; known addresses: [{known}]");
        Status { code: 500, message, ..Status::default() }
    })?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64).unwrap_or(10250);
    let port = u16::try_from(port).map_err(|_| Status::internal(format!("invalid kubelet port {port}")))?;
    let via = Via::Kubelet { node: corten_meta::name(node).to_owned() };
    Ok(Backend { host: host.to_owned(), port, via, path_and_query })
}

/// Returns the backend of `…/proxy`: a node's kubelet, a pod, or an endpoint of a service.
pub async fn proxied(target: &Scope<'_>) -> Result<Backend, Status> {
    let info = &target.context.info;
    let mut path = if info.remainder.is_empty() { "/".to_owned() } else { info.remainder.clone() };
    if let Some(extra) = info.query.get("path").filter(|_| info.remainder.is_empty()) {
        path = format!("/{}", extra.trim_start_matches('/'));
    }
    path = path.split('/').map(encode).collect::<Vec<_>>().join("/");
    let raw = target.context.raw_query.as_str();
    let path_and_query = if raw.is_empty() { path } else { format!("{path}?{raw}") };
    let kind = &target.resource.kind;
    let invalid = || Status::bad_request(format!("invalid {} request {}", kind.singular, quote(&target.name)));
    let (via, name, port) = split_name(target.name).ok_or_else(invalid)?;
    match kind.plural.as_str() {
        "nodes" => node_backend(target, name, port, via, path_and_query).await,
        "pods" => pod_backend(target, name, port, via, path_and_query).await,
        _ => service_backend(target, name, port, via, path_and_query).await,
    }
}

/// Splits `[scheme:]name[:port]`.
fn split_name(name: &str) -> Option<(Via, &str, &str)> {
    let (scheme, name, port) = match name.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => return None,
    };
    Via::of_scheme(scheme).filter(|_| !name.is_empty()).map(|via| (via, name, port))
}

/// Parses a port number; zero is invalid.
fn port_number(port: &str) -> Result<u16, Status> {
    let why = match port.bytes().all(|byte| byte.is_ascii_digit()) {
        true => format!("dial tcp: address {port}: invalid port"),
        false => format!("dial tcp: lookup tcp/{port}: unknown port"),
    };
    port.parse().map_err(|_| Status::service_unavailable(format!("error trying to reach service: {why}")))
}

/// Refuses addresses that are local to this machine. Host names are resolved and checked when they are dialed.
fn check_address(host: &str) -> Result<(), Status> {
    let is_allowed = host.parse().is_ok_and(is_global_unicast);
    if is_allowed { Ok(()) } else { Err(Status::bad_request("address not allowed")) }
}

/// Returns the kubelet, or another port of the node if the request names one.
async fn node_backend(
    target: &Scope<'_>,
    name: &str,
    port: &str,
    via: Via,
    path_and_query: String,
) -> Result<Backend, Status> {
    let kubelet = kubelet_of(target, name, path_and_query).await?;
    if port.is_empty() || port == kubelet.port.to_string() {
        return Ok(kubelet);
    }
    check_address(&kubelet.host)?;
    Ok(Backend { port: port_number(port)?, via, ..kubelet })
}

async fn pod_backend(
    target: &Scope<'_>,
    name: &str,
    port: &str,
    via: Via,
    path_and_query: String,
) -> Result<Backend, Status> {
    let pod = intermediate_object(target, "pods", target.namespace, name).await?;
    let host = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default();
    check_address(host)?;
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let first = containers.filter_map(|c| c.pointer("/ports/0/containerPort")?.as_u64()).next();
    let port = match (port, first) {
        ("", Some(first)) => first as u16,
        ("", None) if via == Via::Tls => 443,
        ("", None) => 80,
        (port, _) => port_number(port)?,
    };
    Ok(Backend { host: host.to_owned(), port, via, path_and_query })
}

/// Returns a pod among the endpoints of a service. A port number is one of the service, a port name one of the
/// endpoints.
async fn service_backend(
    target: &Scope<'_>,
    name: &str,
    port: &str,
    via: Via,
    path_and_query: String,
) -> Result<Backend, Status> {
    let mut port_name = port.to_owned();
    if let Ok(number) = port.parse::<i64>() {
        let service = intermediate_object(target, "services", target.namespace, name).await?;
        let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
        let missing =
            || Status::service_unavailable(format!("no service port {number} found for service {}", quote(name)));
        let found = ports.iter().find(|p| p["port"] == number).ok_or_else(missing)?;
        port_name = found["name"].as_str().unwrap_or_default().to_owned();
    }
    let endpoints = intermediate_object(target, "endpoints", target.namespace, name).await?;
    let none = |of: &str| Status::service_unavailable(format!("no endpoints available for service {}", quote(of)));
    let list = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let subsets = list(&endpoints, "subsets");
    if subsets.is_empty() {
        return Err(none(name));
    }
    for subset in &subsets {
        let named = |p: &&Value| p["name"].as_str().unwrap_or_default() == port_name;
        let Some(number) = list(subset, "ports").iter().find(named).and_then(|p| p["port"].as_u64()) else { continue };
        let mut addresses = list(subset, "addresses");
        let start = uuid::Uuid::new_v4().as_u64_pair().1 as usize % addresses.len().max(1);
        addresses.rotate_left(start);
        for address in &addresses {
            if let Some(host) = address_of_pod(target, address).await {
                return Ok(Backend { host, port: number as u16, via, path_and_query });
            }
        }
    }
    Err(none(target.name))
}

/// Returns the address if its target pod really has it: a client that may write endpoints cannot redirect others.
async fn address_of_pod(target: &Scope<'_>, address: &Value) -> Option<String> {
    let of = |field: &str| address.pointer(&format!("/targetRef/{field}")).and_then(Value::as_str);
    let host = address["ip"].as_str()?;
    if of("namespace")? != target.namespace {
        return None;
    }
    let pod = intermediate_object(target, "pods", target.namespace, of("name")?).await.ok()?;
    let mut addresses = pod.pointer("/status/podIPs").and_then(Value::as_array)?.iter();
    let is_pods = addresses.any(|pod| pod["ip"] == host) && check_address(host).is_ok();
    is_pods.then(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_proxied_objects_are_split() {
        for (name, parts) in [
            ("web", Some((Via::Plain, "web", ""))),
            ("web:80", Some((Via::Plain, "web", "80"))),
            (":web:", Some((Via::Plain, "web", ""))),
            ("https:web:443", Some((Via::Tls, "web", "443"))),
            ("ftp:web:80", None),
            ("a:b:web:80", None),
            (":80", None),
        ] {
            assert_eq!(split_name(name), parts, "{name}");
        }
    }

    #[test]
    fn addresses_of_this_machine_are_refused() {
        for (host, is_proxied) in [
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("::1", false),
            ("fe80::1", false),
            ("", false),
        ] {
            assert_eq!(check_address(host).is_ok(), is_proxied, "{host}");
        }
    }

    #[test]
    fn the_error_of_a_node_without_an_address_lists_its_addresses() {
        let node = serde_json::json!({ "status": { "addresses": [{ "type": "Pigeon", "address": "roof" }] } });
        let status = kubelet(&node, String::new()).unwrap_err();
        assert_eq!(status.message, "no preferred addresses found; known addresses: [{Pigeon roof}]");
    }

    #[test]
    fn stream_flags_get_the_kubelets_names() {
        let query = Query::parse("command=sh&command=-c&command=echo+1&stdin=true&stdout=true&tty=false&container=c");
        let path = with_query("/exec/a/b/c".to_owned(), &stream_query(&query));
        assert_eq!(path, "/exec/a/b/c?input=1&output=1&command=sh&command=-c&command=echo%201");
    }
}
