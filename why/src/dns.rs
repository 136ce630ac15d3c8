//! Names that do not resolve: from inside of a pod, by the rules of cluster DNS.

use corten_client::{Error, ListOptions};
use corten_meta::Value;
use serde_json::json;

use crate::connection;
use crate::objects::{self, items, text};
use crate::policy::{End, Port};
use crate::{Finding, Sources, service};

/// The namespace and the name of the Service of cluster DNS.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_SERVICE: &str = "kube-dns";
const DNS_PORT: u16 = 53;
/// The domain of a cluster that names no other.
pub const DEFAULT_DOMAIN: &str = "cluster.local";

/// A name to resolve.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    pub name: String,
    /// The pod that asks, as `[NAMESPACE/]POD`.
    pub from: Option<String>,
    /// The namespace that names without one are completed by.
    pub namespace: String,
    /// The cluster's domain.
    pub domain: String,
}

/// The object that a name stands for.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Service {
        namespace: String,
        name: String,
    },
    /// A pod of a headless Service.
    Host {
        host: String,
        namespace: String,
        service: String,
    },
    /// A name that is not the cluster's.
    Outside,
}

/// Explains why a name does not resolve.
pub async fn explain(sources: Sources<'_>, lookup: &Lookup) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let mut namespace = lookup.namespace.clone();
    if let Some(from) = &lookup.from {
        let (pod_namespace, name) = from.split_once('/').unwrap_or((&lookup.namespace, from));
        let Some(pod) = sources.objects.get(&objects::pods(), pod_namespace, name).await? else {
            let missing = Finding::new(format!("There is no pod {name} in namespace {pod_namespace}."));
            return Ok(vec![missing.help(format!("kubectl get pods -n {pod_namespace}"))]);
        };
        pod_namespace.clone_into(&mut namespace);
        findings.extend(settings(&pod));
        findings.extend(blocked(sources, lookup).await?);
    }
    findings.extend(servers(sources).await?);
    let trimmed = lookup.name.trim_end_matches('.').to_lowercase();
    let labels: Vec<&str> = trimmed.split('.').collect();
    if labels.iter().any(|label| label.is_empty() || label.len() > 63) || trimmed.len() > 253 {
        findings.push(Finding::new(format!("{:?} is no name of DNS.", lookup.name)));
        return Ok(findings);
    }
    match meaning(sources, &labels, &namespace, &lookup.domain).await? {
        Meaning::Service { namespace, name } => findings.extend(of_service(sources, &namespace, &name).await?),
        Meaning::Host { host, namespace, service } => {
            findings.extend(of_host(sources, &namespace, &service, &host).await?);
        }
        Meaning::Outside => findings.extend(outside(&labels, &lookup.domain)),
    }
    Ok(findings)
}

/// Returns the object that a name stands for. The words before the domain decide, as the search list completes them.
async fn meaning(sources: Sources<'_>, labels: &[&str], own: &str, domain: &str) -> Result<Meaning, Error> {
    let zone: Vec<&str> = domain.split('.').collect();
    let inner = labels.strip_suffix(zone.as_slice()).unwrap_or(labels);
    let is_whole = inner.len() < labels.len();
    let service = |namespace: &str, name: &str| Meaning::Service { namespace: namespace.into(), name: name.into() };
    Ok(match inner {
        [name, namespace, "svc"] => service(namespace, name),
        [host, name, namespace, "svc"] => {
            Meaning::Host { host: (*host).into(), namespace: (*namespace).into(), service: (*name).into() }
        }
        _ if is_whole => Meaning::Outside,
        [name] => service(own, name),
        // A Service of a namespace that exists; else the name may be one of the world.
        [name, namespace] => {
            let found = sources.objects.get(&objects::services(), namespace, name).await?;
            let names = corten_client::Resource::new("", "v1", "namespaces", false);
            match found.is_some() || sources.objects.get(&names, "", namespace).await?.is_some() {
                true => service(namespace, name),
                false => Meaning::Outside,
            }
        }
        _ => Meaning::Outside,
    })
}

async fn of_service(sources: Sources<'_>, namespace: &str, name: &str) -> Result<Vec<Finding>, Error> {
    let Some(found) = sources.objects.get(&objects::services(), namespace, name).await? else {
        let all = sources.objects.list(&objects::services(), "", ListOptions::default()).await.unwrap_or_default();
        let elsewhere: Vec<String> = all
            .iter()
            .filter(|one| corten_meta::name(one) == name)
            .map(|one| format!("{name}.{}", corten_meta::namespace(one)))
            .collect();
        let mut finding = Finding::new(format!("There is no Service {name} in namespace {namespace}."));
        if !elsewhere.is_empty() {
            finding = finding.because(format!("there is {}", elsewhere.join(", ")));
            finding = finding.help(format!("use the name {}", elsewhere[0]));
        }
        return Ok(vec![finding.help(format!("kubectl get services -n {namespace}"))]);
    };
    if text(&found, "/spec/type") == "ExternalName" {
        let target = text(&found, "/spec/externalName");
        return Ok(vec![
            Finding::new(format!("The Service {name} is an alias of {target}, which must resolve itself."))
                .help(format!("corten why dns/{target}")),
        ]);
    }
    if text(&found, "/spec/clusterIP") != "None" {
        // The address of a Service resolves, with or without endpoints.
        return Ok(Vec::new());
    }
    let unready = service::endpoints(sources, &found).await;
    Ok(unready
        .map(|finding| {
            let cause = format!("The headless Service {name} has no ready endpoint, so its name has no address.");
            let mut evidence = vec![finding.cause];
            evidence.extend(finding.evidence);
            Finding { cause, evidence, help: finding.help }
        })
        .into_iter()
        .collect())
}

