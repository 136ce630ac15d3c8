//! The names and addresses under which a kubelet may serve its API, and those that no kubelet may have.
//!
//! A node writes its own `status.addresses`. A compromised node must not name itself after the API server, a Service or
//! another machine, so those names are never signed, whatever the Node contains.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use corten_api::AlternativeName;
use corten_meta::address::is_global_unicast;

use crate::cidr::Cidr;

/// The names and addresses of the cluster, which no node may have.
#[derive(Clone, Debug, Default)]
pub struct KubeletServing {
    /// The domain of Services and pods.
    pub cluster_domain: String,
    /// The CIDRs of Services and of pods.
    pub reserved_ranges: Vec<Cidr>,
    /// The addresses of the API server.
    pub reserved_addresses: Vec<IpAddr>,
    /// The names of the API server beside `kubernetes` and `localhost`.
    pub reserved_names: Vec<String>,
}

/// A host name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    Host(String),
    Address(IpAddr),
}

impl Name {
    /// Parses a name from a Node. Host names are compared in lower case.
    pub fn parse(text: &str) -> Name {
        match text.parse::<IpAddr>() {
            Ok(address) => Name::Address(address.to_canonical()),
            Err(_) => Name::Host(text.to_ascii_lowercase()),
        }
    }

    /// Converts a name of a request. Rejects an IP address in a DNS name.
    pub fn requested(name: &AlternativeName) -> Result<Name, String> {
        match name {
            AlternativeName::Dns(text) => match Name::parse(text) {
                Name::Host(name) => Ok(Name::Host(name)),
                Name::Address(address) => Err(format!("{address} is an address and not a host name")),
            },
            AlternativeName::Address(address) => Ok(Name::Address(address.to_canonical())),
            AlternativeName::Email(text) | AlternativeName::Uri(text) => {
                Err(format!("{text} is neither a host name nor an address"))
            }
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Host(name) => f.write_str(name),
            Name::Address(address) => address.fmt(f),
        }
    }
}

/// Returns the names separated by commas.
pub fn listed(names: &BTreeSet<Name>) -> String {
    names.iter().map(Name::to_string).collect::<Vec<_>>().join(",")
}

impl KubeletServing {
    /// Checks that a kubelet may serve under all names of a request.
    pub fn check_all(&self, names: &[AlternativeName]) -> Result<(), String> {
        names.iter().try_for_each(|name| self.check(&Name::requested(name)?))
    }

    /// Checks that a kubelet may serve under the name.
    pub fn check(&self, name: &Name) -> Result<(), String> {
        match self.refusal(name) {
            Some(why) => Err(format!("{name} is never signed for a kubelet: {why}")),
            None => Ok(()),
        }
    }

    /// Returns the reason why no kubelet may serve under the name; none if one may.
    pub fn refusal(&self, name: &Name) -> Option<&'static str> {
        match name {
            Name::Host(name) => self.refusal_of_host(name),
            Name::Address(address) => self.refusal_of_address(*address),
        }
    }

    fn refusal_of_host(&self, name: &str) -> Option<&'static str> {
        let labels: Vec<&str> = name.split('.').collect();
        let is_label = |label: &&str| {
            let allowed = label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            allowed && !label.is_empty()
        };
        let is_below = |domain: &str| name == domain || name.ends_with(&format!(".{domain}"));
        let is_reserved = |reserved: &String| reserved.eq_ignore_ascii_case(name);
        if !labels.iter().all(is_label) {
            return Some("it is not a host name");
        }
        if is_below("localhost") {
            return Some("it is a name of every machine");
        }
        if labels.first() == Some(&"kubernetes") || self.reserved_names.iter().any(is_reserved) {
            return Some("it is a name of the API server");
        }
        if labels.iter().skip(1).any(|label| *label == "svc") || is_below(&self.cluster_domain.to_ascii_lowercase()) {
            return Some("it is a name of Services");
        }
        None
    }

    fn refusal_of_address(&self, address: IpAddr) -> Option<&'static str> {
        if !is_global_unicast(address) {
            return Some("it is not an address of one machine");
        }
        if self.reserved_addresses.iter().any(|reserved| reserved.to_canonical() == address) {
            return Some("it is an address of the API server");
        }
        if self.reserved_ranges.iter().any(|range| range.contains(address)) {
            return Some("it is an address of Services or pods");
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_cluster_are_refused() {
        let serving = super::super::tests::serving();
        for (name, expected) in [
            ("n1", None),
            ("N1.example.com", None),
            ("kubernetes-1", None),
            ("svc", None),
            ("10.0.0.1", None),
            ("fd00::1", None),
            ("kubernetes", Some("it is a name of the API server")),
            ("kubernetes.default", Some("it is a name of the API server")),
            ("Kubernetes.default.svc.cluster.local", Some("it is a name of the API server")),
            ("api.example.com", Some("it is a name of the API server")),
            ("web.prod.svc", Some("it is a name of Services")),
            ("web.prod.svc.cluster.local", Some("it is a name of Services")),
            ("cluster.local", Some("it is a name of Services")),
            ("x.cluster.local", Some("it is a name of Services")),
            ("localhost", Some("it is a name of every machine")),
            ("x.localhost", Some("it is a name of every machine")),
            ("*.example.com", Some("it is not a host name")),
            ("n1.", Some("it is not a host name")),
            ("", Some("it is not a host name")),
            ("10.9.9.9", Some("it is an address of the API server")),
            ("::ffff:10.9.9.9", Some("it is an address of the API server")),
            ("10.96.0.1", Some("it is an address of Services or pods")),
            ("10.96.0.0", Some("it is an address of Services or pods")),
            ("10.244.3.4", Some("it is an address of Services or pods")),
            ("127.0.0.1", Some("it is not an address of one machine")),
            ("::ffff:127.0.0.1", Some("it is not an address of one machine")),
            ("::1", Some("it is not an address of one machine")),
            ("169.254.169.254", Some("it is not an address of one machine")),
            ("fe80::1", Some("it is not an address of one machine")),
            ("0.0.0.0", Some("it is not an address of one machine")),
            ("224.0.0.1", Some("it is not an address of one machine")),
        ] {
            assert_eq!(serving.refusal(&Name::parse(name)), expected, "{name}");
        }
    }

    #[test]
    fn an_address_written_as_a_name_is_none() {
        assert!(Name::requested(&AlternativeName::Dns("10.0.0.1".to_owned())).is_err());
        assert!(Name::requested(&AlternativeName::Uri("spiffe://a".to_owned())).is_err());
        assert_eq!(Name::requested(&AlternativeName::Dns("N1".to_owned())), Ok(Name::Host("n1".to_owned())));
    }
}
