//! BGPPeer: a router that nodes announce the addresses of load balancers to, as the nodes read it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use corten_meta::{Selector, Value};

/// The plural name of the resource.
pub const BGP_PEERS: &str = "bgppeers";
/// The namespace of the Secrets with passwords of peers. Every node may read it.
pub const BGP_NAMESPACE: &str = "corten-bgp";

/// A router.
#[derive(Clone, Debug)]
pub struct BgpPeer {
    pub name: String,
    pub address: IpAddr,
    pub port: u16,
    pub peer_as: u32,
    pub local_as: u32,
    pub source: Option<IpAddr>,
    pub router_id: Option<Ipv4Addr>,
    pub hold_time: u16,
    pub restart_time: u16,
    pub ttl_security: bool,
    /// The name of the Secret with the password.
    pub password_secret: Option<String>,
    pub bfd: Option<Bfd>,
    node_selectors: Vec<Selector>,
}

/// The settings of Bidirectional Forwarding Detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bfd {
    pub transmit_interval: Duration,
    pub receive_interval: Duration,
    pub detect_multiplier: u8,
}

impl Bfd {
    fn of(settings: &Value) -> Result<Option<Bfd>, String> {
        if !settings.is_object() {
            return Ok(None);
        }
        let number = |field: &str, default: u64, range: RangeInclusive<u64>| {
            let number = settings[field].as_u64().unwrap_or(default);
            match range.contains(&number) {
                true => Ok(number),
                false => Err(format!("spec.bfd.{field} is not between {} and {}", range.start(), range.end())),
            }
        };
        Ok(Some(Bfd {
            transmit_interval: Duration::from_millis(number("transmitInterval", 300, 10..=60_000)?),
            receive_interval: Duration::from_millis(number("receiveInterval", 300, 10..=60_000)?),
            detect_multiplier: number("detectMultiplier", 3, 1..=255)? as u8,
        }))
    }
}

impl BgpPeer {
    /// Reads a peer; an error names the first field that has no meaning.
    pub fn of(object: &Value) -> Result<BgpPeer, String> {
        let spec = &object["spec"];
        let number = |field: &str, default: u64| spec[field].as_u64().unwrap_or(default);
        let small = |field: &str, default: u16| {
            u16::try_from(number(field, default.into())).map_err(|_| format!("spec.{field} is too large"))
        };
        let asn = |field: &str| match u32::try_from(number(field, 0)) {
            Ok(0) | Err(_) => Err(format!("spec.{field} is no AS number")),
            Ok(asn) => Ok(asn),
        };
        let selectors = spec["nodeSelectors"].as_array().into_iter().flatten();
        let node_selectors: Result<Vec<Selector>, _> = selectors.map(Selector::from_label_selector).collect();
        Ok(BgpPeer {
            name: corten_meta::name(object).to_owned(),
            address: address(spec, "peerAddress")?.ok_or("spec.peerAddress is empty")?,
            port: small("peerPort", 179)?,
            peer_as: asn("peerASN")?,
            local_as: asn("myASN")?,
            source: address(spec, "sourceAddress")?,
            router_id: match address(spec, "routerID")? {
                Some(IpAddr::V6(_)) => return Err("spec.routerID is no IPv4 address".to_owned()),
                Some(IpAddr::V4(id)) => Some(id),
                None => None,
            },
            hold_time: small("holdTimeSeconds", 90)?.max(3),
            restart_time: small("gracefulRestartSeconds", 120)?.min(4095),
            ttl_security: spec["ttlSecurity"].as_bool().unwrap_or(false),
            password_secret: spec["passwordSecret"].as_str().filter(|name| !name.is_empty()).map(str::to_owned),
            bfd: Bfd::of(&spec["bfd"])?,
            node_selectors: node_selectors.map_err(|error| format!("spec.nodeSelectors: {error}"))?,
        })
    }

    /// Reports whether a node with these labels has a session with the router.
    pub fn selects(&self, node_labels: &BTreeMap<String, String>) -> bool {
        self.node_selectors.is_empty() || self.node_selectors.iter().any(|selector| selector.matches(node_labels))
    }
}

fn address(spec: &Value, field: &str) -> Result<Option<IpAddr>, String> {
    match spec[field].as_str().unwrap_or_default() {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| format!("spec.{field}: {} is no IP address", corten_meta::quote::quote(text))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_peer_has_defaults_and_a_bad_field_is_named() {
        let peer = |spec: Value| BgpPeer::of(&json!({"metadata": {"name": "r"}, "spec": spec}));
        let good = peer(json!({"peerAddress": "192.0.2.1", "peerASN": 64500, "myASN": 4_200_000_000_u64})).unwrap();
        assert_eq!((good.port, good.hold_time, good.restart_time), (179, 90, 120));
        assert!(good.selects(&BTreeMap::new()));
        assert_eq!(good.bfd, None);
        let with_bfd = |bfd: Value| peer(json!({"peerAddress": "::1", "peerASN": 1, "myASN": 1, "bfd": bfd}));
        let defaults = with_bfd(json!({})).unwrap().bfd.unwrap();
        assert_eq!((defaults.transmit_interval.as_millis(), defaults.detect_multiplier), (300, 3));
        let zero = with_bfd(json!({"detectMultiplier": 0})).unwrap_err();
        assert_eq!(zero, "spec.bfd.detectMultiplier is not between 1 and 255");
        let error = |spec: Value| peer(spec).unwrap_err();
        assert_eq!(error(json!({"peerAddress": "router"})), "spec.peerAddress: \"router\" is no IP address");
        assert_eq!(error(json!({"peerAddress": "::1"})), "spec.peerASN is no AS number");
    }
}
