//! The identity in a client certificate: common name is the user, organizations are the groups.
//!
//! TLS has verified the chain before this runs; here nothing is trusted beyond that.

use super::User;

/// Reads the subject of a DER certificate.
pub fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    Some(User { name, groups, ..User::default() }.authenticated())
}
