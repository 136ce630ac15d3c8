//! A certificate as its Secret has it.

use std::collections::BTreeSet;

use jiff::Timestamp;
use x509_parser::prelude::{GeneralName, parse_x509_pem};

/// The facts of a certificate that decide about its renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub names: BTreeSet<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Held {
    /// Reads the first certificate of a chain in PEM.
    pub fn read(pem: &[u8]) -> Option<Held> {
        let (_, block) = parse_x509_pem(pem).ok()?;
        let certificate = block.parse_x509().ok()?;
        let names = certificate.subject_alternative_name().ok().flatten().map(|names| &names.value.general_names);
        let dns = names.into_iter().flatten().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        });
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Held {
            names: dns.collect(),
            not_before: time(certificate.validity().not_before)?,
            not_after: time(certificate.validity().not_after)?,
        })
    }
}
