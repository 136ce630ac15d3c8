//! Where a connecting subresource leads: which host and port, by TLS or not, and under which path.

use corten_api::Role;
use corten_meta::{Status, Value};

use crate::handlers::Target;
use crate::request::Query;

/// The place that a request is passed on to.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    pub host: String,
    pub port: u16,
    pub via: Via,
    pub path_and_query: String,
}

/// How a backend is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// A kubelet: over TLS, with our client certificate, and it must prove who it is.
    Kubelet,
    /// A pod or service by `https:`: over TLS, its certificate unread, as nobody could have signed it for us.
    Tls,
    /// A pod or service: plain HTTP.
    Plain,
}

impl Via {
    fn of_scheme(scheme: &str) -> Result<Via, Status> {
        match scheme {
            "" | "http" => Ok(Via::Plain),
            "https" => Ok(Via::Tls),
            other => Err(Status::bad_request(format!("invalid scheme {other:?}"))),
        }
    }
}

/// The kubelet's endpoint for logs, exec, attach or port-forward of a pod; none for the logs of a pod without a node.
pub async fn of_pod(target: &Target<'_>, role: Role) -> Result<Option<Backend>, Status> {
    let pod = target.server.registry.get(target.resource, target.namespace, target.name).await?.value();
    let node = pod.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    let container = if role == Role::PortForward { String::new() } else { container(target, &pod)? };
    if node.is_empty() && role == Role::Log {
        return Ok(None);
    }
    if node.is_empty() {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", target.name)));
    }
    let (namespace, name) = (target.namespace, target.name);
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

/// The container that the query names, or the only one.
fn container(target: &Target<'_>, pod: &Value) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        let items = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if let Some(asked) = target.context.info.query.get("container") {
        return match [&main, &init, &ephemeral].iter().any(|list| list.iter().any(|n| n == asked)) {
            true => Ok(asked.to_owned()),
            false => Err(Status::bad_request(format!("container {asked} is not valid for pod {}", target.name))),
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

/// The kubelet's names for the streams.
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
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The address and port at which a node's kubelet listens.
async fn kubelet_of(target: &Target<'_>, node: &str, path_and_query: String) -> Result<Backend, Status> {
    let server = target.server;
    let resource = server.resource("", "v1", "nodes")?;
    kubelet(&server.registry.get(&resource, "", node).await?.value(), path_and_query)
}

/// The same for a node that is at hand.
pub fn kubelet(node: &Value, path_and_query: String) -> Result<Backend, Status> {
    let addresses = node.pointer("/status/addresses").and_then(Value::as_array).cloned().unwrap_or_default();
    let of_type = |kind: &str| addresses.iter().find(|a| a["type"] == kind).and_then(|a| a["address"].as_str());
    let host = ["InternalIP", "ExternalIP", "InternalDNS", "Hostname"].into_iter().find_map(of_type);
    let host = host.ok_or_else(|| {
        Status::internal(format!("no preferred addresses found for node {:?}", corten_meta::name(node)))
    })?;
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64).unwrap_or(10250);
    Ok(Backend { host: host.to_owned(), port: port as u16, via: Via::Kubelet, path_and_query })
}

/// The backend of `…/proxy`: a node's kubelet, a pod, or an endpoint of a service.
pub async fn proxied(target: &Target<'_>) -> Result<Backend, Status> {
    let info = &target.context.info;
    let mut path = if info.remainder.is_empty() { "/".to_owned() } else { info.remainder.clone() };
    if let Some(extra) = info.query.get("path").filter(|_| info.remainder.is_empty()) {
        path = format!("/{}", extra.trim_start_matches('/'));
    }
    path = path.split('/').map(encode).collect::<Vec<_>>().join("/");
    let raw = target.context.raw_query.as_str();
    let path_and_query = if raw.is_empty() { path } else { format!("{path}?{raw}") };
    let (scheme, name, port) = split_name(target.name);
    let via = Via::of_scheme(scheme)?;
    match target.resource.kind.plural.as_str() {
        "nodes" => kubelet_of(target, name, path_and_query).await,
        "pods" => pod_backend(target, name, port, via, path_and_query).await,
        _ => service_backend(target, name, port, via, path_and_query).await,
    }
}

/// `[scheme:]name[:port]`.
fn split_name(name: &str) -> (&str, &str, &str) {
    match name.split(':').collect::<Vec<_>>().as_slice() {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme, name, port] => (scheme, name, port),
        _ => ("", name, ""),
    }
}

async fn pod_backend(
    target: &Target<'_>,
    name: &str,
    port: &str,
    via: Via,
    path_and_query: String,
) -> Result<Backend, Status> {
    let pod = target.server.registry.get(target.resource, target.namespace, name).await?.value();
    let host = pod.pointer("/status/podIP").and_then(Value::as_str).unwrap_or_default();
    if host.is_empty() {
        return Err(Status::bad_request("address not allowed"));
    }
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut ports = containers.iter().flat_map(|c| c["ports"].as_array().cloned().unwrap_or_default());
    let number = match port.parse::<u16>() {
        Ok(number) => Some(number),
        Err(_) => {
            let found = ports.find(|p| port.is_empty() || p["name"] == port);
            found.and_then(|p| p["containerPort"].as_u64()).map(|p| p as u16).or(port.is_empty().then_some(80))
        }
    };
    let port = number.ok_or_else(|| Status::bad_request(format!("no port {port:?} on pod {name:?}")))?;
    Ok(Backend { host: host.to_owned(), port, via, path_and_query })
}

async fn service_backend(
    target: &Target<'_>,
    name: &str,
    port: &str,
    via: Via,
    path_and_query: String,
) -> Result<Backend, Status> {
    let service = target.server.registry.get(target.resource, target.namespace, name).await?.value();
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let matches =
        |p: &&Value| port.is_empty() || p["name"] == port || port.parse::<u64>().is_ok_and(|n| p["port"] == n);
    let unavailable = || Status::service_unavailable(format!("no endpoints available for service {name:?}"));
    let chosen = ports.iter().find(matches).ok_or_else(unavailable)?;
    let port_name = chosen["name"].as_str().unwrap_or_default();
    target.server.registry.caches.fresh().await?;
    for slice in target.server.cached_list("discovery.k8s.io", "v1", "endpointslices", target.namespace) {
        if slice.header.labels.get("kubernetes.io/service-name").is_none_or(|s| s != name) {
            continue;
        }
        let slice = slice.value();
        let of_name = slice["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|p| p["name"].as_str().unwrap_or_default() == port_name);
        let Some(number) = of_name.and_then(|p| p["port"].as_u64()) else { continue };
        let ready = |e: &&Value| e.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
        let endpoint = slice["endpoints"].as_array().into_iter().flatten().find(ready);
        if let Some(host) = endpoint.and_then(|e| e.pointer("/addresses/0")).and_then(Value::as_str) {
            return Ok(Backend { host: host.to_owned(), port: number as u16, via, path_and_query });
        }
    }
    Err(unavailable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_proxied_things() {
        assert_eq!(split_name("web"), ("", "web", ""));
        assert_eq!(split_name("web:80"), ("", "web", "80"));
        assert_eq!(split_name("https:web:443"), ("https", "web", "443"));
        assert_eq!(Via::of_scheme("https").ok(), Some(Via::Tls));
        assert_eq!(Via::of_scheme("").ok(), Some(Via::Plain));
        assert!(Via::of_scheme("ftp").is_err());
    }

    #[test]
    fn stream_flags_get_the_kubelets_names() {
        let query = Query::parse("command=sh&command=-c&command=echo+1&stdin=true&stdout=true&tty=false&container=c");
        let path = with_query("/exec/a/b/c".to_owned(), &stream_query(&query));
        assert_eq!(path, "/exec/a/b/c?input=1&output=1&command=sh&command=-c&command=echo%201");
    }
}
