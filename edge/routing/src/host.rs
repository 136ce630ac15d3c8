//! Tables by host name.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

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
///
/// Copies share their parts: a copy costs nothing, and a change of one host costs the same among a few hosts and among
/// thousands.
#[derive(Clone, Debug)]
pub struct Hosts<T> {
    exact: OrdMap<Arc<str>, T>,
    one_label: OrdMap<Arc<str>, T>,
    wildcard: OrdMap<Arc<str>, T>,
    any: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Hosts { exact: OrdMap::new(), one_label: OrdMap::new(), wildcard: OrdMap::new(), any: None }
    }
}

impl<T: Clone> Hosts<T> {
    /// Sets the value of a pattern.
    pub fn insert(&mut self, pattern: HostPattern, value: T) {
        match pattern {
            HostPattern::Exact(name) => {
                self.exact.insert(name.into(), value);
            }
            HostPattern::Wildcard(suffix) => {
                self.wildcard.insert(suffix.into(), value);
            }
            HostPattern::OneLabel(suffix) => {
                self.one_label.insert(suffix.into(), value);
            }
            HostPattern::Any => self.any = Some(value),
        }
    }

    /// Removes the value of a pattern.
    pub fn remove(&mut self, pattern: &HostPattern) {
        match pattern {
            HostPattern::Exact(name) => drop(self.exact.remove(name.as_str())),
            HostPattern::Wildcard(suffix) => drop(self.wildcard.remove(suffix.as_str())),
            HostPattern::OneLabel(suffix) => drop(self.one_label.remove(suffix.as_str())),
            HostPattern::Any => self.any = None,
        }
    }

    /// Returns the value of a pattern itself.
    pub fn get(&self, pattern: &HostPattern) -> Option<&T> {
        match pattern {
            HostPattern::Exact(name) => self.exact.get(name.as_str()),
            HostPattern::Wildcard(suffix) => self.wildcard.get(suffix.as_str()),
            HostPattern::OneLabel(suffix) => self.one_label.get(suffix.as_str()),
            HostPattern::Any => self.any.as_ref(),
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
        let exact = self.exact.iter().map(|(name, value)| (HostPattern::Exact(name.to_string()), value));
        let wildcard = self.wildcard.iter().map(|(suffix, value)| (HostPattern::Wildcard(suffix.to_string()), value));
        let one_label = self.one_label.iter().map(|(suffix, value)| (HostPattern::OneLabel(suffix.to_string()), value));
        exact.chain(one_label).chain(wildcard).chain(self.any.iter().map(|value| (HostPattern::Any, value)))
    }

    /// Returns all values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.exact.values().chain(self.one_label.values()).chain(self.wildcard.values()).chain(&self.any)
    }
}

/// Values that were made of those of hosts, one for each.
#[derive(Clone, Debug)]
pub struct MadeHosts<T, U> {
    from: Hosts<T>,
    made: Hosts<U>,
}

impl<T, U> Default for MadeHosts<T, U> {
    fn default() -> Self {
        MadeHosts { from: Hosts::default(), made: Hosts::default() }
    }
}

impl<T: Clone + PartialEq, U: Clone> MadeHosts<T, U> {
    /// Returns the made values by host.
    pub fn hosts(&self) -> &Hosts<U> {
        &self.made
    }

    /// Makes the values of hosts that differ from those that these were made of. `make` also gets the value that it made
    /// for the host before.
    pub fn follow(&mut self, hosts: &Hosts<T>, mut make: impl FnMut(&T, Option<&U>) -> U) {
        let MadeHosts { from, made } = self;
        follow(&from.exact, &hosts.exact, &mut made.exact, &mut make);
        follow(&from.one_label, &hosts.one_label, &mut made.one_label, &mut make);
        follow(&from.wildcard, &hosts.wildcard, &mut made.wildcard, &mut make);
        if from.any != hosts.any {
            made.any = hosts.any.as_ref().map(|value| make(value, made.any.as_ref()));
        }
        *from = hosts.clone();
    }
}

/// Makes the values that differ between two maps. Parts that both share are not looked at.
fn follow<T: Clone + PartialEq, U: Clone>(
    from: &OrdMap<Arc<str>, T>,
    to: &OrdMap<Arc<str>, T>,
    made: &mut OrdMap<Arc<str>, U>,
    make: &mut impl FnMut(&T, Option<&U>) -> U,
) {
    for item in from.diff(to) {
        match item {
            DiffItem::Add(name, value) | DiffItem::Update { new: (name, value), .. } => {
                let next = make(value, made.get(name));
                made.insert(Arc::clone(name), next);
            }
            DiffItem::Remove(name, _) => {
                made.remove(name);
            }
        }
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

    #[test]
    fn only_values_that_differ_are_made_again() {
        let mut hosts = Hosts::default();
        for number in 0..5000 {
            hosts.insert(HostPattern::Exact(format!("{number}.test")), number);
        }
        hosts.insert(HostPattern::Any, 1);
        let mut made: MadeHosts<i32, i32> = MadeHosts::default();
        made.follow(&hosts, |value, _| *value);
        let mut next = hosts.clone();
        next.insert(HostPattern::Exact("new.test".to_owned()), 5000);
        next.insert(HostPattern::Exact("7.test".to_owned()), 70);
        next.remove(&HostPattern::Exact("8.test".to_owned()));
        let mut count = 0;
        made.follow(&next, |value, _| {
            count += 1;
            -*value
        });
        assert_eq!(count, 2);
        let found = |name: &str| made.hosts().find(name).copied();
        assert_eq!((found("new.test"), found("7.test"), found("8.test")), (Some(-5000), Some(-70), Some(1)));
        assert_eq!((found("9.test"), found("other")), (Some(9), Some(1)));
        assert_eq!(made.hosts().values().count(), next.values().count());
    }
}
