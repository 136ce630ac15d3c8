//! HorizontalPodAutoscalers that do not scale.

use corten_client::{ListOptions, Resource};
use corten_meta::Value;

use crate::objects::{condition, items, number, text};
use crate::{Finding, Sources};

/// Explains an autoscaler by its conditions, and by the sources of the metrics that it cannot read.
pub async fn explain(sources: Sources<'_>, autoscaler: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let status = |kind: &str, status: &str| condition(autoscaler, kind).filter(|one| text(one, "/status") == status);
    if let Some(one) = status("AbleToScale", "False") {
        findings.push(unable(autoscaler, one));
    }
    if let Some(one) = status("ScalingActive", "False") {
        findings.push(inactive(sources, autoscaler, one).await);
    }
    if let Some(one) = status("ScalingLimited", "True") {
        findings.push(limited(autoscaler, one));
    }
    findings
}

fn unable(autoscaler: &Value, condition: &Value) -> Finding {
    let kind = text(autoscaler, "/spec/scaleTargetRef/kind").to_lowercase();
    let name = text(autoscaler, "/spec/scaleTargetRef/name");
    Finding::new(format!("It cannot scale its target {kind} {name}."))
        .because(text(condition, "/message"))
        .help(format!("kubectl get {kind} -n {} {name}", corten_meta::namespace(autoscaler)))
}

async fn inactive(sources: Sources<'_>, autoscaler: &Value, condition: &Value) -> Finding {
    let namespace = corten_meta::namespace(autoscaler);
    let reason = text(condition, "/reason");
    if reason == "ScalingDisabled" {
        let kind = text(autoscaler, "/spec/scaleTargetRef/kind").to_lowercase();
        let name = text(autoscaler, "/spec/scaleTargetRef/name");
        return Finding::new("Its target has 0 replicas, so it does not scale.")
            .because(text(condition, "/message"))
            .help(format!("kubectl scale -n {namespace} {kind}/{name} --replicas=1"));
    }
    let mut finding =
        Finding::new("It cannot read its metrics, and does not scale.").because(text(condition, "/message"));
    if text(condition, "/message").contains("missing request for") {
        return finding.help("set resources.requests of every container: the target is a part of the request");
    }
    if reason.starts_with("FailedGetResource") || reason.starts_with("FailedGetContainer") {
        return finding.help(format!("kubectl top pods -n {namespace}"));
    }
    if let Ok(listed) = sources.objects.list(&metric_sources(), "", ListOptions::default()).await {
        for metric in metrics(autoscaler) {
            finding = finding.because(served(&listed, &metric));
        }
    }
    for metric in metrics(autoscaler) {
        finding = finding.help(format!("kubectl get --raw '{}'", metric.path(namespace)));
    }
    finding
}

fn metric_sources() -> Resource {
    Resource::new("metrics.corten.dev", "v1alpha1", "metricsources", false)
}

/// A metric of an autoscaler beside CPU and memory.
struct Metric<'a> {
    name: &'a str,
    is_external: bool,
    /// The object that the metric is of; `*` for pods.
    kind: &'a str,
    object: &'a str,
}

impl Metric<'_> {
    /// Returns the path at which the autoscaler reads it.
    fn path(&self, namespace: &str) -> String {
        let name = self.name;
        if self.is_external {
            return format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}");
        }
        let plural = if self.kind.is_empty() { "pods".to_owned() } else { format!("{}s", self.kind.to_lowercase()) };
        format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/{plural}/{}/{name}", self.object)
    }
}

fn metrics(autoscaler: &Value) -> Vec<Metric<'_>> {
    items(autoscaler, "/spec/metrics").filter_map(metric).collect()
}

fn metric(metric: &Value) -> Option<Metric<'_>> {
    let (name, is_external, kind, object) = match text(metric, "/type") {
        "Pods" => ("/pods/metric/name", false, "", "*"),
        "Object" => {
            let kind = text(metric, "/object/describedObject/kind");
            ("/object/metric/name", false, kind, text(metric, "/object/describedObject/name"))
        }
        "External" => ("/external/metric/name", true, "", ""),
        _ => return None,
    };
    Some(Metric { name: text(metric, name), is_external, kind, object })
}

/// Returns which MetricSource has a metric.
fn served(sources: &[Value], metric: &Metric<'_>) -> String {
    let has = |source: &&Value| {
        let mut metrics = items(source, "/spec/metrics");
        metrics.any(|one| text(one, "/name") == metric.name && one.get("resource").is_none() == metric.is_external)
    };
    match sources.iter().find(has) {
        Some(source) => format!("MetricSource {} has the metric {}", corten_meta::name(source), metric.name),
        None => format!("no MetricSource has the metric {}", metric.name),
    }
}

fn limited(autoscaler: &Value, condition: &Value) -> Finding {
    let most = number(autoscaler, "/spec/maxReplicas").unwrap_or_default();
    let least = number(autoscaler, "/spec/minReplicas").unwrap_or(1);
    let place = format!("-n {} {}", corten_meta::namespace(autoscaler), corten_meta::name(autoscaler));
    let cause = "It wants another number of replicas than its limits allow.";
    let finding = Finding::new(cause).because(text(condition, "/message"));
    match text(condition, "/reason") {
        "TooManyReplicas" => {
            finding.because(format!("maxReplicas is {most}")).help(format!("kubectl edit hpa {place}"))
        }
        "TooFewReplicas" => finding.because(format!("minReplicas is {least}")),
        _ => finding,
    }
}
