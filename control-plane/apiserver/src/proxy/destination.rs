//! The addresses that the API server connects to for its clients: kubelets, pods and endpoints of Services.
//!
//! Nodes write their own addresses and those of their pods, so the owner of a node controls an address in a status.
//! Invariant: it never leads to this server itself, to local addresses of this machine, or to a Service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use corten_admission::allocation::AddressRange;
use corten_meta::address::is_global_unicast;

use crate::config::Config;

/// Metadata services of clouds, which give credentials to every process of the machine. Those at link-local addresses
/// are excluded with all other link-local ones.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The rules for addresses.
pub struct Destinations {
    own: SocketAddr,
    services: Vec<AddressRange>,
}

impl Destinations {
    pub fn new(config: &Config) -> Destinations {
        Destinations {
            own: SocketAddr::new(config.advertise_address.to_canonical(), config.port),
            services: AddressRange::parse_list(&config.service_cidr).unwrap_or_default(),
        }
    }

    /// Resolves a host to its addresses, all of which must be allowed: a name is not looked up twice.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, port)],
            Err(_) => tokio::net::lookup_host((host, port)).await.map_err(|error| error.to_string())?.collect(),
        };
        match found.iter().all(|address| self.allows(*address)) && !found.is_empty() {
            true => Ok(found),
            false => Err("address not allowed".to_owned()),
        }
    }

    /// Reports whether an address and port are allowed. The kubelet of this machine listens at this server's own
    /// address, at another port.
    fn allows(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        if ip == self.own.ip() {
            return address.port() != self.own.port();
        }
        is_global_unicast(ip) && !METADATA.contains(&ip) && !self.services.iter().any(|range| range.contains(ip))
    }

    /// Reports whether an open connection leads back to this server, which may listen on all addresses of the machine.
    pub fn is_own(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        local.ip().to_canonical() == peer.ip().to_canonical() && peer.port() == self.own.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_of_this_server_and_of_services_are_refused() {
        let advertise_address = "10.0.0.1".parse().unwrap();
        let service_cidr = "10.96.0.0/12,fd00:96::/112".to_owned();
        let destinations = Destinations::new(&Config { advertise_address, service_cidr, ..Config::default() });
        for (host, port, expected) in [
            ("10.0.0.1", 10250, true),
            ("10.0.0.1", 6443, false),
            ("::ffff:10.0.0.1", 6443, false),
            ("10.0.0.2", 6443, true),
            ("10.0.0.2", 10250, true),
            ("fd00::2", 10250, true),
            ("127.0.0.1", 10250, false),
            ("::ffff:127.0.0.1", 10250, false),
            ("localhost", 10250, false),
            ("::1", 10250, false),
            ("0.0.0.0", 10250, false),
            ("169.254.169.254", 80, false),
            ("fd00:ec2::254", 80, false),
            ("fe80::1", 10250, false),
            ("224.0.0.1", 10250, false),
            ("255.255.255.255", 10250, false),
            ("10.96.0.1", 443, false),
            ("fd00:96::1", 443, false),
        ] {
            assert_eq!(destinations.resolve(host, port).await.is_ok(), expected, "{host} {port}");
        }
    }

    #[test]
    fn a_connection_to_another_address_of_this_server_is_detected() {
        let destinations = Destinations::new(&Config::default());
        let at = |address: &str| address.parse().unwrap();
        assert!(destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.9:6443")));
        assert!(!destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.9:10250")));
        assert!(!destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.8:6443")));
    }
}
