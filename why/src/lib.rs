//! Explains why an object is not as it should be: the cause first, the evidence for it, then the command that helps.
//!
//! [`explain`] reads an object and the objects around it as the user who asks, and returns [`Finding`]s. Each kind has
//! its own file. [`explain_access`] explains a request that is denied, [`explain_connection`] a connection between pods,
//! [`explain_lookup`] a name. It only reads: an explanation never changes the cluster, and it shows no more than the user may read.

mod access;
mod autoscaler;
mod claim;
mod connection;
mod deletion;
mod dns;
mod events;
mod generic;
mod ingress;
mod node;
mod objects;
mod pod;
mod policy;
mod route;
mod service;
mod snapshot;
#[cfg(test)]
mod tests;
mod workload;

use std::fmt;

use corten_client::{Error, Resource};
use corten_meta::Value;
use futures::future::BoxFuture;
use serde::Serialize;

pub use access::{Access, Target, explain as explain_access, explain_event};
pub use connection::{Connection, explain as explain_connection};
pub use dns::{DEFAULT_DOMAIN, Lookup, explain as explain_lookup};
pub use objects::{ClientReader, Reader, find_resource};

/// One cause, the evidence for it, and the commands that help.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub cause: String,
    pub evidence: Vec<String>,
    pub help: Vec<String>,
}

impl Finding {
    pub(crate) fn new(cause: impl Into<String>) -> Finding {
        Finding { cause: cause.into(), ..Finding::default() }
    }

    pub(crate) fn because(mut self, evidence: impl Into<String>) -> Finding {
        let evidence = evidence.into();
        if !evidence.is_empty() {
            self.evidence.push(evidence);
        }
        self
    }

    pub(crate) fn help(mut self, command: impl Into<String>) -> Finding {
        self.help.push(command.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.cause)?;
        for evidence in &self.evidence {
            writeln!(f, "  {}", evidence.replace('\n', "\n  "))?;
        }
        if !self.help.is_empty() {
            writeln!(f, "What helps:")?;
        }
        for help in &self.help {
            writeln!(f, "  {help}")?;
        }
        Ok(())
    }
}

/// The scheduler's own reckoning about a pod without a node.
pub trait Placement: Send + Sync {
    /// Returns the scheduler's explanation as text.
    fn explain<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<String, String>>;
}

/// The object to explain.
#[derive(Clone, Debug)]
pub struct Subject {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
}

/// The readers that explanations use.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub objects: &'a dyn Reader,
    pub placement: &'a dyn Placement,
}

/// Explains an object. An object that is as it should be has no findings.
pub async fn explain(sources: Sources<'_>, subject: &Subject) -> Result<Vec<Finding>, Error> {
    let object = sources.objects.get(&subject.resource, &subject.namespace, &subject.name).await?;
    let Some(object) = object else {
        return Ok(vec![missing(subject)]);
    };
    let mut findings = Vec::new();
    if corten_meta::deletion_timestamp(&object).is_some() {
        findings.push(deletion::explain(sources, subject, &object).await);
    }
    findings.extend(of_kind(sources, subject, &object).await);
    if findings.is_empty() {
        findings = generic::explain(&object, &events::warnings(sources, &object).await);
    }
    Ok(findings)
}

fn missing(subject: &Subject) -> Finding {
    let scope = match subject.namespace.is_empty() {
        true => String::new(),
        false => format!(" in namespace {}", subject.namespace),
    };
    Finding::new(format!("There is no {} {}{scope}.", subject.resource.plural, subject.name))
        .help(format!("kubectl get {} -A", subject.resource.plural))
}

/// Explains by the rules of the kind; kinds without rules have no findings here.
fn of_kind<'a>(sources: Sources<'a>, subject: &'a Subject, object: &'a Value) -> BoxFuture<'a, Vec<Finding>> {
    let group = subject.resource.group.as_str();
    match (group, subject.resource.plural.as_str()) {
        ("", "pods") => Box::pin(pod::explain(sources, object)),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") | ("", "replicationcontrollers") => {
            Box::pin(workload::explain(sources, subject, object))
        }
        ("batch", "jobs") => Box::pin(workload::explain_job(sources, object)),
        ("", "persistentvolumeclaims") => Box::pin(claim::explain(sources, object)),
        ("snapshot.storage.k8s.io", "volumesnapshots") => Box::pin(snapshot::explain(sources, object)),
        ("", "services") => Box::pin(service::explain(sources, object)),
        ("", "nodes") => Box::pin(async move { node::explain(object) }),
        ("networking.k8s.io", "ingresses") => Box::pin(ingress::explain(sources, object)),
        ("gateway.networking.k8s.io", _) => Box::pin(async move { route::explain(object) }),
        ("autoscaling", "horizontalpodautoscalers") => Box::pin(autoscaler::explain(sources, object)),
        _ => Box::pin(async { Vec::new() }),
    }
}
