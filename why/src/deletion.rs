//! Objects that are deleted and stay.

use corten_client::ListOptions;
use corten_meta::Value;

use crate::objects::{self, items, text};
use crate::{Finding, Sources, Subject};

/// Finalizers that Kubernetes knows, and what each waits for.
const FINALIZERS: &[(&str, &str)] = &[
    ("kubernetes.io/pvc-protection", "until no pod uses the claim"),
    ("kubernetes.io/pv-protection", "until no claim is bound to the volume"),
    ("foregroundDeletion", "until the objects that it owns are deleted"),
    ("orphan", "until the garbage collector has orphaned the objects that it owns"),
    ("service.kubernetes.io/load-balancer-cleanup", "until the load balancer is deleted"),
    ("batch.kubernetes.io/job-tracking", "until the Job controller has counted the pod"),
    ("customresourcecleanup.apiextensions.k8s.io", "until all objects of the kind are deleted"),
    ("external-attacher", "until the volume is detached"),
];

/// Explains which finalizer an object waits for, and for what the finalizer waits.
pub async fn explain(sources: Sources<'_>, subject: &Subject, object: &Value) -> Finding {
    let since = text(object, "/metadata/deletionTimestamp");
    let finalizers = corten_meta::finalizers(object);
    let plural = &subject.resource.plural;
    let mut finding = Finding::new(match finalizers.is_empty() {
        true => format!("It is being deleted since {since}, and waits for its node to stop it."),
        false => format!("It is being deleted since {since}, and waits for {}.", finalizers.join(", ")),
    });
    for finalizer in &finalizers {
        let known = FINALIZERS.iter().find(|(name, _)| finalizer.starts_with(name));
        finding = match known {
            Some((_, wait)) => finding.because(format!("{finalizer} waits {wait}")),
            None => finding.because(format!("{finalizer} belongs to the controller that set it; see whether it runs")),
        };
    }
    if plural == "namespaces" {
        finding = namespace(object, finding);
    }
    if plural == "persistentvolumeclaims" {
        finding = users(sources, object, finding).await;
    }
    if plural == "pods" && finalizers.is_empty() {
        let node = text(object, "/spec/nodeName");
        finding = finding
            .help(format!("corten why node/{node}"))
            .help(format!("kubectl delete pod -n {} {} --force", subject.namespace, subject.name));
    }
    finding
}

/// Adds the content that a namespace still has.
fn namespace(object: &Value, mut finding: Finding) -> Finding {
    let conditions = items(object, "/status/conditions").filter(|one| text(one, "/status") == "True");
    for condition in conditions {
        finding = finding.because(text(condition, "/message"));
    }
    finding.help(format!(
        "kubectl api-resources --verbs=list --namespaced -o name | xargs -n1 kubectl get -n {}",
        corten_meta::name(object)
    ))
}

/// Adds the pods that use a claim.
async fn users(sources: Sources<'_>, claim: &Value, mut finding: Finding) -> Finding {
    let namespace = corten_meta::namespace(claim);
    let name = corten_meta::name(claim);
    let pods = sources.objects.list(&objects::pods(), namespace, ListOptions::default()).await.unwrap_or_default();
    let uses = |pod: &&Value| {
        items(pod, "/spec/volumes").any(|volume| text(volume, "/persistentVolumeClaim/claimName") == name)
    };
    for pod in pods.iter().filter(uses) {
        let pod = corten_meta::name(pod);
        finding =
            finding.because(format!("pod {pod} uses it")).help(format!("kubectl delete pod -n {namespace} {pod}"));
    }
    finding
}
