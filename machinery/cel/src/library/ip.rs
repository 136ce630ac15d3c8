//! The library of IP addresses and networks.

use std::any::Any;
use std::net::IpAddr;

use corten_meta::quote::quote;

use super::{no_overload, own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Opaque, Value};

pub const TABLE: &[Line] = &[
    ("string_to_ip", "ip(string) -> IP", |_, a| Ok(Value::opaque(Ip(parse_ip(text(a, 0)?)?)))),
    ("cidr_ip", "CIDR::ip() -> IP", |_, a| Ok(Value::opaque(Ip(own::<Cidr>(a, 0)?.address)))),
    ("ip_family", "IP::family() -> int", |_, a| Ok(Value::Int(if own::<Ip>(a, 0)?.0.is_ipv4() { 4 } else { 6 }))),
    ("ip_is_canonical", "ip.isCanonical(string) -> bool", |_, a| {
        let text = text(a, 0)?;
        Ok(Value::Bool(parse_ip(text)?.to_string() == **text))
    }),
    ("ip_is_unspecified", "IP::isUnspecified() -> bool", |_, a| Ok(Value::Bool(own::<Ip>(a, 0)?.0.is_unspecified()))),
    ("ip_is_loopback", "IP::isLoopback() -> bool", |_, a| Ok(Value::Bool(own::<Ip>(a, 0)?.0.is_loopback()))),
    ("ip_is_link_local_multicast", "IP::isLinkLocalMulticast() -> bool", |_, a| {
        Ok(Value::Bool(match own::<Ip>(a, 0)?.0 {
            IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
            IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
        }))
    }),
    ("ip_is_link_local_unicast", "IP::isLinkLocalUnicast() -> bool", |_, a| {
        Ok(Value::Bool(is_link_local(own::<Ip>(a, 0)?.0)))
    }),
    ("ip_is_global_unicast", "IP::isGlobalUnicast() -> bool", |_, a| {
        Ok(Value::Bool(corten_meta::address::is_global_unicast(own::<Ip>(a, 0)?.0)))
    }),
    ("is_ip", "isIP(string) -> bool", |_, a| Ok(Value::Bool(parse_ip(text(a, 0)?).is_ok()))),
    ("ip_to_string", "string(IP) -> string", |_, a| Ok(Value::string(own::<Ip>(a, 0)?.0.to_string()))),
    ("string_to_cidr", "cidr(string) -> CIDR", |_, a| Ok(Value::opaque(cidr_of(text(a, 0)?)?))),
    ("cidr_contains_ip_string", "CIDR::containsIP(string) -> bool", |_, a| {
        let other = parse_ip(text(a, 1)?).map_err(|_| no_overload())?;
        Ok(Value::Bool(own::<Cidr>(a, 0)?.contains(other)))
    }),
    ("cidr_contains_ip_ip", "CIDR::containsIP(IP) -> bool", |_, a| {
        Ok(Value::Bool(own::<Cidr>(a, 0)?.contains(own::<Ip>(a, 1)?.0)))
    }),
    ("cidr_contains_cidr_string", "CIDR::containsCIDR(string) -> bool", |_, a| {
        let other = cidr_of(text(a, 1)?).map_err(|_| no_overload())?;
        Ok(Value::Bool(own::<Cidr>(a, 0)?.contains_network(&other)))
    }),
    ("cidr_contains_cidr", "CIDR::containsCIDR(CIDR) -> bool", |_, a| {
        Ok(Value::Bool(own::<Cidr>(a, 0)?.contains_network(own::<Cidr>(a, 1)?)))
    }),
    ("cidr_prefix_length", "CIDR::prefixLength() -> int", |_, a| Ok(Value::Int(own::<Cidr>(a, 0)?.bits.into()))),
    ("cidr_masked", "CIDR::masked() -> CIDR", |_, a| Ok(Value::opaque(own::<Cidr>(a, 0)?.masked()))),
    ("is_cidr", "isCIDR(string) -> bool", |_, a| Ok(Value::Bool(parse_cidr(text(a, 0)?).is_ok()))),
    ("cidr_to_string", "string(CIDR) -> string", |_, a| {
        Ok(Value::string(own::<Cidr>(a, 0)?.to_text().unwrap_or_default()))
    }),
];

#[derive(Debug, PartialEq, Eq)]
struct Ip(IpAddr);

#[derive(Debug, PartialEq, Eq)]
struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Opaque for Ip {
    fn type_name(&self) -> &'static str {
        "net.IP"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Ip>() == Some(self)
    }

    fn size(&self) -> u64 {
        if self.0.is_ipv4() { 4 } else { 16 }
    }

    fn to_text(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

impl Opaque for Cidr {
    fn type_name(&self) -> &'static str {
        "net.CIDR"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Cidr>() == Some(self)
    }

    /// Returns the number of bytes of the prefix.
    fn size(&self) -> u64 {
        u64::from(self.bits).div_ceil(8)
    }

    fn to_text(&self) -> Option<String> {
        Some(format!("{}/{}", self.address, self.bits))
    }
}

impl Cidr {
    fn masked(&self) -> Cidr {
        Cidr { address: corten_meta::names::masked(self.address, self.bits), bits: self.bits }
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && corten_meta::names::masked(address, self.bits) == self.masked().address
    }

    fn contains_network(&self, other: &Cidr) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let (address, zone) = text.split_once('%').map_or((text, false), |(address, _)| (address, true));
    let Ok(ip) = address.parse::<IpAddr>() else {
        return Err(Error::failed(format!(
            "IP Address {text} parse error during conversion from string: ParseAddr({text}): unable to parse IP",
            text = quote(text)
        )));
    };
    if zone {
        return Err(Error::failed(format!("IP address {} with zone value is not allowed", quote(text))));
    }
    if is_mapped(ip) {
        return Err(Error::failed(format!("IPv4-mapped IPv6 address {} is not allowed", quote(text))));
    }
    Ok(ip)
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

fn cidr_of(text: &str) -> Result<Cidr, Error> {
    parse_cidr(text)
        .map_err(|reason| Error::failed(format!("network address parse error during conversion from string: {reason}")))
}

fn parse_cidr(text: &str) -> Result<Cidr, String> {
    let parse_error = |reason: &str| {
        format!(
            "network address parse error during conversion from string: netip.ParsePrefix({}): {reason}",
            quote(text)
        )
    };
    let (address, bits) = text.rsplit_once('/').ok_or_else(|| parse_error("no '/'"))?;
    let ip: IpAddr = address.parse().map_err(|_| parse_error("ParseAddr: unable to parse IP"))?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let leading_zero = bits.len() > 1 && bits.starts_with('0');
    let bits: u8 = bits
        .parse()
        .ok()
        .filter(|bits| *bits <= most && !leading_zero)
        .ok_or_else(|| parse_error("bad bits after slash"))?;
    if is_mapped(ip) {
        return Err(format!("IPv4-mapped IPv6 address {} is not allowed", quote(text)));
    }
    Ok(Cidr { address: ip, bits })
}
