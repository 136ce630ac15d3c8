//! Decides whether one rule matches a request, its path apart.

use crate::{HeaderMatch, HttpRule, QueryMatch, Request, StringMatch};
use http::HeaderMap;
use std::borrow::Cow;

impl HttpRule {
    /// Reports whether method, headers and query of a request match.
    pub(crate) fn matches_beside_path(&self, request: &Request<'_>) -> bool {
        self.method.as_deref().is_none_or(|method| method == request.method)
            && self.grpc_method.as_deref().is_none_or(|method| is_grpc_method(request.path, method))
            && self.headers.iter().all(|header| header.matches(request.headers))
            && self.query.iter().all(|parameter| parameter.matches(request.query))
    }
}

/// Reports whether a path is that of a method of any service.
fn is_grpc_method(path: &str, method: &str) -> bool {
    let service = path.strip_suffix(method).and_then(|head| head.strip_prefix('/')?.strip_suffix('/'));
    service.is_some_and(|service| !service.is_empty() && !service.contains('/'))
}

impl StringMatch {
    /// Reports whether a value matches.
    pub fn matches(&self, value: &str) -> bool {
        match self {
            StringMatch::Exact(expected) => expected == value,
            StringMatch::Regex(regex) => regex.is_match(value),
        }
    }
}

impl HeaderMatch {
    /// Returns a match of a cookie's value.
    pub fn cookie(name: &str, value: &str) -> Result<HeaderMatch, regex::Error> {
        let pattern = format!("(?:^|;\\s*){}={}(?:;|$)", regex::escape(name), regex::escape(value));
        Ok(HeaderMatch { name: "cookie".to_owned(), value: StringMatch::Regex(regex::Regex::new(&pattern)?) })
    }

    fn matches(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(self.name.as_str()).iter().filter_map(|value| value.to_str().ok());
        let Some(first) = values.next() else {
            return false;
        };
        match values.next() {
            None => self.value.matches(first),
            Some(second) => {
                let mut joined = format!("{first},{second}");
                for value in values {
                    joined.push(',');
                    joined.push_str(value);
                }
                self.value.matches(&joined)
            }
        }
    }
}

impl QueryMatch {
    /// Reports whether the first parameter of the name matches.
    fn matches(&self, query: Option<&str>) -> bool {
        let first = query.into_iter().flat_map(|query| query.split('&')).find_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name) == self.name).then_some(value)
        });
        first.is_some_and(|value| self.value.matches(&decode(value)))
    }
}

/// Decodes a name or value of a query. An invalid escape stays as it is.
fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = bytes.get(at + 1..at + 3).filter(|_| byte == b'%').and_then(hexadecimal);
        match escaped {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&decoded).into_owned())
}

/// Returns the value of two hexadecimal digits.
fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let [high, low] = digits else {
        return None;
    };
    let high = char::from(*high).to_digit(16)?;
    let low = char::from(*low).to_digit(16)?;
    u8::try_from(high * 16 + low).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, value: &str) -> QueryMatch {
        QueryMatch { name: name.to_owned(), value: StringMatch::Exact(value.to_owned()) }
    }

    #[test]
    fn the_first_parameter_of_a_name_matches() {
        for (text, expected) in [
            ("a=1", true),
            ("b=2&a=1", true),
            ("a=2&a=1", false),
            ("a=1&a=2", true),
            ("%61=%31", true),
            ("a", false),
            ("", false),
            ("aa=1", false),
        ] {
            assert_eq!(query("a", "1").matches(Some(text)), expected, "{text}");
        }
        assert!(query("a", "x y").matches(Some("a=x+y")));
        assert!(query("a", "100%").matches(Some("a=100%")));
        assert!(!query("a", "").matches(None));
    }

    #[test]
    fn a_method_of_grpc_is_the_last_of_two_elements() {
        for (path, expected) in [
            ("/a.B/Get", true),
            ("/a.B/GetAll", false),
            ("//Get", false),
            ("/Get", false),
            ("/a/b/Get", false),
            ("Get", false),
        ] {
            assert_eq!(is_grpc_method(path, "Get"), expected, "{path}");
        }
    }

    #[test]
    fn values_of_a_header_are_joined() {
        let mut headers = HeaderMap::new();
        headers.append("x", "1".parse().unwrap());
        let exact = |value: &str| HeaderMatch { name: "x".to_owned(), value: StringMatch::Exact(value.to_owned()) };
        assert!(exact("1").matches(&headers));
        headers.append("x", "2".parse().unwrap());
        assert!(exact("1,2").matches(&headers));
        assert!(!exact("1").matches(&headers));
    }

    #[test]
    fn a_cookie_matches_by_its_whole_name() {
        let canary = HeaderMatch::cookie("canary", "always").unwrap();
        for (cookies, expected) in [
            ("canary=always", true),
            ("a=b; canary=always; c=d", true),
            ("notcanary=always", false),
            ("canary=alwaysnot", false),
            ("canary=never", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("cookie", cookies.parse().unwrap());
            assert_eq!(canary.matches(&headers), expected, "{cookies}");
        }
    }
}
