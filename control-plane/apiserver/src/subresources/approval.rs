//! `approval` of a signing request: the Approved and Denied conditions, for those who may approve its signer.

use corten_meta::{Status, Value};
use serde_json::json;

use crate::authorization::{Attributes, authorize};
use crate::handlers::Target;

/// Whether the user may approve this request's signer, which never changes.
pub async fn check(target: &Target<'_>) -> Result<(), Status> {
    let request = target.server.registry.get(target.resource, target.namespace, target.name).await?;
    let signer = request.value();
    let signer = signer.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default();
    check_signer(target, "approve", signer).await
}

/// Takes the approval conditions from the body.
pub fn conditions<'a>(target: &'a Target<'_>) -> impl Fn(Value, &Value) -> Result<Value, Status> + Send + Sync + 'a {
    move |new, old| {
        // Labels and annotations may be written with the approval; what only the server writes is restored later.
        let mut object = old.clone();
        object["metadata"] = new["metadata"].clone();
        let now: Value = corten_meta::time::rfc3339(target.context.now).into();
        let mut wanted = new.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        for condition in &mut wanted {
            for field in ["lastUpdateTime", "lastTransitionTime"] {
                if condition.get(field).is_none_or(Value::is_null) {
                    condition[field] = now.clone();
                }
            }
        }
        corten_meta::set(&mut object, "/status/conditions", json!(wanted));
        Ok(object)
    }
}

/// Whether the user may act for a signer: by its name, or for its whole domain.
pub async fn check_signer(target: &Target<'_>, verb: &str, signer: &str) -> Result<(), Status> {
    let domain = signer.split('/').next().unwrap_or_default();
    let user = &target.context.user;
    for name in [signer, &format!("{domain}/*")] {
        let attributes =
            Attributes { group: "certificates.k8s.io", resource: "signers", name, ..Attributes::resource(user, verb) };
        if authorize(target.server, &attributes).await.is_ok() {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(Status::forbidden(&target.resource.group_resource(), target.name, &why))
}
