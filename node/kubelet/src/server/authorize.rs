//! The attributes of a request to the kubelet's API: the user of a certificate, the verb, and the subresources of the
//! Node that match the path. Pure; `access` reviews them.

use http::Method;
use rustls::ServerConnection;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The user of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// Returns the user of the connection; `None` without a client certificate.
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

pub fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// Returns the subresources of the Node that match a path; one of them must be allowed: a narrow one where there is
/// one, and the older wide one. Commands in containers need `proxy`.
pub fn subresources(path: &str) -> Vec<&'static str> {
    let under = |prefix: &str| path == prefix || path.starts_with(&format!("{prefix}/"));
    let narrow = [("/pods", "pods"), ("/healthz", "healthz"), ("/configz", "configz"), ("/runningpods", "pods")];
    let wide = [("/stats", "stats"), ("/metrics", "metrics"), ("/logs", "log"), ("/checkpoint", "checkpoint")];
    let find = |table: &[(&str, &'static str)]| table.iter().find(|(prefix, _)| under(prefix)).map(|(_, name)| *name);
    find(&narrow).into_iter().chain([find(&wide).unwrap_or("proxy")]).collect()
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
            ("/pods", "pods proxy"),
            ("/runningpods/", "pods proxy"),
            ("/exec/ns/p/c", "proxy"),
            ("/containerLogs/ns/p/c", "proxy"),
            ("/healthz", "healthz proxy"),
            ("/configz", "configz proxy"),
            ("/logs/messages", "log"),
            ("/checkpoint/ns/p/c", "checkpoint"),
        ] {
            assert_eq!(subresources(path).join(" "), expected, "{path}");
        }
        assert_eq!([verb(&Method::GET), verb(&Method::POST)], ["get", "create"]);
    }
}
