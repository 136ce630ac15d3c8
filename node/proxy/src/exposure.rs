//! The external addresses that a Service may have.
//!
//! A user who may write a Service may write `externalIPs`, and would get the traffic of every node and pod to that
//! address: to the API server, to a kubelet, to another Service. So an external address that is a node's is not served,
//! and neither is any address of pods or Services, by whatever field. Load balancers may have the addresses of nodes:
//! their controller chooses those, and the users of Services cannot.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tracing::warn;

use crate::fence::Fence;
use crate::service::{Range, Service, ServiceKey, contains};

/// The Services with external addresses, and the addresses of nodes.
#[derive(Default)]
pub(crate) struct Exposure {
    cluster_cidrs: Vec<Range>,
    nodes: BTreeMap<String, Vec<IpAddr>>,
    /// The Services as their objects have them.
    services: BTreeMap<ServiceKey, Service>,
}

impl Exposure {
    pub fn new(cluster_cidrs: &[Range]) -> Exposure {
        Exposure { cluster_cidrs: cluster_cidrs.to_vec(), ..Exposure::default() }
    }

    /// Updates a node's addresses; returns whether they changed.
    pub fn set_node(&mut self, name: &str, addresses: Option<Vec<IpAddr>>) -> bool {
        let before = match &addresses {
            Some(addresses) => self.nodes.insert(name.to_owned(), addresses.clone()),
            None => self.nodes.remove(name),
        };
        before != addresses
    }

    /// Returns the Services to decide on again.
    pub fn services(&self) -> Vec<(ServiceKey, Service)> {
        self.services.iter().map(|(key, service)| (key.clone(), service.clone())).collect()
    }

    /// Updates a Service; returns it without the addresses that it may not have.
    pub fn set_service(&mut self, key: &ServiceKey, service: Option<Service>, fence: &Fence) -> Option<Service> {
        self.services.remove(key);
        let mut service = service?;
        if service.external_ips.is_empty() && service.load_balancer_ips.is_empty() {
            return Some(service);
        }
        self.services.insert(key.clone(), service.clone());
        let of_cluster =
            |address: IpAddr| fence.holds(address) || self.cluster_cidrs.iter().any(|range| contains(*range, address));
        let refused = |address: IpAddr| {
            let namespace = &key.namespace;
            let name = &key.name;
            warn!(namespace, name, %address, "a Service is not served at an address of a node or of the cluster");
            false
        };
        service.external_ips.retain(|address| !(of_cluster(*address) || self.is_node(*address)) || refused(*address));
        service.load_balancer_ips.retain(|address| !of_cluster(*address) || refused(*address));
        Some(service)
    }

    fn is_node(&self, address: IpAddr) -> bool {
        self.nodes.values().flatten().any(|node| *node == address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;
    use corten_nftables::IpFamily;
    use k8s_openapi::api::core::v1 as core;

    #[test]
    fn addresses_of_nodes_pods_and_services_are_not_served() {
        let json = r#"{"metadata":{"name":"web","namespace":"n"},"spec":{"clusterIP":"10.96.0.7",
            "externalIPs":["192.0.2.1","198.51.100.7","10.96.0.1","10.244.3.4"]},
            "status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"},{"ip":"10.96.0.2"},{"ip":"198.51.100.8"}]}}}"#;
        let object = core::Service::decode(json.as_bytes()).unwrap();
        let service = Service::from_object(&object, IpFamily::V4).unwrap();
        let key = ServiceKey { namespace: "n".to_owned(), name: "web".to_owned() };
        let fence = Fence::new(IpFamily::V4, &[([10, 96, 0, 0].into(), 12)]);
        let mut exposure = Exposure::new(&[([10, 244, 0, 0].into(), 16)]);
        let served = |exposure: &mut Exposure| {
            let found = exposure.set_service(&key, Some(service.clone()), &fence).unwrap();
            let joined = |addresses: &std::collections::BTreeSet<IpAddr>| {
                addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ")
            };
            (joined(&found.external_ips), joined(&found.load_balancer_ips))
        };
        let balanced = "192.0.2.1 198.51.100.8".to_owned();
        assert_eq!(served(&mut exposure), ("192.0.2.1 198.51.100.7".to_owned(), balanced.clone()));
        assert!(exposure.set_node("first", Some(vec!["192.0.2.1".parse().unwrap()])));
        assert_eq!(served(&mut exposure), ("198.51.100.7".to_owned(), balanced));
        assert!(!exposure.set_node("first", Some(vec!["192.0.2.1".parse().unwrap()])));
        assert_eq!(exposure.services().len(), 1);
        assert_eq!(exposure.set_service(&key, None, &fence), None);
        assert!(exposure.services().is_empty());
    }
}
