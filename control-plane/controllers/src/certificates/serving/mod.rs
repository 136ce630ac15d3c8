//! Approves the certificates that kubelets serve their API with.
//!
//! Upstream leaves that to the administrator, who knows which names a node may have. Here a node gets its own name and
//! the addresses that it had when it joined ([`pin`]), and never a name of the cluster ([`names`]). A request for
//! anything else stays pending for the administrator, with an event that gives the reason.

mod names;
mod pin;

pub use names::KubeletServing;
pub use pin::ServingNamePinner;

use std::collections::BTreeSet;

use corten_api::Typed;
use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use serde_json::json;

use super::conditions;
use super::request::{KUBELET_SERVING, Request};
use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch};
use names::{Name, listed};

/// The service account of both controllers.
const ACCOUNT: &str = "corten-serving-approver";
const USER_PREFIX: &str = "system:node:";
const NODES: &str = "system:nodes";

pub struct ServingApprover {
    pub serving: KubeletServing,
}

pub struct Observed {
    request: CertificateSigningRequest,
    node: Node,
    /// The names that were recorded when the node joined.
    pinned: BTreeSet<Name>,
    /// The requested names that are names of other Nodes.
    others: BTreeSet<Name>,
}

impl Controller for ServingApprover {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<CertificateSigningRequest>(), Watch::mapped::<Node>(requests_of_node)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let request: CertificateSigningRequest = view.typed(key).filter(is_open)?;
        let name = request.spec.username.as_deref()?.strip_prefix(USER_PREFIX)?;
        let node: Node = view.typed(&Key::new("", name))?;
        let pinned = pin::pinned(&node)?;
        let mut others = requested(&request);
        others.retain(|other| *other != Name::parse(node.name()) && is_node(view, other));
        Some(Observed { request, node, pinned, others })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        match self.check(observed) {
            Ok(()) => Plan::from(approval(&observed.request)),
            Err(why) => Plan::from(pending(observed, &why)),
        }
    }
}

impl ServingApprover {
    /// Reports whether the node requests the certificate itself and for nothing but its own names; or the reason why
    /// the administrator must decide.
    fn check(&self, observed: &Observed) -> Result<(), String> {
        let spec = &observed.request.spec;
        let request = Request::parse(&spec.request.0)?;
        request.check_kubelet_serving(spec.usages.as_deref().unwrap_or_default())?;
        let is_node = spec.groups.iter().flatten().any(|group| group == NODES);
        if !is_node || spec.username.as_deref() != Some(request.common_name.as_str()) {
            return Err("the subject is not the requester".to_owned());
        }
        request.names.iter().try_for_each(|requested| self.check_name(observed, &Name::requested(requested)?))
    }

    fn check_name(&self, observed: &Observed, name: &Name) -> Result<(), String> {
        self.serving.check(name)?;
        if observed.others.contains(name) {
            return Err(format!("{name} is the name of another node"));
        }
        if *name == Name::parse(observed.node.name()) || observed.pinned.contains(name) {
            return Ok(());
        }
        Err(format!(
            "{name} is not a name that the node had when it joined ({}). To accept its current addresses, remove the \
             annotation {} from the Node; to accept this request alone: kubectl certificate approve {}",
            listed(&observed.pinned),
            pin::PIN,
            observed.request.name()
        ))
    }
}

fn is_open(request: &CertificateSigningRequest) -> bool {
    request.spec.signer_name == KUBELET_SERVING && conditions(request).next().is_none()
}

/// Returns the names in a request. `check` finds those that do not parse.
fn requested(request: &CertificateSigningRequest) -> BTreeSet<Name> {
    let read = corten_api::CertificateRequest::parse(&request.spec.request.0);
    read.map(|read| read.names.iter().filter_map(|name| Name::requested(name).ok()).collect()).unwrap_or_default()
}

fn is_node(view: &dyn View, name: &Name) -> bool {
    view.get(ResourceType::of::<Node>(), &Key::new("", name.to_string())).is_some()
}

/// Approves the request at its resourceVersion; the server sets the times.
fn approval(request: &CertificateSigningRequest) -> Action {
    let condition = json!({
        "type": "Approved", "status": "True", "reason": "AutoApproved",
        "message": "Auto approving kubelet serving certificate: its names are those that the node had when it joined.",
    });
    Action::Patch {
        resource: ResourceType::of::<CertificateSigningRequest>(),
        key: Key::new("", request.name()),
        patch: json!({
            "metadata": {"uid": request.metadata.uid, "resourceVersion": request.metadata.resource_version},
            "status": {"conditions": [condition]},
        }),
        subresource: Some("approval"),
    }
}

/// Returns events for the request and for its node.
fn pending(observed: &Observed, why: &str) -> Vec<Action> {
    let request = observed.request.name();
    let message = format!("The serving certificate {request} of node {} is not approved: {why}", observed.node.name());
    let reason = "ServingCertificatePending";
    vec![Action::warning(&observed.request, reason, message.clone()), Action::warning(&observed.node, reason, message)]
}

/// Returns the keys of a node's pending requests when its recorded names change.
fn requests_of_node(view: &dyn View, change: &Change) -> Vec<Key> {
    let recorded = |object: &Option<std::sync::Arc<Object>>| object.as_ref().and_then(|object| annotation(object));
    if recorded(&change.old) == recorded(&change.new) {
        return Vec::new();
    }
    let user = format!("{USER_PREFIX}{}", change.key.name);
    let mut requests: Vec<CertificateSigningRequest> = view.all("");
    requests.retain(|request| is_open(request) && request.spec.username.as_deref() == Some(user.as_str()));
    requests.iter().map(|request| Key::new("", request.name())).collect()
}

fn annotation(node: &Object) -> Option<String> {
    let node = node.value();
    node.pointer("/metadata/annotations")?.get(pin::PIN).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests;
