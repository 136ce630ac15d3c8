//! CertificateSigningRequests: those of kubelets and node components are approved, approved ones signed, old ones
//! deleted.
//!
//! Approval of client certificates asks the authorizer whether the requester may have one. [`serving`] approves kubelet
//! serving certificates by the names that a node may serve under. The authorities' keys stay in [`authority`] and sign
//! only requests that [`request`] accepts.

mod authority;
mod cleaner;
mod component;
pub(crate) mod request;
mod serving;
mod signers;

pub use cleaner::CertificateCleaner;
pub use component::NodeComponent;
pub use serving::{KubeletServing, ServingApprover, ServingNamePinner};
pub use signers::{Signers, SigningAuthorities, SigningAuthority};

use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::ByteString;
use corten_api::k8s_openapi::api::authorization::v1::SubjectAccessReview;
use corten_api::k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::{Cache, Caches, Client, Error, WorkQueue};
use corten_meta::Key;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::runtime::workqueue::{enqueue_changes, run_workers};
use authority::Authority;
use request::{KUBELET_CLIENT, Request};

const WORKERS: usize = 4;

/// Approves and signs CertificateSigningRequests.
pub struct CertificateController {
    cache: Arc<Cache>,
    client: Client,
    approves: bool,
    signers: Signers,
}

impl CertificateController {
    pub fn new(caches: &Caches, client: Client, approves: bool, signers: Signers) -> Self {
        CertificateController { cache: caches.of::<CertificateSigningRequest>(), client, approves, signers }
    }

    pub async fn run(self, queue: WorkQueue<Key>, shutdown: CancellationToken) {
        let this = Arc::new(self);
        let cache = this.cache.clone();
        let handle = move |key: Key| {
            let this = this.clone();
            async move { this.handle(&key).await }
        };
        tokio::join!(
            enqueue_changes(cache, queue.clone(), shutdown.clone(), |change| vec![change.key.clone()]),
            run_workers("certificate-controller", queue, WORKERS, shutdown, handle),
        );
    }

    async fn handle(&self, key: &Key) -> Result<Option<Duration>, Error> {
        let Some(signing) = self.cache.typed::<CertificateSigningRequest>(key) else { return Ok(None) };
        let issued = signing.status.as_ref().is_some_and(|status| status.certificate.is_some());
        let has = |kind: &str| conditions(&signing).any(|one| one.type_ == kind);
        if issued || has("Denied") || has("Failed") {
            return Ok(None);
        }
        match (has("Approved"), self.signers.of(&signing.spec.signer_name)) {
            (false, _) if self.approves => self.approve(&signing).await?,
            (true, Some(authority)) => self.sign(&signing, authority).await?,
            _ => {}
        }
        Ok(None)
    }

    /// Approves the request if the authorizer allows it. Tries the recognisers in order: the node's own certificate
    /// first.
    async fn approve(&self, signing: &CertificateSigningRequest) -> Result<(), Error> {
        let Ok(request) = Request::parse(&signing.spec.request.0) else { return Ok(()) };
        for recogniser in recognisers(signing, &request) {
            if self.is_allowed(signing, recogniser.subresource).await? {
                let what = recogniser.what;
                let message = format!("Auto approving {what} certificate after SubjectAccessReview.");
                let mut approved = signing.clone();
                add_condition(&mut approved, "Approved", "AutoApproved", message);
                let value = approved.to_value();
                self.client
                    .of::<CertificateSigningRequest>()
                    .update_subresource("", approved.name(), "approval", &value)
                    .await?;
                return Ok(());
            }
        }
        Ok(())
    }

    async fn is_allowed(&self, signing: &CertificateSigningRequest, subresource: &str) -> Result<bool, Error> {
        let spec = signing.to_value()["spec"].take();
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": spec["username"], "uid": spec["uid"], "groups": spec["groups"], "extra": spec["extra"],
                "resourceAttributes": {
                    "group": "certificates.k8s.io", "version": "*", "resource": "certificatesigningrequests",
                    "subresource": subresource, "verb": "create",
                },
            },
        });
        let review = SubjectAccessReview::from_value(review).map_err(|error| Error::Decode(error.to_string()))?;
        Ok(self.client.create(&review).await?.status.is_some_and(|status| status.allowed))
    }

    /// Signs an approved request, or writes the reason why its signer refuses it.
    async fn sign(&self, signing: &CertificateSigningRequest, authority: &Authority) -> Result<(), Error> {
        let usages = signing.spec.usages.as_deref().unwrap_or_default();
        let checked = Request::parse(&signing.spec.request.0).and_then(|request| {
            self.signers.check(&signing.spec.signer_name, &request, usages)?;
            Ok(request)
        });
        let mut answered = signing.clone();
        match checked {
            Err(message) => add_condition(&mut answered, "Failed", "SignerValidationFailure", message),
            Ok(request) => {
                let pem = authority.sign(&request, usages, signing.spec.expiration_seconds, crate::runtime::now());
                let pem = pem.map_err(|why| Error::Decode(format!("cannot sign {}: {why}", signing.name())))?;
                status_of(&mut answered).certificate = Some(ByteString(pem.into_bytes()));
            }
        }
        self.client.update_status(&answered).await.map(drop)
    }
}

/// A form of request that is approved if the authorizer allows the requester to create the subresource.
struct Recogniser {
    subresource: &'static str,
    what: &'static str,
}

/// Returns the forms that a request has, in the order in which they are tried.
fn recognisers(signing: &CertificateSigningRequest, request: &Request) -> Vec<Recogniser> {
    let spec = &signing.spec;
    let usages = spec.usages.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    if component::is_of_own_node(spec, request) {
        found.push(Recogniser { subresource: "nodecomponentclient", what: "node component client" });
    }
    if spec.signer_name == KUBELET_CLIENT && request.check_kubelet_client(usages).is_ok() {
        if spec.username.as_deref() == Some(request.common_name.as_str()) {
            found.push(Recogniser { subresource: "selfnodeclient", what: "self kubelet client" });
        }
        found.push(Recogniser { subresource: "nodeclient", what: "kubelet client" });
    }
    found
}

fn conditions(signing: &CertificateSigningRequest) -> impl Iterator<Item = &CertificateSigningRequestCondition> {
    signing.status.iter().flat_map(|status| status.conditions.iter().flatten())
}

fn status_of(signing: &mut CertificateSigningRequest) -> &mut CertificateSigningRequestStatus {
    signing.status.get_or_insert_default()
}

fn add_condition(signing: &mut CertificateSigningRequest, kind: &str, reason: &str, message: String) {
    let now = Some(Time(crate::runtime::now()));
    status_of(signing).conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: now.clone(),
        last_transition_time: now,
    });
}
