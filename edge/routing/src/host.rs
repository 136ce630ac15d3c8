//! Tables by host name.

use std::collections::BTreeMap;

/// A host name of a listener or route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// A whole name, in lower case.
    Exact(String),
    /// `*.example.com` as `example.com`: every name below it, of one label or more.
    Wildcard(String),
    /// `*.example.com` of an Ingress as `example.com`: every name below it, of exactly one label.
    OneLabel(String),
    /// Every host.
    Any,
}

/// Values by host. The most specific pattern wins: the exact name, then the longest wildcard, then any.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    exact: BTreeMap<String, T>,
    one_label: BTreeMap<String, T>,
    wildcard: BTreeMap<String, T>,
    any: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Hosts { exact: BTreeMap::new(), one_label: BTreeMap::new(), wildcard: BTreeMap::new(), any: None }
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
            HostPattern::OneLabel(suffix) => {
                self.one_label.insert(suffix, value);
            }
            HostPattern::Any => self.any = Some(value),
        }
    }

    /// Returns the value of the most specific pattern that matches a host in lower case, without a port.
    pub fn find(&self, host: &str) -> Option<&T> {
        if let Some(value) = self.exact.get(host) {
            return Some(value);
        }
        if let Some(value) = host.split_once('.').and_then(|(_, suffix)| self.one_label.get(suffix)) {
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
        let one_label = self.one_label.iter().map(|(suffix, value)| (HostPattern::OneLabel(suffix.clone()), value));
        exact.chain(one_label).chain(wildcard).chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }

    /// Returns the same patterns with other values.
    pub fn map<U>(&self, mut change: impl FnMut(&T) -> U) -> Hosts<U> {
        Hosts {
            exact: self.exact.iter().map(|(name, value)| (name.clone(), change(value))).collect(),
            one_label: self.one_label.iter().map(|(suffix, value)| (suffix.clone(), change(value))).collect(),
            wildcard: self.wildcard.iter().map(|(suffix, value)| (suffix.clone(), change(value))).collect(),
            any: self.any.as_ref().map(change),
        }
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.one_label.values()).chain(self.wildcard.values()).chain(&self.any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_wins() {
        let mut hosts = Hosts::default();
        hosts.insert(HostPattern::Exact("a.b.test".to_owned()), "exact");
        hosts.insert(HostPattern::OneLabel("b.test".to_owned()), "one label");
        hosts.insert(HostPattern::Wildcard("test".to_owned()), "wildcard");
        let found = |host: &str| hosts.find(host).copied();
        assert_eq!(found("a.b.test"), Some("exact"));
        assert_eq!(found("x.b.test"), Some("one label"));
        assert_eq!(found("x.y.b.test"), Some("wildcard"));
        assert_eq!(found("b.test"), Some("wildcard"));
        assert_eq!(found("test"), None);
    }
}
