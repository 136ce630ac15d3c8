//! The rules of one host, in the order of precedence, and an index by path.
//!
//! Gateway API decides between rules that match by the path first (exact, then the longest prefix), then by method, number
//! of headers and number of query parameters. Because the path decides first, a request needs to see only the rules of its
//! own exact path, all regular expressions, and the rules of each prefix of its path, longest first.
//!
//! Invariant: the index finds the rule that a scan of all rules in order would find.

use crate::{HttpRule, PathMatch, Request};
use std::cmp::Reverse;
use std::sync::Arc;

/// The rules of one host. They are those of its routes, and no copies.
#[derive(Clone, Debug, Default)]
pub struct HttpHost {
    rules: Box<[Arc<HttpRule>]>,
    /// The rules with an exact path, sorted by hash; those of one path by precedence.
    exact: Box<[Entry]>,
    /// The numbers of rules with a regular expression.
    regex: Box<[u32]>,
    /// The rules with a prefix, sorted by hash; those of one prefix by precedence.
    prefix: Box<[Entry]>,
    longest_prefix: usize,
    /// A wider host of the same listener, whose rules a request gets if none of this host matches.
    fallback: Option<Arc<HttpHost>>,
}

/// A rule in the index of paths.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The hash of the rule's path.
    hash: u32,
    /// The number of the rule.
    number: u32,
}

/// Returns the hash of a path (FNV-1a). The author of routes can give paths one hash: they are then looked through.
fn hash(path: &str) -> u32 {
    path.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Two hosts are equal if they are one: configurations share the hosts that stay.
impl PartialEq for HttpHost {
    fn eq(&self, other: &HttpHost) -> bool {
        std::ptr::eq(self, other)
    }
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
    pub fn build<R: Into<Arc<HttpRule>>>(rules: Vec<R>) -> HttpHost {
        let mut rules: Vec<Arc<HttpRule>> = rules.into_iter().map(Into::into).collect();
        rules.sort_by_key(|rule| {
            let grpc_method = Reverse(rule.grpc_method.as_ref().map_or(0, |method| method.len()));
            let headers = Reverse(rule.headers.len());
            (rank(&rule.path), grpc_method, rule.method.is_none(), headers, Reverse(rule.query.len()))
        });
        HttpHost::in_order(rules.into())
    }

    /// Indexes rules that are sorted already. Exact paths come before regular expressions, and those before prefixes,
    /// whatever their order here.
    fn in_order(rules: Box<[Arc<HttpRule>]>) -> HttpHost {
        let mut exact = Vec::new();
        let mut regex = Vec::new();
        let mut prefix = Vec::new();
        for (number, rule) in (0..).zip(&rules) {
            match &rule.path {
                PathMatch::Exact(_) => exact.push(number),
                PathMatch::Regex(_) => regex.push(number),
                PathMatch::Prefix(_) => prefix.push(number),
            }
        }
        let mut host = HttpHost { rules, regex: regex.into(), ..HttpHost::default() };
        host.longest_prefix = prefix.iter().map(|number| host.path(*number).len()).max().unwrap_or(0);
        host.exact = host.index(exact);
        host.prefix = host.index(prefix);
        host
    }

    /// Sorts rules by the hash of their path.
    fn index(&self, numbers: Vec<u32>) -> Box<[Entry]> {
        let entry = |number: u32| Entry { hash: hash(self.path(number)), number };
        let mut entries: Vec<Entry> = numbers.into_iter().map(entry).collect();
        // The sort is stable: the rules of one path stay in the order of precedence.
        entries.sort_by_key(|entry| entry.hash);
        entries.into()
    }

    /// Adds the rules of a wider host, such as `*.example.com` for `a.example.com`: they come after all of this host.
    pub fn with_fallback(mut self, wider: Arc<HttpHost>) -> HttpHost {
        self.fallback = Some(wider);
        self
    }

    /// Returns the rules in the order of precedence, those of wider hosts last.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<HttpRule>> {
        std::iter::successors(Some(self), |host| host.fallback.as_deref()).flat_map(|host| &host.rules)
    }

    /// Returns the rules of this host alone.
    pub fn own_rules(&self) -> &[Arc<HttpRule>] {
        &self.rules
    }

    /// Returns the wider host.
    pub fn fallback(&self) -> Option<&Arc<HttpHost>> {
        self.fallback.as_ref()
    }

    /// Returns a rule by its number.
    pub fn rule(&self, number: usize) -> Option<&Arc<HttpRule>> {
        match number.checked_sub(self.rules.len()) {
            None => self.rules.get(number),
            Some(rest) => self.fallback.as_ref()?.rule(rest),
        }
    }

    /// Returns the rule of highest precedence that matches a request.
    pub fn find(&self, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        let exact = self.first_with_path(&self.exact, request.path, request);
        let own = exact.or_else(|| self.find_regex(request)).or_else(|| self.find_prefix(request));
        own.or_else(|| {
            let found = self.fallback.as_ref()?.find(request)?;
            Some(MatchedRule { number: self.rules.len() + found.number, rule: found.rule })
        })
    }

    /// Returns the exact path or prefix of a rule.
    fn path(&self, number: u32) -> &str {
        match self.rules.get(number as usize).map(|rule| &rule.path) {
            Some(PathMatch::Exact(path)) => path,
            Some(PathMatch::Prefix(prefix)) => prefix.trim_end_matches('/'),
            Some(PathMatch::Regex(_)) | None => "",
        }
    }

    /// Returns the first rule of a part of the index that has a path and matches a request.
    fn first_with_path(&self, entries: &[Entry], path: &str, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        if entries.is_empty() {
            return None;
        }
        let wanted = hash(path);
        let start = entries.partition_point(|entry| entry.hash < wanted);
        let hashed = entries.get(start..)?.iter().take_while(|entry| entry.hash == wanted);
        hashed.filter(|entry| self.path(entry.number) == path).find_map(|entry| {
            let number = entry.number as usize;
            let rule = self.rules.get(number)?;
            rule.matches_beside_path(request).then_some(MatchedRule { number, rule })
        })
    }

    fn find_regex(&self, request: &Request<'_>) -> Option<MatchedRule<'_>> {
        self.regex.iter().find_map(|&number| {
            let number = number as usize;
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
                && let Some(found) = self.first_with_path(&self.prefix, prefix, request)
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
