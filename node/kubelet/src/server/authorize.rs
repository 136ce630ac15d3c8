//! Who may call the node API: the API server by its certificate, administrators by their group, and everyone
//! else whom the API allows the matching subresource of this Node (as upstream's webhook mode does).

use corten_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use http::Method;
use rustls::ServerConnection;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::State;

/// The name in the API server's client certificate.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const ADMINISTRATORS: &str = "system:masters";

/// The identity of a verified client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// The user of the connection; `None` without a client certificate.
pub fn user(connection: &ServerConnection) -> Option<User> {
    let certificate = connection.peer_certificates()?.first()?;
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    Some(User {
        name: subject.iter_common_name().next().and_then(text)?,
        groups: subject.iter_organization().filter_map(text).collect(),
    })
}

/// `Ok` if the user may; otherwise the reason.
pub async fn authorize(state: &State, user: &User, method: &Method, path: &str) -> Result<(), String> {
    if user.name == API_SERVER || user.groups.iter().any(|group| group == ADMINISTRATORS) {
        return Ok(());
    }
    let node = &state.services.config.node_name;
    let (verb, subresource) = (verb(method), subresource(path));
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.to_owned()),
                version: Some("v1".into()),
                resource: Some("nodes".into()),
                subresource: Some(subresource.to_owned()),
                name: Some(node.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let forbidden =
        format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{subresource}])", user.name);
    match state.services.client.create(&review).await {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => Ok(()),
        Ok(_) => Err(forbidden),
        Err(error) => Err(format!("{forbidden}: {error}")),
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// The subresource of the Node that a path belongs to; what runs in containers is `proxy`.
fn subresource(path: &str) -> &'static str {
    let under = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}/"));
    if under("/stats") {
        "stats"
    } else if under("/metrics") {
        "metrics"
    } else if under("/logs") {
        "log"
    } else if under("/healthz") {
        "healthz"
    } else if under("/configz") {
        "configz"
    } else if path == "/pods" || under("/runningpods") {
        "pods"
    } else {
        "proxy"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_belong_to_subresources() {
        for (path, expected) in [
            ("/stats/summary", "stats"),
            ("/metrics", "metrics"),
            ("/metricsx", "proxy"),
            ("/pods", "pods"),
            ("/exec/ns/p/c", "proxy"),
            ("/containerLogs/ns/p/c", "proxy"),
            ("/healthz", "healthz"),
        ] {
            assert_eq!(subresource(path), expected, "{path}");
        }
        assert_eq!([verb(&Method::GET), verb(&Method::POST)], ["get", "create"]);
    }
}
