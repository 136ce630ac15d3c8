//! The components of a node that read the API under identities of their own, beside the kubelet, and the rule for their
//! certificates.
//!
//! A component's identity reads fewer fields of a pod than the kubelet's, but of the whole cluster. So the two are
//! separate, and a node must never get the certificate of another node's component.

use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;

use super::request::{API_CLIENT, Request};

const NODE_PREFIX: &str = "system:node:";
const USAGES: [&str; 2] = ["client auth", "digital signature"];

/// A component of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeComponent {
    /// Pod routes and network policies.
    Network,
    /// The Service proxy.
    Proxy,
    /// Cluster DNS.
    Dns,
    /// The data half of Gateways and Ingresses.
    Edge,
    /// The controller loops of the node's own storage driver.
    Storage,
}

impl NodeComponent {
    pub const ALL: [NodeComponent; 5] =
        [NodeComponent::Network, NodeComponent::Proxy, NodeComponent::Dns, NodeComponent::Edge, NodeComponent::Storage];

    pub fn name(self) -> &'static str {
        match self {
            NodeComponent::Network => "network",
            NodeComponent::Proxy => "proxy",
            NodeComponent::Dns => "dns",
            NodeComponent::Edge => "edge",
            NodeComponent::Storage => "storage",
        }
    }

    /// Returns the group of this component on all nodes, which RBAC binds to.
    pub fn group(self) -> String {
        format!("system:corten:{}", self.name())
    }

    /// Returns the user name of this component on a node.
    pub fn user(self, node: &str) -> String {
        format!("{}:{node}", self.group())
    }
}

/// Reports whether a node requests a client certificate for one of its own components, and for nothing else.
pub fn is_of_own_node(spec: &CertificateSigningRequestSpec, request: &Request) -> bool {
    let Some(node) = spec.username.as_deref().and_then(|user| user.strip_prefix(NODE_PREFIX)) else { return false };
    let is_subject = |one: NodeComponent| {
        request.organizations == [one.group()] && request.common_name == one.user(node) && !request.has_other_attributes
    };
    let mut usages = spec.usages.clone().unwrap_or_default();
    usages.sort_unstable();
    spec.signer_name == API_CLIENT
        && usages == USAGES
        && request.alternative_names.is_none()
        && NodeComponent::ALL.into_iter().any(is_subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    /// Returns a request of node n1 for a subject and names.
    fn request_of(subject: &[(DnType, &str)], names: &[&str]) -> (CertificateSigningRequestSpec, Request) {
        let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in subject {
            params.distinguished_name.push(kind.clone(), *text);
        }
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        let spec = CertificateSigningRequestSpec {
            signer_name: API_CLIENT.to_owned(),
            username: Some("system:node:n1".to_owned()),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        };
        (spec, Request::parse(pem.as_bytes()).unwrap())
    }

    #[test]
    fn a_node_gets_the_certificates_of_its_own_components_and_no_other() {
        let o = DnType::OrganizationName;
        let cn = DnType::CommonName;
        for component in NodeComponent::ALL {
            let (group, user) = (component.group(), component.user("n1"));
            let (spec, request) = request_of(&[(o.clone(), &group), (cn.clone(), &user)], &[]);
            assert!(is_of_own_node(&spec, &request), "{user}");
        }
        let network = (o.clone(), "system:corten:network");
        let own = (cn.clone(), "system:corten:network:n1");
        for (subject, names) in [
            (vec![network.clone(), (cn.clone(), "system:corten:network:n2")], &[][..]),
            (vec![network.clone(), (cn.clone(), "system:corten:proxy:n1")], &[]),
            (vec![network.clone(), (cn.clone(), "system:node:n1")], &[]),
            (vec![(o.clone(), "system:masters"), own.clone()], &[]),
            (vec![(o.clone(), "system:corten:other"), (cn, "system:corten:other:n1")], &[]),
            (vec![own.clone()], &[]),
            (vec![network.clone(), own.clone(), (DnType::OrganizationalUnitName, "x")], &[]),
            (vec![network.clone(), own.clone()], &["example.com"]),
        ] {
            let (spec, request) = request_of(&subject, names);
            assert!(!is_of_own_node(&spec, &request), "{subject:?} {names:?}");
        }
        let (spec, request) = request_of(&[network, own], &[]);
        assert!(is_of_own_node(&spec, &request));
        let text = |text: &str| text.to_owned();
        for other in [
            CertificateSigningRequestSpec { username: Some(text("system:node:n2")), ..spec.clone() },
            CertificateSigningRequestSpec { username: Some(text("n1")), ..spec.clone() },
            CertificateSigningRequestSpec { username: None, ..spec.clone() },
            CertificateSigningRequestSpec { usages: Some(vec![text("client auth"), text("any")]), ..spec.clone() },
            CertificateSigningRequestSpec { signer_name: text("kubernetes.io/legacy-unknown"), ..spec.clone() },
        ] {
            assert!(!is_of_own_node(&other, &request), "{other:?}");
        }
    }
}
