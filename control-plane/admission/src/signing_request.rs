//! Signing requests: the server, never the client, writes the requesting user; and only a user with permission for the
//! signer may set the certificate.

use corten_access as access;
use corten_meta::Status;
use corten_meta::quote::quote;
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;
use crate::door::Target;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";

pub struct SigningRequest;

impl Plugin for SigningRequest {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.creates(GROUP, PLURAL) {
                let user = a.target.context.user().to_value();
                for field in ["username", "uid", "groups", "extra"] {
                    if let Some(spec) = a.object.get_mut("spec").and_then(|s| s.as_object_mut()) {
                        match user.get(field) {
                            Some(value) => spec.insert(field.to_owned(), value.clone()),
                            None => spec.remove(field),
                        };
                    }
                }
            }
            Ok(())
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation != Operation::Update || !a.is(GROUP, PLURAL, "status") {
                return Ok(());
            }
            let old = a.old.as_deref().and_then(|o| o.pointer("/status/certificate"));
            if old != a.object.pointer("/status/certificate") {
                let signer = a.object.pointer("/spec/signerName").and_then(|s| s.as_str()).unwrap_or_default();
                check_signer(&a.target, "sign", signer).await?;
            }
            Ok(())
        })
    }
}

/// Checks that the user may act for a signer: by its name, or for its domain.
pub async fn check_signer(target: &Target<'_>, verb: &str, signer: &str) -> Result<(), Status> {
    let domain = signer.split('/').next().unwrap_or_default();
    let user = target.context.user();
    for name in [signer, &format!("{domain}/*")] {
        let attributes = access::Attributes {
            group: "certificates.k8s.io",
            resource: "signers",
            name,
            ..access::Attributes::resource(user, verb)
        };
        if target.core.authorizer.authorize(&attributes).await.is_ok() {
            return Ok(());
        }
    }
    let why = format!("user not permitted to {verb} requests with signerName {}", quote(signer));
    Err(Status::forbidden(&target.resource.group_resource(), target.name, &why))
}