/// Explains the name of a pod below a headless Service.
async fn of_host(sources: Sources<'_>, namespace: &str, service: &str, host: &str) -> Result<Vec<Finding>, Error> {
    let Some(found) = sources.objects.get(&objects::services(), namespace, service).await? else {
        return of_service(sources, namespace, service).await;
    };
    if text(&found, "/spec/clusterIP") != "None" {
        let cause = format!("The Service {service} is not headless: its pods have no names.");
        return Ok(vec![Finding::new(cause).because(format!("clusterIP {}", text(&found, "/spec/clusterIP")))]);
    }
    let options = ListOptions::labels(format!("kubernetes.io/service-name={service}"));
    let slices = sources.objects.list(&objects::endpoint_slices(), namespace, options).await?;
    let endpoints: Vec<&Value> = slices.iter().flat_map(|slice| items(slice, "/endpoints")).collect();
    let names: Vec<&str> = endpoints.iter().map(|one| text(one, "/hostname")).filter(|name| !name.is_empty()).collect();
    if names.contains(&host) {
        return Ok(Vec::new());
    }
    let cause = format!("No endpoint of the Service {service} has the hostname {host}.");
    let mut finding = Finding::new(cause).because(match names.is_empty() {
        true => "none of its endpoints has a hostname: pods need hostname and subdomain, or a StatefulSet with \
                 this serviceName"
            .to_owned(),
        false => format!("hostnames: {}", names.join(", ")),
    });
    if let Ok(Some(pod)) = sources.objects.get(&objects::pods(), namespace, host).await {
        let subdomain = text(&pod, "/spec/subdomain");
        if subdomain != service {
            finding = finding.because(format!("pod {host} has the subdomain {subdomain:?}"));
        }
        finding = finding.help(format!("corten why -n {namespace} pod/{host}"));
    }
    Ok(vec![finding])
}

fn outside(labels: &[&str], domain: &str) -> Option<Finding> {
    let name = labels.join(".");
    if name.ends_with(&format!(".{domain}")) || name == domain {
        let cause = format!("{name} is in the cluster's domain, and has none of its forms.");
        let forms = format!("SERVICE.NAMESPACE.svc.{domain} and HOSTNAME.SERVICE.NAMESPACE.svc.{domain}");
        return Some(Finding::new(cause).because(forms));
    }
    Some(
        Finding::new(format!("{name} is not a name of the cluster: the name servers of the node answer it."))
            .because("cluster DNS asks the servers in the node's /etc/resolv.conf")
            .help("on the node: cat /etc/resolv.conf; corten status"),
    )
}

/// Explains a pod whose settings keep it from cluster DNS.
fn settings(pod: &Value) -> Option<Finding> {
    let policy = match text(pod, "/spec/dnsPolicy") {
        "" => "ClusterFirst",
        policy => policy,
    };
    let is_on_host = pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true);
    let cause = match (policy, is_on_host) {
        ("Default", _) => "The pod asks the name servers of its node: its dnsPolicy is Default.",
        ("ClusterFirst", true) => "The pod is in the node's network, and asks the node's name servers.",
        ("None", _) => "The pod asks the name servers of its own dnsConfig: its dnsPolicy is None.",
        _ => return None,
    };
    let servers: Vec<&str> = items(pod, "/spec/dnsConfig/nameservers").filter_map(Value::as_str).collect();
    let mut finding = Finding::new(cause);
    if !servers.is_empty() {
        finding = finding.because(format!("nameservers: {}", servers.join(", ")));
    }
    let wanted = if is_on_host { "ClusterFirstWithHostNet" } else { "ClusterFirst" };
    Some(finding.help(format!("set dnsPolicy: {wanted}")))
}

/// Explains policies that keep the pod from cluster DNS. They see it as a pod, also where the node itself answers.
async fn blocked(sources: Sources<'_>, lookup: &Lookup) -> Result<Vec<Finding>, Error> {
    let Some(from) = &lookup.from else { return Ok(Vec::new()) };
    let labels = json!({"k8s-app": DNS_SERVICE});
    let end = End {
        shown: "cluster DNS".to_owned(),
        namespace: DNS_NAMESPACE.to_owned(),
        namespace_labels: [("kubernetes.io/metadata.name".to_owned(), DNS_NAMESPACE.to_owned())].into(),
        pod: json!({"metadata": {"namespace": DNS_NAMESPACE, "name": DNS_SERVICE, "labels": labels}}),
        addresses: Vec::new(),
    };
    let port = Port { number: DNS_PORT, protocol: "UDP".to_owned() };
    let findings = connection::explain_to(sources, from, &lookup.namespace, end, port).await?;
    let renamed = findings.into_iter().map(|finding| {
        let mut evidence = vec![finding.cause];
        evidence.extend(finding.evidence);
        Finding { cause: "A NetworkPolicy keeps the pod from cluster DNS.".to_owned(), evidence, help: finding.help }
    });
    Ok(renamed.collect())
}

/// Explains a cluster whose DNS has no server.
async fn servers(sources: Sources<'_>) -> Result<Option<Finding>, Error> {
    let Some(dns) = sources.objects.get(&objects::services(), DNS_NAMESPACE, DNS_SERVICE).await? else {
        let cause = format!("The cluster has no Service {DNS_NAMESPACE}/{DNS_SERVICE}: it has no cluster DNS.");
        return Ok(Some(Finding::new(cause).help("corten status")));
    };
    let finding = service::endpoints(sources, &dns).await;
    Ok(finding.map(|finding| Finding { cause: format!("Cluster DNS has no server. {}", finding.cause), ..finding }))
}
