//! Tests of precedence and of the index against a scan.

use super::*;
use crate::{HeaderMatch, ObjectName, QueryMatch, StringMatch, Timeouts};
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use regex::Regex;
use std::sync::Arc;

/// Parses a rule: a path (`=/exact`, `~regex`, `/prefix`), then a method, `header:value` and `query?value` in any order.
fn rule(text: &str) -> HttpRule {
    let mut words = text.split(' ');
    let path = words.next().unwrap();
    let path = match path.split_at(1) {
        ("=", exact) => PathMatch::Exact(exact.to_owned()),
        ("~", regex) => PathMatch::Regex(Regex::new(&format!("^(?:{regex})$")).unwrap()),
        _ => PathMatch::Prefix(path.trim_end_matches('/').to_owned()),
    };
    let mut rule = HttpRule {
        route: ObjectName { kind: "HTTPRoute", namespace: "default".into(), name: text.into() },
        rule_name: None,
        path,
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::from([]),
        backends: Arc::from([]),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: false,
        grpc_method: None,
    };
    for word in words {
        if let Some((name, value)) = word.split_once(':') {
            rule.headers.push(HeaderMatch { name: name.to_owned(), value: StringMatch::Exact(value.to_owned()) });
        } else if let Some((name, value)) = word.split_once('?') {
            rule.query.push(QueryMatch { name: name.to_owned(), value: StringMatch::Exact(value.to_owned()) });
        } else {
            rule.method = Some(word.into());
        }
    }
    rule
}

fn host(rules: &[&str]) -> HttpHost {
    HttpHost::build(rules.iter().map(|text| rule(text)).collect())
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect()
}

/// Returns the name of the rule that takes a request.
fn taken<'a>(host: &'a HttpHost, method: &str, target: &str, headers: &HeaderMap) -> Option<&'a str> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let found = host.find(&Request { method, path, query, headers })?;
    assert!(host.rule(found.number).is_some_and(|rule| std::ptr::eq(&**rule, found.rule)));
    Some(&found.rule.route.name)
}

#[test]
fn the_most_specific_rule_takes_the_request() {
    let host = host(&["/", "/a", "/a/b", "=/a/b", "~/r/[0-9]+", "/a POST", "/a x:1", "/a x:1 y:2", "/a q?1"]);
    for (method, target, sent, expected) in [
        ("GET", "/", headers(&[]), "/"),
        ("GET", "/ab", headers(&[]), "/"),
        ("GET", "/a", headers(&[]), "/a"),
        ("GET", "/a/", headers(&[]), "/a"),
        ("GET", "/a/c", headers(&[]), "/a"),
        ("GET", "/a/b", headers(&[]), "=/a/b"),
        ("GET", "/a/b/", headers(&[]), "/a/b"),
        ("GET", "/a/b/c/d", headers(&[]), "/a/b"),
        ("GET", "/r/12", headers(&[]), "~/r/[0-9]+"),
        ("GET", "/r/12x", headers(&[]), "/"),
        ("POST", "/a", headers(&[("x", "1")]), "/a POST"),
        ("GET", "/a", headers(&[("x", "1")]), "/a x:1"),
        ("GET", "/a?q=1", headers(&[("x", "1"), ("y", "2")]), "/a x:1 y:2"),
        ("GET", "/a?q=1", headers(&[]), "/a q?1"),
    ] {
        assert_eq!(taken(&host, method, target, &sent), Some(expected), "{method} {target}");
    }
}

#[test]
fn a_host_without_a_matching_rule_has_none() {
    let host = host(&["/a x:1", "=/b"]);
    assert_eq!(taken(&host, "GET", "/a", &HeaderMap::new()), None);
    assert_eq!(taken(&host, "GET", "/b/", &HeaderMap::new()), None);
    assert_eq!(taken(&HttpHost::default(), "GET", "/", &HeaderMap::new()), None);
}

#[test]
fn equal_rules_keep_the_order_of_the_caller() {
    let mut first = rule("/a");
    first.route.name = "older".into();
    let host = HttpHost::build(vec![first, rule("/a")]);
    assert_eq!(taken(&host, "GET", "/a", &HeaderMap::new()), Some("older"));
}

#[test]
fn a_path_of_slashes_is_looked_up_a_bounded_number_of_times() {
    let host = host(&["/a/b"]);
    let path = "/".repeat(60_000);
    assert_eq!(taken(&host, "GET", &path, &HeaderMap::new()), None);
}

/// Returns the rule that a scan finds.
fn scanned<'a>(host: &'a HttpHost, request: &Request<'_>) -> Option<&'a str> {
    let matches = |rule: &&Arc<HttpRule>| {
        let path = match &rule.path {
            PathMatch::Exact(path) => path == request.path,
            PathMatch::Regex(regex) => regex.is_match(request.path),
            PathMatch::Prefix(prefix) => {
                request.path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        };
        path && rule.matches_beside_path(request)
    };
    host.rules().find(matches).map(|rule| &*rule.route.name)
}

proptest! {
    #[test]
    fn the_index_finds_what_a_scan_finds(
        rules in prop::collection::vec("[=]?(/[ab]{0,2}){1,3}( GET)?( x:[12])?( q\\?[12])?|~/[ab]\\*/b", 0..12),
        path in "(/[ab]{0,2}){1,4}",
        header in prop::option::of("[12]"),
        query in prop::option::of("q=[12]"),
        method in "GET|POST",
    ) {
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let host = host(&rules);
        let headers = header.map_or_else(HeaderMap::new, |value| headers(&[("x", &value)]));
        let request = Request { method: &method, path: &path, query: query.as_deref(), headers: &headers };
        let indexed = host.find(&request).map(|found| &*found.rule.route.name);
        prop_assert_eq!(indexed, scanned(&host, &request));
    }
}

#[test]
fn a_wider_host_takes_requests_that_no_own_rule_matches() {
    let host = host(&["/a"]).with_fallback(Arc::new(self::host(&["=/a/b", "/c"])));
    let found = |path: &str| {
        let headers = HeaderMap::new();
        let request = Request { method: "GET", path, query: None, headers: &headers };
        let matched = host.find(&request)?;
        assert_eq!(host.rule(matched.number).map(|rule| &rule.route), Some(&matched.rule.route));
        Some(matched.rule.route.name.to_string())
    };
    assert_eq!(found("/a/b").as_deref(), Some("/a"));
    assert_eq!(found("/c").as_deref(), Some("/c"));
    assert_eq!(found("/d"), None);
}
