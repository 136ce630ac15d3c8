//! The library of URLs, parsed as Go does: absolute URLs and paths.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;

use corten_meta::quote::quote;

use super::{own, text};
use crate::declare::Line;
use crate::error::Error;
use crate::value::{Key, Map, Opaque, Value};

pub const TABLE: &[Line] = &[
    ("string_to_url", "url(string) -> URL", |_, a| {
        let text = text(a, 0)?;
        let url = Url::parse(text).map_err(|why| {
            Error::failed(format!("URL parse error during conversion from string: parse {}: {why}", quote(&**text)))
        })?;
        Ok(Value::opaque(url))
    }),
    ("url_get_scheme", "URL::getScheme() -> string", |_, a| Ok(Value::string(&*own::<Url>(a, 0)?.scheme))),
    ("url_get_host", "URL::getHost() -> string", |_, a| Ok(Value::string(&*own::<Url>(a, 0)?.host))),
    ("url_get_hostname", "URL::getHostname() -> string", |_, a| Ok(Value::string(own::<Url>(a, 0)?.split_host().0))),
    ("url_get_port", "URL::getPort() -> string", |_, a| Ok(Value::string(own::<Url>(a, 0)?.split_host().1))),
    ("url_get_escaped_path", "URL::getEscapedPath() -> string", |_, a| {
        Ok(Value::string(own::<Url>(a, 0)?.escaped_path()))
    }),
    ("url_get_query", "URL::getQuery() -> map(string, list(string))", |_, a| Ok(own::<Url>(a, 0)?.query_map())),
    ("is_url_string", "isURL(string) -> bool", |_, a| Ok(Value::Bool(Url::parse(text(a, 0)?).is_ok()))),
];

/// A parsed URL.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    /// The path as it was written.
    path: String,
    query: String,
    text: String,
}

impl Opaque for Url {
    fn type_name(&self) -> &'static str {
        "kubernetes.URL"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.as_any().downcast_ref::<Url>() == Some(self)
    }

    fn to_text(&self) -> Option<String> {
        Some(self.text.clone())
    }
}

impl Url {
    /// Parses an absolute URL or an absolute path; neither has a fragment.
    pub fn parse(text: &str) -> Result<Url, &'static str> {
        if text.is_empty() {
            return Err("empty url");
        }
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("net/url: invalid control character in URL");
        }
        let without_fragment = text.split('#').next().unwrap_or_default();
        let (scheme, rest) = split_scheme(without_fragment)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') && scheme.is_empty() {
            return Err("invalid URI for request");
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(rest) if !scheme.is_empty() || !rest.starts_with('/') => {
                let end = rest.find('/').unwrap_or(rest.len());
                (host_of(&rest[..end])?, &rest[end..])
            }
            _ => (String::new(), rest),
        };
        if !well_escaped(path) {
            return Err("invalid URL escape");
        }
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            host,
            path: path.to_owned(),
            query: query.to_owned(),
            text: text.to_owned(),
        })
    }

    fn split_host(&self) -> (&str, &str) {
        let end = self.host.rfind(']').map_or(0, |end| end + 1);
        let (name, port) = match self.host[end..].rfind(':') {
            Some(colon) => (&self.host[..end + colon], &self.host[end + colon + 1..]),
            None => (self.host.as_str(), ""),
        };
        (name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port)
    }

    /// Returns the path with all necessary escapes.
    fn escaped_path(&self) -> String {
        let mut escaped = String::with_capacity(self.path.len());
        for byte in self.path.bytes() {
            let plain = byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@%!'()*[]".contains(&byte);
            if plain {
                escaped.push(byte as char);
            } else {
                escaped.push_str(&format!("%{byte:02X}"));
            }
        }
        escaped
    }

    fn query_map<'a>(&self) -> Value<'a> {
        let mut values: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
        for pair in self.query.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if let (Some(key), Some(value)) = (unescape(key), unescape(value)) {
                values.entry(key).or_default().push(Value::string(value));
            }
        }
        let entry = |(key, list): (String, Vec<Value<'a>>)| {
            (Key::String(key.as_str().into()), (Value::string(key), Value::list(list)))
        };
        Value::Map(Map::Owned(Rc::new(values.into_iter().map(entry).collect())))
    }
}

fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme"),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

/// Returns host and port, without the user before them.
fn host_of(authority: &str) -> Result<String, &'static str> {
    let host = authority.rsplit('@').next().unwrap_or_default();
    let after = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("missing ']' in host")?.1,
        None => host.find(':').map_or("", |colon| &host[colon..]),
    };
    let good_port =
        after.is_empty() || after.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !good_port {
        return Err("invalid port after host");
    }
    if host.contains(' ') || host.contains(['<', '>', '"', '\\', '^', '`', '{', '|', '}']) {
        return Err("invalid character in host name");
    }
    if !well_escaped(host) {
        return Err("invalid URL escape");
    }
    Ok(host.to_owned())
}

fn well_escaped(text: &str) -> bool {
    let bytes = text.as_bytes();
    let good = |at: usize| bytes.get(at + 1..at + 3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    (0..bytes.len()).filter(|at| bytes[*at] == b'%').all(good)
}

fn unescape(text: &str) -> Option<String> {
    if !well_escaped(text) {
        return None;
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'+' => out.push(b' '),
            b'%' => {
                let hex = std::str::from_utf8(&bytes[at + 1..at + 3]).ok()?;
                out.push(u8::from_str_radix(hex, 16).ok()?);
                at += 2;
            }
            byte => out.push(byte),
        }
        at += 1;
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}
