//! Connections that do not come about: from a pod to a pod, a Service or an address, on one port.

use std::net::IpAddr;

use corten_client::{Error, ListOptions, Resource};
use corten_meta::Value;

use crate::objects::{self, condition, items, text};
use crate::policy::{Direction, End, Port, Verdict, decide, named_ports};
use crate::{Finding, Sources, service};

/// A connection, as the user names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// `[NAMESPACE/]POD`.
    pub from: String,
    /// `[NAMESPACE/]POD`, `[NAMESPACE/]service/NAME` or an address.
    pub to: String,
    pub port: u16,
    pub protocol: String,
    /// The namespace of names without one.
    pub namespace: String,
}

/// The receiving end of a connection, after a Service chose it.
struct Target {
    end: End,
    port: Port,
}

/// Explains why a connection does not come about. None of the findings means that no object forbids it.
pub async fn explain(sources: Sources<'_>, connection: &Connection) -> Result<Vec<Finding>, Error> {
    let from = match pod_end(sources, &connection.from, &connection.namespace).await? {
        Ok(end) => end,
        Err(missing) => return Ok(vec![missing]),
    };
    let targets = match targets(sources, connection).await? {
        Ok(targets) => targets,
        Err(finding) => return Ok(vec![finding]),
    };
    let mut findings = Vec::new();
    for target in &targets {
        findings.extend(not_running(&target.end));
        findings.extend(dropped(sources, &from, target).await?);
    }
    findings.dedup();
    Ok(findings)
}

/// Explains which policies drop a connection from a pod to an end that is known.
pub async fn explain_to(
    sources: Sources<'_>,
    from: &str,
    namespace: &str,
    end: End,
    port: Port,
) -> Result<Vec<Finding>, Error> {
    match pod_end(sources, from, namespace).await? {
        Ok(from) => dropped(sources, &from, &Target { end, port }).await,
        Err(missing) => Ok(vec![missing]),
    }
}

fn policies() -> Resource {
    Resource::new("networking.k8s.io", "v1", "networkpolicies", true)
}

fn namespaces() -> Resource {
    Resource::new("", "v1", "namespaces", false)
}

/// Splits `[NAMESPACE/]NAME`.
fn split<'a>(name: &'a str, default: &'a str) -> (&'a str, &'a str) {
    name.split_once('/').unwrap_or((default, name))
}

/// Reads a pod as an end of a connection; the inner error explains that it does not exist.
async fn pod_end(sources: Sources<'_>, name: &str, default: &str) -> Result<Result<End, Finding>, Error> {
    let (namespace, name) = split(name, default);
    let Some(pod) = sources.objects.get(&objects::pods(), namespace, name).await? else {
        let finding = Finding::new(format!("There is no pod {name} in namespace {namespace}."));
        return Ok(Err(finding.help(format!("kubectl get pods -n {namespace}"))));
    };
    Ok(Ok(end_of(sources, pod).await))
}

async fn end_of(sources: Sources<'_>, pod: Value) -> End {
    let namespace = corten_meta::namespace(&pod).to_owned();
    // A user who may not read namespaces still learns the rest.
    let found = sources.objects.get(&namespaces(), "", &namespace).await.ok().flatten().unwrap_or_default();
    let addresses = items(&pod, "/status/podIPs").filter_map(|one| text(one, "/ip").parse().ok());
    End {
        shown: format!("pod {namespace}/{}", corten_meta::name(&pod)),
        addresses: addresses.collect(),
        namespace_labels: corten_meta::labels(&found),
        namespace,
        pod,
    }
}

async fn targets(sources: Sources<'_>, connection: &Connection) -> Result<Result<Vec<Target>, Finding>, Error> {
    let port = Port { number: connection.port, protocol: connection.protocol.clone() };
    if let Ok(address) = connection.to.parse::<IpAddr>() {
        let end = End { shown: address.to_string(), addresses: vec![address], ..End::default() };
        return Ok(Ok(vec![Target { end, port }]));
    }
    let parts: Vec<&str> = connection.to.split('/').collect();
    let (namespace, name) = match parts[..] {
        ["service" | "svc", name] => (connection.namespace.as_str(), name),
        [namespace, "service" | "svc", name] => (namespace, name),
        _ => {
            let end = pod_end(sources, &connection.to, &connection.namespace).await?;
            return Ok(end.map(|end| vec![Target { end, port }]));
        }
    };
    of_service(sources, namespace, name, &port).await
}

