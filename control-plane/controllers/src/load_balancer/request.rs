//! The address, pool and sharing that a Service asks for, by annotations or `spec.loadBalancerIP`.
//!
//! Each annotation is known under the prefix of this project, and under MetalLB's, which manifests of many users have.

use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::Service;
use corten_meta::quote::quote;

use super::Refusal;

const PREFIX: &str = "network.corten.dev/";
const METALLB: &str = "metallb.io/";

/// The names of an annotation: ours without the prefix, and MetalLB's.
struct Names {
    own: &'static str,
    metallb: &'static str,
}

const ADDRESSES: Names = Names { own: "load-balancer-ips", metallb: "loadBalancerIPs" };
const POOL: Names = Names { own: "address-pool", metallb: "address-pool" };
const SHARING_KEY: Names = Names { own: "allow-shared-ip", metallb: "allow-shared-ip" };
const KNOWN: [&Names; 3] = [&ADDRESSES, &POOL, &SHARING_KEY];

/// An IP family of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub fn has(self, address: IpAddr) -> bool {
        (self == Family::Ipv4) == address.is_ipv4()
    }

    pub fn name(self) -> &'static str {
        match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        }
    }
}

/// The request of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// The wanted addresses, at most one for each family.
    pub addresses: Vec<IpAddr>,
    pub pool: Option<String>,
}

impl Request {
    /// Reads the request; it is refused if an annotation is unknown or has no meaning.
    pub fn of(service: &Service) -> Result<Request, Refusal> {
        let annotations = service.metadata.annotations.iter().flatten();
        for (name, _) in annotations {
            if let Some(rest) = name.strip_prefix(PREFIX)
                && !KNOWN.iter().any(|known| known.own == rest)
            {
                let known = KNOWN.map(|known| format!("{PREFIX}{}", known.own)).join(", ");
                return Err(Refusal::of_request(format!("the annotation {name} is not known; known are {known}")));
            }
        }
        let field = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.clone());
        let text = annotation(service, &ADDRESSES).or(field).unwrap_or_default();
        let addresses = text.split(',').map(str::trim).filter(|text| !text.is_empty());
        let parse =
            |text: &str| text.parse().map_err(|_| Refusal::of_request(format!("{} is no address", quote(text))));
        let addresses: Vec<IpAddr> = addresses.map(parse).collect::<Result<_, _>>()?;
        let has_two = |is_ipv4: bool| addresses.iter().filter(|address| address.is_ipv4() == is_ipv4).count() > 1;
        if has_two(true) || has_two(false) {
            return Err(Refusal::of_request(format!("{} has two addresses of one family", quote(&text))));
        }
        Ok(Request { addresses, pool: annotation(service, &POOL) })
    }
}

/// Returns the key of Services that share an address.
pub(super) fn sharing_key(service: &Service) -> Option<String> {
    annotation(service, &SHARING_KEY)
}

fn annotation(service: &Service, names: &Names) -> Option<String> {
    let annotations = service.metadata.annotations.as_ref()?;
    let own = annotations.get(&format!("{PREFIX}{}", names.own));
    let value = own.or_else(|| annotations.get(&format!("{METALLB}{}", names.metallb)))?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Returns the IP families of a Service, in its order.
pub(super) fn families(service: &Service) -> Vec<Family> {
    let names = service.spec.as_ref().and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    match names.is_empty() {
        true => vec![Family::Ipv4],
        false => names.iter().map(|name| if name == "IPv6" { Family::Ipv6 } else { Family::Ipv4 }).collect(),
    }
}
