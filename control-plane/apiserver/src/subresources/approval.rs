//! `approval` of a signing request: the Approved and Denied conditions, for those who may approve its signer.

use corten_meta::{Status, Value};
use serde_json::json;

use crate::authorization::{Attributes, authorize};
use crate::handlers::Target;

/// Takes the approval conditions from the body, after checking that the user may approve this signer.
pub fn conditions<'a>(target: &'a Target<'_>) -> impl Fn(Value, &Value) -> Result<Value, Status> + Send + Sync + 'a {
    move |new, old| {
        let signer = old.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default();
        check_signer(target, "approve", signer)?;
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
pub fn check_signer(target: &Target<'_>, verb: &str, signer: &str) -> Result<(), Status> {
    let domain = signer.split('/').next().unwrap_or_default();
    let wildcard = format!("{domain}/*");
    let user = &target.context.user;
    let asks = |name: &str| {
        let attributes =
            Attributes { group: "certificates.k8s.io", resource: "signers", name, ..Attributes::resource(user, verb) };
        authorize(target.server, &attributes).is_ok()
    };
    if asks(signer) || asks(&wildcard) {
        return Ok(());
    }
    let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
    Err(Status::forbidden(&target.resource.group_resource(), target.name, &why))
}