/// Returns the pods behind a port of a Service.
async fn of_service(
    sources: Sources<'_>,
    namespace: &str,
    name: &str,
    port: &Port,
) -> Result<Result<Vec<Target>, Finding>, Error> {
    let Some(found) = sources.objects.get(&objects::services(), namespace, name).await? else {
        let finding = Finding::new(format!("There is no Service {name} in namespace {namespace}."));
        return Ok(Err(finding.help(format!("kubectl get services -n {namespace}"))));
    };
    let protocol = |one: &Value| one.get("protocol").and_then(Value::as_str).unwrap_or("TCP").to_owned();
    let is_port = |one: &&Value| one["port"] == u64::from(port.number) && protocol(one) == port.protocol;
    let Some(service_port) = items(&found, "/spec/ports").find(is_port) else {
        let ports: Vec<String> =
            items(&found, "/spec/ports").map(|one| format!("{}/{}", one["port"], protocol(one))).collect();
        return Ok(Err(Finding::new(format!("The Service {name} has no port {}/{}.", port.number, port.protocol))
            .because(format!("its ports: {}", ports.join(", ")))));
    };
    if let Some(finding) = service::endpoints(sources, &found).await {
        let cause = format!("The Service {name} has no endpoint. {}", finding.cause);
        return Ok(Err(Finding { cause, ..finding }));
    }
    let selector = objects::selector(found.pointer("/spec/selector"));
    let pods = match selector.is_empty() {
        true => Vec::new(),
        false => sources.objects.list(&objects::pods(), namespace, ListOptions::labels(selector)).await?,
    };
    let mut targets = Vec::new();
    for pod in pods {
        let numbers = match service_port.get("targetPort") {
            None => vec![port.number],
            Some(Value::String(named)) => named_ports(&pod, named, &port.protocol),
            Some(number) => number.as_u64().and_then(|number| u16::try_from(number).ok()).into_iter().collect(),
        };
        let end = end_of(sources, pod).await;
        targets.extend(
            numbers
                .into_iter()
                .map(|number| Target { end: end.clone(), port: Port { number, protocol: port.protocol.clone() } }),
        );
    }
    Ok(Ok(targets))
}

fn not_running(end: &End) -> Option<Finding> {
    let is_running = text(&end.pod, "/status/phase") == "Running";
    let is_ready = condition(&end.pod, "Ready").is_some_and(|one| text(one, "/status") == "True");
    if end.pod.is_null() || is_running && is_ready {
        return None;
    }
    let name = corten_meta::name(&end.pod);
    let state = if is_running { "runs, and is not ready" } else { "does not run" };
    Some(
        Finding::new(format!("The {} {state}.", end.shown)).help(format!("corten why -n {} pod/{name}", end.namespace)),
    )
}

/// Explains which policies drop the connection, at its beginning and at its end.
async fn dropped(sources: Sources<'_>, from: &End, target: &Target) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let to = &target.end;
    for (direction, own, other) in [(Direction::Egress, from, to), (Direction::Ingress, to, from)] {
        if own.namespace.is_empty() {
            continue;
        }
        let policies = sources.objects.list(&policies(), &own.namespace, ListOptions::default()).await?;
        let verdict = decide(&policies, direction, own, other, to, &target.port);
        let Verdict::Dropped { policies, reasons } = verdict else { continue };
        let place = match direction {
            Direction::Egress => "where it leaves",
            Direction::Ingress => "where it arrives",
        };
        let names: Vec<String> = policies.iter().map(|name| format!("{}/{name}", own.namespace)).collect();
        let Port { number, protocol } = &target.port;
        let cause = format!(
            "It is dropped {place}: no rule of {} allows {} to connect to {} on port {number}/{protocol}.",
            names.join(" and "),
            from.shown,
            to.shown
        );
        let mut finding = Finding::new(cause);
        for reason in reasons {
            finding = finding.because(reason);
        }
        findings.push(finding.help(format!("kubectl edit networkpolicy -n {} {}", own.namespace, policies[0])));
    }
    Ok(findings)
}
