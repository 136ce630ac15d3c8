//! The rules of one host, in the order of precedence, and an index by path.
//!
//! Gateway API decides between rules that match by the path first (exact, then the longest prefix), then by method, number
//! of headers and number of query parameters. Because the path decides first, a request needs to see only the rules of its
//! own exact path, all regular expressions, and the rules of each prefix of its path, longest first.
//!
//! Invariant: the index finds the rule that a scan of all rules in order would find.

use crate::{HttpRule, PathMatch, Request};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// The rules of one host.
#[derive(Clone, Debug, Default)]
pub struct HttpHost {
    rules: Vec<HttpRule>,
    /// The numbers of rules by exact path.
    exact: HashMap<String, Vec<usize>>,
    /// The numbers of rules with a regular expression.
    regex: Vec<usize>,
    /// The numbers of rules by prefix.
    prefix: HashMap<String, Vec<usize>>,
    longest_prefix: usize,
    fallback: Option<Fallback>,
}

/// A wider host of the same listener, whose rules a request gets if none of this host matches.
#[derive(Clone, Debug)]
struct Fallback {
    host: Arc<HttpHost>,
    /// The number of its first rule among all rules.
    first: usize,
}

/// A rule that matched.
#[derive(Clone, Copy, Debug)]
pub struct MatchedRule<'a> {
    /// The number of the rule in [`HttpHost::rules`].
    pub number: usize,
    pub rule: &'a HttpRule,
}

/// The order of kinds of paths.
fn rank(path: &PathMatch) -> (u8, Reverse<usize>) {
    match path {
        PathMatch::Exact(path) => (0, Reverse(path.len())),
        PathMatch::Regex(regex) => (1, Reverse(regex.as_str().len())),
        PathMatch::Prefix(prefix) => (2, Reverse(prefix.len())),
    }
}

impl HttpHost {
    /// Sorts rules by Gateway API's precedence. Of rules that it does not tell apart the caller's order decides: by age,
    /// then by name. Regular expressions come between exact paths and prefixes, the longest first.
    pub fn build(mut rules: Vec<HttpRule>) -> HttpHost {
        rules.sort_by_key(|rule| {
            let grpc_method = Reverse(rule.grpc_method.as_ref().map_or(0, |method| method.len()));
            let headers = Reverse(rule.headers.len());
            (rank(&rule.path), grpc_method, rule.method.is_none(), headers, Reverse(rule.query.len()))
        });
        HttpHost::in_order(rules)
    }

    /// Indexes rules that are sorted already. Exact paths come before regular expressions, and those before prefixes,
    /// whatever their order here.
    fn in_order(rules: Vec<HttpRule>) -> HttpHost {
        let mut host = HttpHost::default();
        for (number, rule) in rules.iter().enumerate() {
            match &rule.path {
                PathMatch::Exact(path) => host.exact.entry(path.clone()).or_default().push(number),
                PathMatch::Regex(_) => host.regex.push(number),
                PathMatch::Prefix(prefix) => {
                    let prefix = prefix.trim_end_matches('/');
                    host.longest_prefix = host.longest_prefix.max(prefix.len());
                    host.prefix.entry(prefix.to_owned()).or_default().push(number);
                }
            }
        }
        host.rules = rules;
        host
    }

    /// Adds the rules of a wider host, such as `*.example.com` for `a.example.com`: they come after all of this host.
    pub fn with_fallback(mut self, wider: Arc<HttpHost>) -> HttpHost {
        let first = self.rules.len();
        self.rules.extend(wider.rules.iter().cloned());
        self.fallback = Some(Fallback { host: wider, first });
        self
    }

    /// Returns the rules in the order of precedence, those of wider hosts last.
    pub fn rules(&self) -> &[HttpRule] {
        &self.rules
    }

    /// Returns the rule of highest precedence that matches a request.
    pub fn find(&self, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        let exact = self.exact.get(request.path).and_then(|numbers| self.first(numbers, request));
        let own = exact.or_else(|| self.find_regex(request)).or_else(|| self.find_prefix(request));
        own.or_else(|| {
            let fallback = self.fallback.as_ref()?;
            let found = fallback.host.find(request)?;
            Some(MatchedRule { number: fallback.first + found.number, rule: found.rule })
        })
    }

    fn first(&self, numbers: &[usize], request: &Request<'_>) -> Option<MatchedRule<'_>> {
        numbers.iter().find_map(|&number| {
            let rule = self.rules.get(number)?;
            rule.matches_beside_path(request).then_some(MatchedRule { number, rule })
        })
    }

    fn find_regex(&self, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        self.regex.iter().find_map(|&number| {
            let rule = self.rules.get(number)?;
            let PathMatch::Regex(regex) = &rule.path else {
                return None;
            };
            let matches = regex.is_match(request.path) && rule.matches_beside_path(request);
            matches.then_some(MatchedRule { number, rule })
        })
    }

    fn find_prefix(&self, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        if self.prefix.is_empty() {
            return None;
        }
        let path = request.path;
        let bytes = path.as_bytes();
        // A prefix ends where a path element ends. One that is longer than all prefixes need not be looked up.
        let mut end = path.len().min(self.longest_prefix);
        loop {
            let is_boundary = bytes.get(end).is_none_or(|byte| *byte == b'/');
            if is_boundary
                && let Some(prefix) = path.get(..end)
                && let Some(numbers) = self.prefix.get(prefix)
                && let Some(found) = self.first(numbers, request)
            {
                return Some(found);
            }
            if end == 0 {
                return None;
            }
            end = bytes.get(..end).and_then(|head| head.iter().rposition(|byte| *byte == b'/')).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests;
