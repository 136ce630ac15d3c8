//! Warnings about addresses: forms that are still accepted but that programs read differently.
//!
//! Called only for valid objects; validation checks whether a string is an address.

use std::net::IpAddr;

use corten_meta::names::address::{masked, parse_cidr, parse_sloppy};
use corten_meta::quote::quote;

use crate::check::At;

/// Warns of an address with leading zeros or in IPv4-mapped form, and of an IPv6 address that is not canonical.
pub(crate) fn ip(at: &At<'_>, out: &mut Vec<String>) {
    let path = &at.path;
    let text = at.text();
    let Some(address) = parse_sloppy(text) else { return };
    let read = text.parse::<IpAddr>();
    if read.is_err() || is_mapped(&address) {
        let plain = address.to_canonical();
        out.push(format!("{path}: non-standard IP address {} is invalid: use \"{plain}\"", quote(text)));
    } else if address.is_ipv6() && address.to_string() != text {
        out.push(format!(
            "{path}: IPv6 address {} should be in RFC 5952 canonical format (\"{address}\")",
            quote(text)
        ));
    }
}

/// Warns of a network in the same way, which may also have bits beyond its prefix.
pub(crate) fn cidr(at: &At<'_>, out: &mut Vec<String>) {
    let path = &at.path;
    let text = at.text();
    let Some((address, bits)) = parse_cidr(text) else { return };
    let network = masked(address, bits);
    let before = out.len();
    if network != address {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let either = format!("should be \"{network}/{bits}\" or \"{address}/{width}\"?");
        out.push(format!("{path}: CIDR value {} is ambiguous in this context ({either})", quote(text)));
    }
    let (host, prefix) = text.split_once('/').unwrap_or((text, ""));
    let is_read = host.parse::<IpAddr>().is_ok() && !(prefix.len() > 1 && prefix.starts_with('0'));
    if !is_read || is_mapped(&address) {
        out.push(format!("{path}: non-standard CIDR value {} is invalid: use \"{network}/{bits}\"", quote(text)));
    }
    let canonical = format!("{address}/{bits}");
    if out.len() == before && address.is_ipv6() && canonical != text {
        out.push(format!(
            "{path}: IPv6 CIDR value {} should be in RFC 5952 canonical format (\"{canonical}\")",
            quote(text)
        ));
    }
}

/// Reports whether an IPv6 address is IPv4-mapped.
fn is_mapped(address: &IpAddr) -> bool {
    address.is_ipv6() && address.to_canonical().is_ipv4()
}

/// Warns of the addresses of the load balancers in a status; upstream names the entry and not its field.
pub(crate) fn load_balancers(object: &corten_meta::Value) -> Vec<String> {
    let mut out = Vec::new();
    let balancers = At::object(object).get("status").get("loadBalancer").get("ingress");
    balancers.items().for_each(|entry| ip(&entry.get("ip").with(entry.path.clone()), &mut out));
    out
}

#[cfg(test)]
mod tests {
    use corten_meta::Value;
    use corten_meta::field::Path;

    use super::*;

    #[test]
    fn forms_that_programs_read_differently_are_warned_of() {
        let messages = |text: &str, rule: fn(&At<'_>, &mut Vec<String>)| {
            let mut out = Vec::new();
            rule(&At::new(&Value::from(text), &Path::root("x")), &mut out);
            out.join("|")
        };
        for (text, wanted) in [
            ("10.0.0.1", ""),
            ("2001:db8::1", ""),
            ("no", ""),
            ("010.0.0.1", "x: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\""),
            ("::ffff:1.2.3.4", "x: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""),
            ("FD00::1", "x: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")"),
        ] {
            assert_eq!(messages(text, ip), wanted, "{text}");
        }
        for (text, wanted) in [
            ("10.0.0.0/8", ""),
            (
                "10.0.0.1/8",
                "x: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
            ),
            ("010.0.0.0/8", "x: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\""),
            ("FD00::/64", "x: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 canonical format (\"fd00::/64\")"),
        ] {
            assert_eq!(messages(text, cidr), wanted, "{text}");
        }
    }
}
