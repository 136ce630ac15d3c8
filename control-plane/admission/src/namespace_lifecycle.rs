//! NamespaceLifecycle: an object cannot be created in a namespace that does not exist or is being deleted, and the
//! namespaces that the cluster needs cannot be deleted.

use corten_meta::quote::quote;
use corten_meta::{GroupResource, Status};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

pub struct NamespaceLifecycle;

impl Plugin for NamespaceLifecycle {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(check_namespace(a))
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation == Operation::Delete && a.is("", "namespaces", "") && IMMORTAL.contains(&a.target.name) {
                return Err(a.forbidden("this namespace may not be deleted"));
            }
            Ok(())
        })
    }
}

async fn check_namespace(a: &mut Attributes<'_>) -> Result<(), Status> {
    let namespace = a.target.namespace;
    // An access review may be for any namespace, also one that does not exist.
    let is_review = a.is("authorization.k8s.io", "localsubjectaccessreviews", "");
    if a.operation != Operation::Create || namespace.is_empty() || is_review {
        return Ok(());
    }
    let wrong = corten_meta::names::path_segment_name(namespace);
    if !wrong.is_empty() {
        return Err(Status::internal(format!(
            "invalid resource name {namespace}: [{}]",
            wrong.join(" "),
            namespace = quote(namespace)
        )));
    }
    let core = a.target.core;
    // Read from the store and not from the cache: no object may be created in a namespace that was just deleted.
    let missing = || {
        let resource = GroupResource { group: String::new(), resource: "namespaces".to_owned() };
        Status::not_found(&resource, namespace)
    };
    let found = core.objects.read("", "namespaces", "", namespace).await?.ok_or_else(missing)?;
    if found.header.deletion_timestamp.is_some() {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = a.forbidden(why);
        let cause = corten_meta::Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        };
        status.details.get_or_insert_default().causes.push(cause);
        return Err(status);
    }
    Ok(())
}
