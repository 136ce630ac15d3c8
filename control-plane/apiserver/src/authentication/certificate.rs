//! The user of a client certificate: the common name is the user name, the organizations are the groups.
//!
//! TLS has verified the chain before this runs; nothing here is trusted beyond that.

use std::collections::BTreeMap;
use std::fmt::Write;

use corten_access::User;

/// The extra key that identifies the credential of a request.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

fn credential_id(der: &[u8]) -> String {
    let mut id = "X509SHA256=".to_owned();
    for byte in ring::digest::digest(&ring::digest::SHA256, der).as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Returns the user in the subject of a DER certificate.
pub fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    let extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![credential_id(der)])]);
    Some(User { name, groups, extra, ..User::default() }.authenticated())
}

pub fn expiry_of_certificate(der: &[u8]) -> Option<jiff::Timestamp> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    jiff::Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}
