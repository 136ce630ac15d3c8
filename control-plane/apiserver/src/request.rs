//! The method, path and query of a request, parsed: upstream's RequestInfo.
//!
//! Pure: every later step (authorize, dispatch, metrics) works on this, never on the raw path again.

use corten_access::{Attributes, User, Verb};
use corten_api::{Kind, Role, Storage};
use http::Method;

use crate::negotiation::Offer;

/// A decoded query string, in order. Repeated keys keep all their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d`, `+` being a space. As upstream, it skips parameters with a semicolon or a broken escape.
    pub fn parse(raw: &str) -> Query {
        let pairs = raw.split('&').filter(|p| !p.is_empty() && !p.contains(';') && has_whole_escapes(p));
        let pairs = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(key, true), percent_decode(value, true))
        });
        Query(pairs.collect())
    }

    /// Returns the first value of `key`, if it is there and not empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    /// Returns the first value of `key`, also an empty one.
    pub fn raw(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Returns whether `key` is there at all.
    pub fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// Returns all values of `key`.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Returns whether `key` is present and not `false` or `0`, as upstream reads booleans in queries.
    pub fn flag(&self, key: &str) -> bool {
        self.raw(key).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// Returns the same query with `key` set to one value, for paths that carry the value of a parameter.
    pub fn with(mut self, key: &str, value: &str) -> Query {
        self.0.retain(|(k, _)| k != key);
        self.0.push((key.to_owned(), value.to_owned()));
        self
    }
}

/// Returns whether every `%` is followed by two hex digits.
pub fn has_whole_escapes(text: &str) -> bool {
    let is_whole = |after: &str| after.len() >= 2 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_whole)
}

/// Decodes percent encoding; invalid sequences stay as they are.
pub fn percent_decode(text: &str, plus_is_space: bool) -> String {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return text.to_owned();
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |b: u8| (b as char).to_digit(16);
        match bytes[at] {
            b'+' if plus_is_space => out.push(b' '),
            b'%' if at + 2 < bytes.len() => match (hex(bytes[at + 1]), hex(bytes[at + 2])) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    at += 2;
                }
                _ => out.push(b'%'),
            },
            byte => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The parts of a request that authorization and dispatch need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    pub is_resource: bool,
    /// Whether the path begins as one of a resource and ends before it names one.
    pub is_cut_short: bool,
    pub verb: Verb,
    pub path: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    /// Whether the path has a namespace, also one with an empty name.
    pub is_in_namespace: bool,
    pub name: String,
    /// Whether the path has `/watch/`.
    pub is_watch_path: bool,
    /// The path after the subresource, with its leading slash: the path that a proxy passes on.
    pub remainder: String,
    pub query: Query,
}

/// Subresources of a namespace itself; anything else after the namespace's name is a resource in it.
const NAMESPACE_SUBRESOURCES: &[&str] = &["status", "finalize"];

