//! The permissions that a write of a ResourceClaim's status needs.
//!
//! To bind a claim (its allocation and reservations) needs permission for `resourceclaims/binding`. To report on the
//! devices of a driver needs permission for `resourceclaims/driver` under the driver's name: for the client's own node,
//! or for any node. Neither subresource is served. This is an admission plugin because it asks the authorizers; a
//! question that only an authorization webhook can answer waits for `validate`.

use std::collections::{BTreeMap, BTreeSet};

use corten_access::{self as access, User, forbidden};
use corten_meta::{FieldError, Path, Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

/// The prefix of the verbs for a claim that is allocated to the node of the ServiceAccount's own pod; the other is for
/// any node.
const ASSOCIATED: &str = "associated-node:";
const ARBITRARY: &str = "arbitrary-node:";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

pub struct ClaimStatus;

/// A permission that a change needs: that for one of the verbs.
struct Permission {
    path: Path,
    changed: &'static str,
    subresource: &'static str,
    verbs: Vec<String>,
    namespace: String,
    name: String,
}

impl Permission {
    fn attributes<'a>(&'a self, user: &'a User, verb: &'a str) -> access::Attributes<'a> {
        access::Attributes {
            group: "resource.k8s.io",
            version: "v1",
            resource: "resourceclaims",
            subresource: self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            ..access::Attributes::resource(user, verb)
        }
    }

    fn refusal(&self, user: &User, reason: &str) -> FieldError {
        let why = forbidden(&self.attributes(user, &self.verbs[0]), reason).message;
        let verbs = match self.subresource {
            "binding" => self.verbs[0].clone(),
            _ => format!("[{}]", self.verbs.join(" ")),
        };
        let changed = self.changed;
        let subresource = self.subresource;
        let detail = format!(
            "changing {changed} requires resource=\"resourceclaims/{subresource}\", verb=\"{verbs}\" permission: {why}"
        );
        FieldError::forbidden(&self.path, detail)
    }

    /// Returns the decision if no authorizer has to wait for it: `Some(None)` if the change is allowed.
    fn decide_now(&self, a: &Attributes<'_>) -> Option<Option<FieldError>> {
        let core = a.target.core;
        let user = a.target.context.user();
        let mut first = None;
        for verb in &self.verbs {
            match core.authorizer.authorize_now(&self.attributes(user, verb))? {
                Ok(_) => return Some(None),
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        Some(Some(self.refusal(user, &first.unwrap_or_default())))
    }

    async fn decide(&self, a: &Attributes<'_>) -> Result<(), FieldError> {
        let core = a.target.core;
        let user = a.target.context.user();
        let mut first = None;
        for verb in &self.verbs {
            match core.authorizer.authorize(&self.attributes(user, verb)).await {
                Ok(_) => return Ok(()),
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        Err(self.refusal(user, &first.unwrap_or_default()))
    }
}

impl Plugin for ClaimStatus {
    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        permissions(a).iter().filter_map(|permission| permission.decide_now(a).flatten()).collect()
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async {
            for permission in permissions(a).iter().filter(|permission| permission.decide_now(a).is_none()) {
                if let Err(error) = permission.decide(a).await {
                    return Err(Status::invalid(&a.target.resource.group_kind(), a.name(), vec![error]));
                }
            }
            Ok(())
        })
    }
}

/// Returns the permissions that a write of a claim's status needs.
fn permissions(a: &Attributes<'_>) -> Vec<Permission> {
    let Some(old) = a.old.as_deref().filter(|_| a.operation == Operation::Update) else { return Vec::new() };
    if !a.is("resource.k8s.io", "resourceclaims", "status") {
        return Vec::new();
    }
    let new = &a.object["status"];
    let old = &old["status"];
    let status = Path::root("status");
    let verb = a.target.context.verb().as_str();
    let mut permissions = Vec::new();
    if new["allocation"] != old["allocation"] || new["reservedFor"] != old["reservedFor"] {
        permissions.push(Permission {
            path: status.child("allocation"),
            changed: "status.allocation or status.reservedFor",
            subresource: "binding",
            verbs: vec![verb.to_owned()],
            namespace: String::new(),
            name: String::new(),
        });
    }
    if new["allocation"].is_object() {
        let is_own = is_on_own_node(a.target.context.user(), &new["allocation"]);
        let prefixes: &[&str] = if is_own { &[ASSOCIATED, ARBITRARY] } else { &[ARBITRARY] };
        let verbs: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{verb}")).collect();
        permissions.extend(changed_drivers(new, old).into_iter().map(|name| Permission {
            path: status.child("devices"),
            changed: "status.devices",
            subresource: "driver",
            verbs: verbs.clone(),
            namespace: a.target.namespace.to_owned(),
            name,
        }));
    }
    permissions
}

/// Returns the drivers whose devices have changed in the status.
fn changed_drivers(new: &Value, old: &Value) -> BTreeSet<String> {
    let devices = |status: &Value| -> BTreeMap<[String; 4], Value> {
        let string = |device: &Value, field: &str| device[field].as_str().unwrap_or_default().to_owned();
        let key = |device: &Value| ["driver", "pool", "device", "shareID"].map(|field| string(device, field));
        let list = status["devices"].as_array();
        list.into_iter().flatten().map(|device| (key(device), device.clone())).collect()
    };
    let new = devices(new);
    let old = devices(old);
    let changed = new.iter().filter(|(key, device)| old.get(*key) != Some(device));
    let removed = old.iter().filter(|(key, _)| !new.contains_key(*key));
    changed.chain(removed).map(|(key, _)| key[0].clone()).collect()
}

/// Reports whether a claim is allocated to a single node, which is the node of the ServiceAccount's pod.
fn is_on_own_node(user: &User, allocation: &Value) -> bool {
    let terms = allocation["nodeSelector"]["nodeSelectorTerms"].as_array();
    let Some([term]) = terms.map(Vec::as_slice) else { return false };
    let fields = term["matchFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let expressions = term["matchExpressions"].as_array().map_or(0, Vec::len);
    let ([field], 0) = (fields, expressions) else { return false };
    let is_name = field["key"] == "metadata.name" && field["operator"] == "In";
    let values = field["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let nodes = user.extra.get(NODE_NAME).map(Vec::as_slice).unwrap_or_default();
    let is_account = user.name.starts_with("system:serviceaccount:");
    matches!((values, nodes), ([value], [node]) if is_name && is_account && value.as_str() == Some(node.as_str()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_of_devices_needs_permission_for_their_drivers() {
        let device = |driver: &str, ready: bool| json!({"driver": driver, "pool": "p", "device": "d", "data": ready});
        let status = |devices: &[&Value]| json!({ "devices": devices });
        let a = device("a", true);
        let b = device("b", true);
        for (new, old, wanted) in [
            (status(&[&a]), status(&[&a]), vec![]),
            (status(&[&a, &b]), status(&[&a]), vec!["b"]),
            (status(&[&device("a", false)]), status(&[&a, &b]), vec!["a", "b"]),
            (json!({}), json!({}), vec![]),
        ] {
            assert_eq!(changed_drivers(&new, &old).into_iter().collect::<Vec<_>>(), wanted, "{new} {old}");
        }
    }

    #[test]
    fn a_pods_own_node_is_the_one_that_its_claim_is_allocated_to() {
        let allocation = |values: Value| {
            let field = json!({"key": "metadata.name", "operator": "In", "values": values});
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}})
        };
        let mut user = User::new("system:serviceaccount:a:b", &[]);
        assert!(!is_on_own_node(&user, &allocation(json!(["n1"]))));
        user.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
        assert!(is_on_own_node(&user, &allocation(json!(["n1"]))));
        assert!(!is_on_own_node(&user, &allocation(json!(["n2"]))));
        assert!(!is_on_own_node(&user, &allocation(json!(["n1", "n2"]))));
        assert!(!is_on_own_node(&User { name: "x".to_owned(), ..user }, &allocation(json!(["n1"]))));
    }
}
