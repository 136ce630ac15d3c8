//! The rules for IP addresses and CIDRs in API fields. Old fields have a looser rule ("legacy"), new ones require the
//! canonical form.

use std::net::{IpAddr, Ipv4Addr};

const NOT_AN_ADDRESS: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const NOT_A_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

/// Validates an IP address in canonical form.
pub fn ip(text: &str) -> Vec<String> {
    let errors = ip_legacy(text);
    if !errors.is_empty() {
        return errors;
    }
    match text.parse::<IpAddr>() {
        Ok(address) if address.to_string() != text => {
            vec![format!("must be in canonical form ({})", crate::quote::quote(&address.to_string()))]
        }
        _ => Vec::new(),
    }
}

/// Validates an IP address in an old field: not necessarily canonical, without leading zeros and not IPv4-mapped.
pub fn ip_legacy(text: &str) -> Vec<String> {
    let Some(address) = parse_sloppy(text) else {
        return vec![NOT_AN_ADDRESS.into()];
    };
    let mut errors = Vec::new();
    if text.parse::<IpAddr>().is_err() {
        errors.push("must not have leading 0s".into());
    }
    if is_mapped(&address) {
        errors.push("must not be an IPv4-mapped IPv6 address".into());
    }
    errors
}

/// Validates a CIDR in canonical form.
pub fn cidr(text: &str) -> Vec<String> {
    let errors = cidr_legacy(text);
    if !errors.is_empty() {
        return errors;
    }
    let canonical = parse_cidr(text).map(|(address, bits)| format!("{address}/{bits}"));
    match canonical {
        Some(canonical) if canonical != text => {
            vec![format!("must be in canonical form ({})", crate::quote::quote(&canonical))]
        }
        _ => Vec::new(),
    }
}

/// Validates a CIDR in an old field: no leading zeros, not IPv4-mapped, no bits beyond the prefix.
pub fn cidr_legacy(text: &str) -> Vec<String> {
    let Some((address, bits)) = parse_cidr(text) else {
        return vec![NOT_A_CIDR.into()];
    };
    let (host, prefix) = text.split_once('/').unwrap_or((text, ""));
    if host.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) {
        return vec!["must not have leading 0s in IP or prefix length".into()];
    }
    if is_mapped(&address) {
        return vec!["must not have an IPv4-mapped IPv6 address".into()];
    }
    if masked(address, bits) != address {
        return vec!["must not have bits set beyond the prefix length".into()];
    }
    Vec::new()
}

/// Reads an address, ignoring leading zeros of IPv4 octets as old clients wrote them.
pub fn parse_sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let octets: Vec<u8> = text
        .split('.')
        .map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            if digits { part.parse::<u8>().ok() } else { None }
        })
        .collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Reads `address/bits`; the address is not masked.
pub fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (host, prefix) = text.split_once('/')?;
    let address = parse_sloppy(host)?;
    if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bits: u8 = prefix.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    (bits <= width).then_some((address, bits))
}

/// Returns the address with every bit beyond the prefix cleared.
pub fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(v4) & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(v6) & mask).into())
        }
    }
}

fn is_mapped(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("10.0.0.1", vec![]),
            ("fe80::abc", vec![]),
            ("", vec![NOT_AN_ADDRESS]),
            ("10.0.0", vec![NOT_AN_ADDRESS]),
            ("10.0.0.256", vec![NOT_AN_ADDRESS]),
            ("010.0.0.1", vec!["must not have leading 0s"]),
            ("::ffff:1.2.3.4", vec!["must not be an IPv4-mapped IPv6 address"]),
            ("FE80:0::0abc", vec!["must be in canonical form (\"fe80::abc\")"]),
        ] {
            assert_eq!(ip(text), expected, "{text:?}");
        }
        assert!(ip_legacy("FE80:0::0abc").is_empty());
    }

    #[test]
    fn networks() {
        for (text, expected) in [
            ("10.0.0.0/8", vec![]),
            ("2001:db8::/64", vec![]),
            ("0.0.0.0/0", vec![]),
            ("10.0.0.0", vec![NOT_A_CIDR]),
            ("10.0.0.0/33", vec![NOT_A_CIDR]),
            ("10.0.0.0/x", vec![NOT_A_CIDR]),
            ("10.0.0.1/8", vec!["must not have bits set beyond the prefix length"]),
            ("010.0.0.0/8", vec!["must not have leading 0s in IP or prefix length"]),
            ("10.0.0.0/08", vec!["must not have leading 0s in IP or prefix length"]),
            ("2001:DB8::/64", vec!["must be in canonical form (\"2001:db8::/64\")"]),
        ] {
            assert_eq!(cidr(text), expected, "{text:?}");
        }
        assert!(cidr_legacy("2001:DB8::/64").is_empty());
    }
}