impl RequestInfo {
    /// Returns the attributes that authorizers decide on.
    pub fn attributes<'a>(&'a self, user: &'a User) -> Attributes<'a> {
        let selects = matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        let selector = |key: &str| self.query.get(key).filter(|_| selects).unwrap_or_default();
        Attributes {
            user,
            verb: self.verb.as_str(),
            is_resource: self.is_resource,
            group: &self.group,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            path: &self.path,
            version: &self.version,
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    }

    /// Parses method, path and query. Never fails: a path it does not know is a non-resource request.
    pub fn parse(method: &Method, path: &str, query: &str) -> RequestInfo {
        let mut info = RequestInfo {
            verb: Verb::of_path(method),
            path: percent_decode(path, false),
            query: Query::parse(query),
            ..RequestInfo::default()
        };
        let decoded = info.path.clone();
        // An empty segment stays a segment: `//` matches nothing, as upstream.
        let path = decoded.strip_prefix('/').unwrap_or(&decoded);
        let mut parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        let grouped = match parts.first() {
            Some(&"api") if parts.len() >= 3 => false,
            Some(&"apis") if parts.len() >= 4 && !parts[1].is_empty() => true,
            _ => return info,
        };
        parts.remove(0);
        if grouped {
            info.group = parts.remove(0).to_owned();
        }
        info.is_resource = true;
        info.version = parts.remove(0).to_owned();
        info.verb = Verb::of_resource(method);
        info.is_cut_short = matches!(parts[..], ["watch" | "proxy"]);
        info.is_watch_path = parts.first() == Some(&"watch") && parts.len() > 1;
        if info.is_watch_path {
            parts.remove(0);
        }
        info.read_parts(&decoded, parts);
        info.refine_verb();
        info
    }

    fn read_parts(&mut self, path: &str, mut parts: Vec<&str>) {
        if parts.first() == Some(&"namespaces") && parts.len() > 1 {
            self.namespace = parts[1].to_owned();
            self.is_in_namespace = true;
            if parts.len() > 2 && !NAMESPACE_SUBRESOURCES.contains(&parts[2]) {
                parts.drain(..2);
            }
        }
        self.resource = parts.first().copied().unwrap_or_default().to_owned();
        self.name = parts.get(1).copied().unwrap_or_default().to_owned();
        self.subresource = parts.get(2).copied().unwrap_or_default().to_owned();
        if parts.len() > 3 {
            self.remainder = format!("/{}", parts[3..].join("/"));
        }
        if self.subresource == "proxy" && path.ends_with('/') {
            self.remainder.push('/');
        }
    }

    fn refine_verb(&mut self) {
        if self.is_watch_path {
            self.verb = Verb::Watch;
            if !self.name.is_empty() {
                let selector = format!("metadata.name={}", self.name);
                self.query = std::mem::take(&mut self.query).with("fieldSelector", &selector);
            }
            return;
        }
        match self.verb {
            Verb::Get if self.name.is_empty() => {
                self.verb = if self.query.flag("watch") { Verb::Watch } else { Verb::List };
                if let Some(name) = name_in_selector(self.query.get("fieldSelector")) {
                    self.name = name;
                }
            }
            Verb::Delete if self.name.is_empty() => self.verb = Verb::DeleteCollection,
            _ => {}
        }
    }

    /// Returns the content that the path offers, if it is one of this kind.
    pub fn offer(&self, kind: Option<&Kind>) -> Offer {
        let subresource = kind.and_then(|kind| kind.subresource(&self.subresource));
        match (self.path.trim_end_matches('/'), kind, subresource.map(|found| found.role)) {
            (_, _, Some(Role::Log)) => Offer::Log,
            (_, _, Some(Role::Exec | Role::Attach | Role::PortForward | Role::Proxy)) => Offer::Foreign,
            (_, _, Some(Role::Scale)) => Offer::Objects,
            (_, Some(kind), Some(Role::Status)) if !kind.rules.status_has_no_rows => Offer::Objects,
            (_, _, Some(_)) => Offer::Rowless,
            _ if matches!(self.verb, Verb::List | Verb::Watch) => Offer::Collection,
            (_, Some(kind), _) if kind.storage == Storage::Virtual && self.verb == Verb::Create => Offer::Rowless,
            _ if self.is_resource => Offer::Objects,
            ("/api" | "/apis", ..) => Offer::Groups,
            _ => Offer::Document,
        }
    }

    /// Returns whether the request is a write.
    pub fn is_mutating(&self) -> bool {
        !self.verb.is_read()
    }

    /// Returns whether the request is long-running: it takes no slot among the requests in flight.
    pub fn is_long_running(&self) -> bool {
        self.verb == Verb::Watch
            || matches!(self.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy")
    }
}

/// Returns the name that a field selector requires. Upstream lets RBAC `resourceNames` rules match it.
fn name_in_selector(selector: Option<&str>) -> Option<String> {
    selector?.split(',').find_map(|term| {
        let name = term.strip_prefix("metadata.name==").or(term.strip_prefix("metadata.name="))?;
        (!name.is_empty() && !name.contains(['/', '%', '=']) && name != "." && name != "..").then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, path: &str, query: &str, expected: &str) {
        let i = RequestInfo::parse(&method, path, query);
        let got = format!(
            "{} res={} g={} v={} ns={} r={} n={} s={} rest={}",
            i.verb, i.is_resource, i.group, i.version, i.namespace, i.resource, i.name, i.subresource, i.remainder
        );
        assert_eq!(got, expected, "{method} {path}?{query}");
    }

    #[test]
    fn paths_are_read_as_upstream_reads_them() {
        check(Method::GET, "/healthz", "", "get res=false g= v= ns= r= n= s= rest=");
        check(Method::GET, "/api/v1", "", "get res=false g= v= ns= r= n= s= rest=");
        check(Method::GET, "/apis/apps/v1", "", "get res=false g= v= ns= r= n= s= rest=");
        check(Method::GET, "/api/v1/pods", "", "list res=true g= v=v1 ns= r=pods n= s= rest=");
        check(Method::GET, "/api/v1/pods", "watch=true", "watch res=true g= v=v1 ns= r=pods n= s= rest=");
        check(Method::GET, "/api/v1/watch/pods", "", "watch res=true g= v=v1 ns= r=pods n= s= rest=");
        check(Method::GET, "/api/v1/namespaces/a/pods/b/log", "", "get res=true g= v=v1 ns=a r=pods n=b s=log rest=");
        check(
            Method::GET,
            "/api/v1/nodes/n/proxy/stats/summary",
            "",
            "get res=true g= v=v1 ns= r=nodes n=n s=proxy rest=/stats/summary",
        );
        check(
            Method::PUT,
            "/api/v1/namespaces/a/finalize",
            "",
            "update res=true g= v=v1 ns=a r=namespaces n=a s=finalize rest=",
        );
        check(Method::GET, "/api/v1/namespaces/a", "", "get res=true g= v=v1 ns=a r=namespaces n=a s= rest=");
        check(
            Method::DELETE,
            "/apis/apps/v1/namespaces/a/deployments",
            "",
            "deletecollection res=true g=apps v=v1 ns=a r=deployments n= s= rest=",
        );
        check(
            Method::GET,
            "/api/v1/namespaces/a/pods",
            "fieldSelector=metadata.name%3Dx",
            "list res=true g= v=v1 ns=a r=pods n=x s= rest=",
        );
    }

    #[test]
    fn queries_are_decoded() {
        let q = Query::parse("a=b+c&a=d%2Fe&watch&limit=");
        assert_eq!(q.get("a"), Some("b c"));
        assert_eq!(q.all("a").collect::<Vec<_>>(), ["b c", "d/e"]);
        assert!(q.flag("watch"));
        assert_eq!(q.get("limit"), None);
        assert!(!Query::parse("watch=0").flag("watch"));
        let q = Query::parse("a=1;b=2&c=%zz&d=%&e=%4&f=%41&g");
        assert_eq!(q, Query(vec![("f".to_owned(), "A".to_owned()), ("g".to_owned(), String::new())]));
        assert_eq!((q.raw("g"), q.raw("c")), (Some(""), None));
    }
}
