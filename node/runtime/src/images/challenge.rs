//! The authentication challenge of a registry: the header `WWW-Authenticate` (RFC 9110, 11.6.1).
//!
//! Pure. Parses the header leniently and takes the first supported challenge; never fails on the rest.

use std::iter::Peekable;
use std::str::Chars;

/// A supported challenge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token of the realm's token server.
    Bearer {
        /// The URL of the token server.
        realm: String,
        /// The registry's name at the token server.
        service: Option<String>,
    },
}

impl Challenge {
    /// Returns the first supported challenge of a header; Bearer before Basic.
    pub fn parse(header: &str) -> Option<Self> {
        let mut basic = None;
        for offered in split(header) {
            let parameter = |name: &str| {
                let found = offered.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.clone())
            };
            if offered.scheme.eq_ignore_ascii_case("bearer") {
                if let Some(realm) = parameter("realm") {
                    return Some(Self::Bearer { realm, service: parameter("service") });
                }
            } else if offered.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Self::Basic);
            }
        }
        basic
    }
}

#[derive(Default)]
struct Offered {
    scheme: String,
    parameters: Vec<(String, String)>,
}

/// Splits a header into its challenges. A word that is followed by `=` is a parameter of the scheme before it; any
/// other word is a scheme.
fn split(header: &str) -> Vec<Offered> {
    let mut offered: Vec<Offered> = Vec::new();
    let mut rest = header.chars().peekable();
    while rest.peek().is_some() {
        let word = word(&mut rest);
        if word.is_empty() {
            rest.next();
        } else if rest.next_if_eq(&'=').is_some() {
            let value = value(&mut rest);
            if let Some(last) = offered.last_mut() {
                last.parameters.push((word, value));
            }
        } else {
            offered.push(Offered { scheme: word, ..Offered::default() });
        }
    }
    offered
}

fn word(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut word = String::new();
    while let Some(next) = rest.next_if(|next| !matches!(next, '=' | ',' | '"' | ' ' | '\t')) {
        word.push(next);
    }
    word
}

fn value(rest: &mut Peekable<Chars<'_>>) -> String {
    if rest.next_if_eq(&'"').is_none() {
        return word(rest);
    }
    let mut value = String::new();
    while let Some(next) = rest.next() {
        match next {
            '"' => break,
            '\\' => value.extend(rest.next()),
            other => value.push(other),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.into(), service: service.map(str::to_owned) })
    }

    #[test]
    fn the_first_supported_challenge_counts() {
        for (header, expected) in [
            ("Basic realm=\"test\"", Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://a/token\",service=\"b\",scope=\"repository:c:pull\"",
                bearer("https://a/token", Some("b")),
            ),
            ("bearer realm=https://a/token", bearer("https://a/token", None)),
            ("Basic realm=\"x\", Bearer realm=\"https://a\"", bearer("https://a", None)),
            ("Negotiate, Basic realm=\"a, Bearer realm=\\\"b\\\"\"", Some(Challenge::Basic)),
            ("Bearer service=\"b\"", None),
            ("Digest realm=\"x\"", None),
            ("", None),
            ("=\"\",,=", None),
            ("\"", None),
            ("Bearer realm=\"never closed", bearer("never closed", None)),
        ] {
            assert_eq!(Challenge::parse(header), expected, "{header}");
        }
    }
}
