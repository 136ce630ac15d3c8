//! Tables by host name.

use std::collections::BTreeMap;

/// A host name of a listener or route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// A whole name, in lower case.
    Exact(String),
    /// `*.example.com` as `example.com`: every name below it, of one label or more.
    Wildcard(String),
    /// Every host.
    Any,
}

/// Values by host. The most specific pattern wins: the exact name, then the longest wildcard, then any.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    exact: BTreeMap<String, T>,
    wildcard: BTreeMap<String, T>,
    any: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Hosts { exact: BTreeMap::new(), wildcard: BTreeMap::new(), any: None }
    }
}

impl<T> Hosts<T> {
    /// Sets the value of a pattern.
    pub fn insert(&mut self, pattern: HostPattern, value: T) {
        match pattern {
            HostPattern::Exact(name) => {
                self.exact.insert(name, value);
            }
            HostPattern::Wildcard(suffix) => {
                self.wildcard.insert(suffix, value);
            }
            HostPattern::Any => self.any = Some(value),
        }
    }

    /// Returns the value of the most specific pattern that matches a host in lower case, without a port.
    pub fn find(&self, host: &str) -> Option<&T> {
        if let Some(value) = self.exact.get(host) {
            return Some(value);
        }
        let mut rest = host;
        while let Some((_, suffix)) = rest.split_once('.') {
            if let Some(value) = self.wildcard.get(suffix) {
                return Some(value);
            }
            rest = suffix;
        }
        self.any.as_ref()
    }

    /// Returns all patterns with their values, the most specific kind first.
    pub fn entries(&self) -> impl Iterator<Item = (HostPattern, &T)> {
        let exact = self.exact.iter().map(|(name, value)| (HostPattern::Exact(name.clone()), value));
        let wildcard = self.wildcard.iter().map(|(suffix, value)| (HostPattern::Wildcard(suffix.clone()), value));
        exact.chain(wildcard).chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.wildcard.values()).chain(&self.any)
    }
}
