//! Which addresses the API server connects to for its clients: kubelets, pods and endpoints of Services.
//!
//! Nodes write their own addresses and those of their pods, so an address in a status is the word of whoever holds the
//! node. Invariant: it never leads to this server itself, to what is local to this machine, or to a Service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use corten_meta::address::is_global_unicast;

use crate::allocation::AddressRange;
use crate::config::Config;

/// Services of clouds that hand credentials to whoever asks from the machine. Those at link-local addresses are
/// excluded with all others.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The rules.
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

    /// The addresses of a host, all of which must be allowed: a name is not looked up twice.
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

    /// Whether an address and port may be connected to. The kubelet of this machine listens at this server's own
    /// address, at another port.
    fn allows(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        if ip == self.own.ip() {
            return address.port() != self.own.port();
        }
        is_global_unicast(ip) && !METADATA.contains(&ip) && !self.services.iter().any(|range| range.contains(ip))
    }

    /// Whether a connection that was made leads back here: this server may listen on all addresses of the machine.
    pub fn is_own(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        local.ip().to_canonical() == peer.ip().to_canonical() && peer.port() == self.own.port()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_status_leads_neither_here_nor_to_services() {
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
    fn a_connection_to_another_address_of_this_machine_is_found_out() {
        let destinations = Destinations::new(&Config::default());
        let at = |text: &str| text.parse().unwrap();
        assert!(destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.9:6443")));
        assert!(!destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.9:10250")));
        assert!(!destinations.is_own(at("10.0.0.9:40000"), at("10.0.0.8:6443")));
    }
}
