//! Services without endpoints, or without an address.

use std::collections::BTreeSet;

use corten_client::ListOptions;
use corten_meta::Value;

use crate::events;
use crate::objects::{self, condition, items, selector, text};
use crate::{Finding, Sources};

pub async fn explain(sources: Sources<'_>, service: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    if text(service, "/spec/type") != "ExternalName" {
        findings.extend(endpoints(sources, service).await);
    }
    if text(service, "/spec/type") == "LoadBalancer" {
        match items(service, "/status/loadBalancer/ingress").next() {
            None => findings.push(pending(sources, service).await),
            Some(_) => findings.extend(ignored(service)),
        }
    }
    findings
}

/// Explains a Service whose requests reach no pod.
pub async fn endpoints(sources: Sources<'_>, service: &Value) -> Option<Finding> {
    let namespace = corten_meta::namespace(service);
    let name = corten_meta::name(service);
    let options = ListOptions::labels(format!("kubernetes.io/service-name={name}"));
    let slices = sources.objects.list(&objects::endpoint_slices(), namespace, options).await.ok()?;
    let is_ready = |endpoint: &Value| endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    if slices.iter().flat_map(|slice| items(slice, "/endpoints")).any(is_ready) {
        return None;
    }
    let labels = service.pointer("/spec/selector");
    let selector = selector(labels);
    if selector.is_empty() {
        return Some(
            Finding::new("It has no selector, and nobody wrote endpoints for it.")
                .help(format!("kubectl get endpointslices -n {namespace} -l kubernetes.io/service-name={name}")),
        );
    }
    let pods = sources.objects.list(&objects::pods(), namespace, ListOptions::labels(&selector)).await.ok()?;
    if pods.is_empty() {
        return Some(no_pods(sources, namespace, &selector).await);
    }
    let is_pod_ready = |pod: &&Value| condition(pod, "Ready").is_some_and(|one| text(one, "/status") == "True");
    let unready: Vec<&str> = pods.iter().filter(|pod| !is_pod_ready(pod)).map(corten_meta::name).collect();
    if !unready.is_empty() {
        return Some(
            Finding::new(format!("None of its {} pods is ready.", pods.len()))
                .because(unready.join(", "))
                .help(format!("corten why -n {namespace} pod/{}", unready[0])),
        );
    }
    Some(wrong_port(service, &pods))
}

/// Explains a selector that matches no pod, with the pods that match a part of it.
async fn no_pods(sources: Sources<'_>, namespace: &str, selector: &str) -> Finding {
    let mut finding = Finding::new(format!("No pod of the namespace {namespace} has the labels {selector}."));
    for part in selector.split(',').filter(|_| selector.contains(',')) {
        let pods = sources.objects.list(&objects::pods(), namespace, ListOptions::labels(part)).await;
        let count = pods.map(|pods| pods.len()).unwrap_or(0);
        finding = finding.because(format!("{count} pods have {part}"));
    }
    finding.help(format!("kubectl get pods -n {namespace} --show-labels"))
}

/// Explains a Service with ready pods and no endpoints: a port by a name that no container has.
fn wrong_port(service: &Value, pods: &[Value]) -> Finding {
    let declared: BTreeSet<&str> = pods
        .iter()
        .flat_map(|pod| items(pod, "/spec/containers"))
        .flat_map(|container| items(container, "/ports"))
        .map(|port| text(port, "/name"))
        .collect();
    let named = items(service, "/spec/ports").filter_map(|port| port["targetPort"].as_str());
    match named.into_iter().find(|name| !declared.contains(name)) {
        Some(name) => Finding::new(format!("No container of its pods has a port with the name {name:?}."))
            .because(format!("they declare: {}", declared.into_iter().collect::<Vec<_>>().join(", "))),
        None => Finding::new("Its pods are ready, and its endpoints are not written yet.")
            .help("corten status; the endpoint slice controller may not run"),
    }
}

/// The class of Services whose addresses come from AddressPools, beside those without a class.
const OWN_CLASS: &str = "network.corten.dev/load-balancer";
/// The type of the condition of a Service without an address.
const ADDRESS_ASSIGNED: &str = "network.corten.dev/AddressAssigned";
/// The reason of that condition when the cloud controllers wrote it.
const CLOUD_FAILED: &str = "SyncLoadBalancerFailed";

/// Explains a part of a Service that has no effect on its load balancer.
fn ignored(service: &Value) -> Option<Finding> {
    let reported = condition(service, ADDRESS_ASSIGNED).filter(|one| !text(one, "/message").is_empty())?;
    let finding = match text(reported, "/status") {
        "True" => Finding::new("A part of it has no effect on its load balancer."),
        _ => Finding::new("It keeps its load balancer as it was: the last change is refused."),
    };
    Some(finding.because(text(reported, "/message")))
}

/// Explains a load balancer without an address.
async fn pending(sources: Sources<'_>, service: &Value) -> Finding {
    let class = text(service, "/spec/loadBalancerClass");
    let refused = condition(service, ADDRESS_ASSIGNED).filter(|one| text(one, "/status") == "False");
    if let Some(refused) = refused {
        return match text(refused, "/reason") {
            CLOUD_FAILED => Finding::new("It has no external address: the cloud makes no load balancer for it."),
            _ => Finding::new("It has no external address: no pool of addresses gives it one.")
                .help("kubectl get addresspools; kubectl describe addresspools"),
        }
        .because(text(refused, "/message"));
    }
    let finding = match class {
        "" | OWN_CLASS => Finding::new("It has no external address yet."),
        class => Finding::new(format!("It has no external address: the implementation of {class} gives it one.")),
    };
    match events::warnings(sources, service).await.first() {
        Some(warning) => finding.because(format!("{}: {}", warning.reason, warning.message)),
        None => finding.because("no controller has reported why"),
    }
}
