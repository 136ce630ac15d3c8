//! Approves the certificates that nodes serve their API with.
//!
//! Upstream leaves that to the cluster's owner, because only he knows which names a node may have. Here the Node object
//! says so: a node gets the names and addresses that its own object has, and nothing else. Requests that ask for more
//! stay pending, for a person to look at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use corten_api::Typed;
use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::{Caches, Client, Error};
use corten_meta::{Key, time};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

const SIGNER: &str = "kubernetes.io/kubelet-serving";
const USER_PREFIX: &str = "system:node:";

/// Approves until the shutdown.
pub async fn run(client: Client, shutdown: CancellationToken) -> Result<()> {
    let caches = Caches::new(client.clone(), shutdown.clone());
    let (requests, nodes) = (caches.of::<CertificateSigningRequest>(), caches.of::<Node>());
    caches.synced().await;
    let (mut changed_requests, mut changed_nodes) = (requests.subscribe(), nodes.subscribe());
    loop {
        let more = tokio::select! {
            change = changed_requests.next() => change.is_some(),
            change = changed_nodes.next() => change.is_some(),
            () = shutdown.cancelled() => return Ok(()),
        };
        if !more {
            return Ok(());
        }
        for request in requests.typed_list::<CertificateSigningRequest>("") {
            let name = request.spec.username.as_deref().and_then(|user| user.strip_prefix(USER_PREFIX));
            let node = name.and_then(|name| nodes.typed::<Node>(&Key::new("", name)));
            if is_open(&request) && node.is_some_and(|node| may_have(&request, &node)) {
                match approve(&client, request).await {
                    // Somebody else was faster, or the cache will show a newer version.
                    Err(error) if error.is_conflict() || error.is_not_found() => {}
                    result => result?,
                }
            }
        }
    }
}

fn is_open(request: &CertificateSigningRequest) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    request.spec.signer_name == SIGNER && conditions.is_none_or(Vec::is_empty)
}

async fn approve(client: &Client, request: CertificateSigningRequest) -> Result<(), Error> {
    let mut value = request.to_value();
    let now = time::rfc3339(time::now());
    value["status"]["conditions"] = json!([{
        "type": "Approved", "status": "True", "reason": "AutoApproved",
        "message": "The names are those of the Node object.",
        "lastUpdateTime": now, "lastTransitionTime": now,
    }]);
    client
        .update_subresource::<CertificateSigningRequest>("", request.name(), "approval", &value)
        .await
        .map(|_| tracing::info!(request = request.name(), "approved the serving certificate of a node"))
}

/// Whether the one who asks is the node, asks for itself, and for no name but its own.
fn may_have(request: &CertificateSigningRequest, node: &Node) -> bool {
    let user = format!("{USER_PREFIX}{}", node.name());
    if request.spec.username.as_deref() != Some(user.as_str()) {
        return false;
    }
    let Some(asked) = Asked::parse(&request.spec.request.0) else { return false };
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let mut known: BTreeSet<String> = addresses.map(|address| address.address.clone()).collect();
    known.insert(node.name().to_owned());
    asked.common_name == user
        && asked.organizations == ["system:nodes"]
        && !asked.names.is_empty()
        && asked.names.iter().all(|name| known.contains(name))
}

/// What a request asks for.
struct Asked {
    common_name: String,
    organizations: Vec<String>,
    names: Vec<String>,
}

impl Asked {
    /// None for one that cannot be read, or that asks for names of other forms.
    fn parse(pem: &[u8]) -> Option<Asked> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        let info = &request.certification_request_info;
        let mut names = Vec::new();
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(extensions) = attribute.parsed_attribute() else { continue };
            for extension in &extensions.extensions {
                let ParsedExtension::SubjectAlternativeName(found) = extension.parsed_extension() else { continue };
                for name in &found.general_names {
                    names.push(text(name)?);
                }
            }
        }
        Some(Asked {
            common_name: info.subject.iter_common_name().next()?.as_str().ok()?.to_owned(),
            organizations: info.subject.iter_organization().filter_map(|o| Some(o.as_str().ok()?.to_owned())).collect(),
            names,
        })
    }
}

fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?).to_string()),
            16 => Some(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user: &str, common_name: &str, organization: &str, names: &[&str]) -> CertificateSigningRequest {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        params.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        let pem = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let mut request = CertificateSigningRequest::default();
        request.spec.username = Some(user.to_owned());
        request.spec.request.0 = pem.into_bytes();
        request.spec.signer_name = SIGNER.to_owned();
        request
    }

    #[test]
    fn a_node_gets_its_own_names_and_no_other() {
        let node = Node::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}]}}))
        .unwrap();
        let (me, nodes) = ("system:node:n1", "system:nodes");
        for (user, common_name, organization, names, expected) in [
            (me, me, nodes, &["n1", "10.0.0.1"][..], true),
            (me, me, nodes, &["n1", "10.0.0.2"][..], false),
            (me, me, nodes, &["n2"][..], false),
            (me, me, nodes, &[][..], false),
            (me, "system:node:n2", nodes, &["n1"][..], false),
            (me, me, "system:masters", &["n1"][..], false),
            ("system:node:n2", me, nodes, &["n1"][..], false),
        ] {
            let request = request(user, common_name, organization, names);
            assert_eq!(may_have(&request, &node), expected, "{user} {common_name} {organization} {names:?}");
        }
    }
}
