//! Ingresses that lead nowhere.

use std::collections::BTreeSet;

use corten_client::ListOptions;
use corten_meta::Value;

use crate::objects::{self, items, text};
use crate::{Finding, Sources, service};

const DEFAULT: &str = "/metadata/annotations/ingressclass.kubernetes.io~1is-default-class";

pub async fn explain(sources: Sources<'_>, ingress: &Value) -> Vec<Finding> {
    let namespace = corten_meta::namespace(ingress);
    let mut findings = Vec::new();
    findings.extend(class(sources, ingress).await);
    for name in backends(ingress) {
        match sources.objects.get(&objects::services(), namespace, name).await {
            Ok(None) => findings.push(Finding::new(format!("Its backend, Service {name}, does not exist."))),
            Ok(Some(found)) => {
                let stuck = service::endpoints(sources, &found).await;
                findings.extend(
                    stuck.map(|one| Finding { cause: format!("Its backend, Service {name}: {}", one.cause), ..one }),
                );
            }
            Err(_) => {}
        }
    }
    for secret in items(ingress, "/spec/tls").map(|tls| text(tls, "/secretName")).filter(|name| !name.is_empty()) {
        if let Ok(None) = sources.objects.get(&objects::core("secrets"), namespace, secret).await {
            findings.push(
                Finding::new(format!("Its certificate, Secret {secret}, does not exist."))
                    .help(format!("kubectl create secret tls -n {namespace} {secret} --cert=FILE --key=FILE")),
            );
        }
    }
    findings
}

/// Explains an Ingress that no controller serves.
async fn class(sources: Sources<'_>, ingress: &Value) -> Option<Finding> {
    let classes = sources.objects.list(&objects::ingress_classes(), "", ListOptions::default()).await.ok()?;
    let name = text(ingress, "/spec/ingressClassName");
    let known = classes.iter().any(|class| corten_meta::name(class) == name);
    let has_default = classes.iter().any(|class| text(class, DEFAULT) == "true");
    if name.is_empty() && !has_default {
        let names: Vec<&str> = classes.iter().map(corten_meta::name).collect();
        return Some(
            Finding::new("It names no class, and the cluster has no default class.")
                .because(format!("classes: {}", names.join(", ")))
                .help("set spec.ingressClassName"),
        );
    }
    (!name.is_empty() && !known)
        .then(|| Finding::new(format!("Its class {name} does not exist.")).help("kubectl get ingressclass"))
}

fn backends(ingress: &Value) -> BTreeSet<&str> {
    let paths = items(ingress, "/spec/rules").flat_map(|rule| items(rule, "/http/paths"));
    let names = paths.map(|path| text(path, "/backend/service/name"));
    names.chain([text(ingress, "/spec/defaultBackend/service/name")]).filter(|name| !name.is_empty()).collect()
}
