//! The consequences of policies for the rules that they concern: filters in their order, and the settings beside them.
//!
//! Restrictions (addresses, rates, authentication) of all policies of a rule add up: a policy of a route never loosens
//! that of its Gateway. Of every other setting the policy with the narrowest target decides.

use std::sync::Arc;

use corten_routing::{
    BackendKey, BackendRef, ErrorPages, Filter, HashKey, HeaderMatch, HttpRule, Retry, SessionPersistence, StringMatch,
    Timeouts,
};
use regex::Regex;

use super::backends;

/// The consequences of one policy, or of all policies of a rule together.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Limits of addresses, rates and requests in flight.
    pub limits: Vec<Filter>,
    pub authentication: Vec<Filter>,
    pub maintenance: Option<Filter>,
    pub max_body_bytes: Option<u64>,
    pub compression: Option<bool>,
    pub access_log: Option<bool>,
    pub hash_by: Option<HashKey>,
    pub error_pages: Option<Arc<ErrorPages>>,
    pub rewrite: Option<Filter>,
    pub timeouts: Timeouts,
    pub retry: Option<Arc<Retry>>,
    pub session: Option<Arc<SessionPersistence>>,
    pub canary: Option<Canary>,
}

/// A second version of a rule's backends, for some requests.
#[derive(Clone, Debug)]
pub struct Canary {
    /// None if the reference is invalid.
    pub backend: Option<BackendKey>,
    pub header: Option<CanaryHeader>,
    /// The cookie whose values `always` and `never` decide.
    pub cookie: Option<String>,
    pub weight: u32,
    pub total: u32,
}

/// The header that decides.
#[derive(Clone, Debug)]
pub struct CanaryHeader {
    /// In lower case.
    pub name: String,
    pub values: CanaryValues,
}

#[derive(Clone, Debug)]
pub enum CanaryValues {
    /// `always` takes the canary, `never` does not.
    AlwaysNever,
    Value(String),
    Pattern(Regex),
}

impl Settings {
    /// Returns the settings of a narrower target over these.
    pub fn narrowed(&self, narrower: &Settings) -> Settings {
        let joined = |wide: &[Filter], narrow: &[Filter]| [wide, narrow].concat();
        Settings {
            limits: joined(&self.limits, &narrower.limits),
            authentication: joined(&self.authentication, &narrower.authentication),
            maintenance: narrower.maintenance.clone().or_else(|| self.maintenance.clone()),
            max_body_bytes: narrower.max_body_bytes.or(self.max_body_bytes),
            compression: narrower.compression.or(self.compression),
            access_log: narrower.access_log.or(self.access_log),
            hash_by: narrower.hash_by.clone().or_else(|| self.hash_by.clone()),
            error_pages: narrower.error_pages.clone().or_else(|| self.error_pages.clone()),
            rewrite: narrower.rewrite.clone().or_else(|| self.rewrite.clone()),
            timeouts: Timeouts {
                request: narrower.timeouts.request.or(self.timeouts.request),
                backend_request: narrower.timeouts.backend_request.or(self.timeouts.backend_request),
            },
            retry: narrower.retry.clone().or_else(|| self.retry.clone()),
            session: narrower.session.clone().or_else(|| self.session.clone()),
            canary: narrower.canary.clone().or_else(|| self.canary.clone()),
        }
    }

    /// Lets requests pass whose address or whose authentication suffices, instead of those with both.
    pub fn satisfy_any(&mut self) {
        let is_address = |filter: &Filter| matches!(filter, Filter::Addresses(_));
        if self.authentication.is_empty() || !self.limits.iter().any(is_address) {
            return;
        }
        let (addresses, limits): (Vec<Filter>, Vec<Filter>) =
            std::mem::take(&mut self.limits).into_iter().partition(is_address);
        self.limits = limits;
        let conditions: Vec<Filter> = addresses.into_iter().chain(std::mem::take(&mut self.authentication)).collect();
        self.authentication = vec![Filter::AnyOf(conditions.into())];
    }

    /// Returns the filters that a reference to a backend gets.
    pub fn backend_filters(&self) -> Vec<Filter> {
        let size = self.max_body_bytes.map(Filter::BodySize);
        self.limits.iter().chain(&self.authentication).cloned().chain(size).collect()
    }

    /// Returns rules with these settings. Rules that are matches of one rule of a route still share what follows.
    pub fn apply(&self, rules: &[HttpRule]) -> Vec<HttpRule> {
        let mut applied = Vec::with_capacity(rules.len());
        let mut last: Option<(&HttpRule, Parts)> = None;
        for rule in rules {
            let parts = match last.take() {
                Some((before, parts)) if is_same(before, rule) => parts,
                _ => self.parts(rule),
            };
            self.add(rule, &parts, &mut applied);
            last = Some((rule, parts));
        }
        applied
    }

    fn parts(&self, rule: &HttpRule) -> Parts {
        let filters: Arc<[Filter]> = self.filters(&rule.filters).into();
        let canary = self.canary.as_ref().map(|canary| canary.only());
        let backends = match &self.canary {
            Some(canary) => canary.mixed(&rule.backends).into(),
            None => Arc::clone(&rule.backends),
        };
        Parts { filters, stable: Arc::clone(&rule.backends), backends, canary }
    }

    /// Returns the filters of a rule: limits, redirects and preflights before authentication, then the others.
    fn filters(&self, own: &[Filter]) -> Vec<Filter> {
        let is_early = |filter: &&Filter| matches!(filter, Filter::Redirect(_) | Filter::Cors(_));
        let mut filters = self.limits.clone();
        filters.extend(own.iter().filter(is_early).cloned());
        filters.extend(self.maintenance.clone());
        filters.extend(self.authentication.iter().cloned());
        filters.extend(self.max_body_bytes.map(Filter::BodySize));
        filters.extend((self.compression == Some(true)).then_some(Filter::Compression));
        filters.extend((self.access_log == Some(false)).then_some(Filter::NoAccessLog));
        filters.extend(self.hash_by.clone().map(Filter::HashBy));
        filters.extend(self.error_pages.clone().map(Filter::ErrorPages));
        filters.extend(own.iter().filter(|filter| !is_early(filter)).cloned());
        filters.extend(self.rewrite.clone());
        filters
    }

    fn add(&self, rule: &HttpRule, parts: &Parts, rules: &mut Vec<HttpRule>) {
        let timeouts = Timeouts {
            request: rule.timeouts.request.or(self.timeouts.request),
            backend_request: rule.timeouts.backend_request.or(self.timeouts.backend_request),
        };
        let base = HttpRule {
            filters: Arc::clone(&parts.filters),
            backends: Arc::clone(&parts.backends),
            timeouts,
            retry: rule.retry.clone().or_else(|| self.retry.clone()),
            session: rule.session.clone().or_else(|| self.session.clone()),
            ..rule.clone()
        };
        if let (Some(canary), Some(backends)) = (&self.canary, &parts.canary) {
            for decided in canary.decisions() {
                let mut narrower = base.clone();
                narrower.headers.push(decided.header);
                narrower.backends = Arc::clone(if decided.takes_canary { backends } else { &parts.stable });
                rules.push(narrower);
            }
        }
        rules.push(base);
    }
}

/// The parts that all matches of a rule share.
struct Parts {
    filters: Arc<[Filter]>,
    stable: Arc<[BackendRef]>,
    backends: Arc<[BackendRef]>,
    canary: Option<Arc<[BackendRef]>>,
}

/// Reports whether two rules are matches of one rule of a route.
fn is_same(one: &HttpRule, other: &HttpRule) -> bool {
    one.route == other.route && Arc::ptr_eq(&one.filters, &other.filters) && Arc::ptr_eq(&one.backends, &other.backends)
}

/// A match of a header or cookie that decides for or against the canary.
struct Decision {
    header: HeaderMatch,
    takes_canary: bool,
}

impl Canary {
    fn only(&self) -> Arc<[BackendRef]> {
        Arc::new([backends::reference(1, self.backend.clone(), Vec::new())])
    }

    /// Returns the backends of requests that no header or cookie decides on: both by weight.
    fn mixed(&self, stable: &[BackendRef]) -> Vec<BackendRef> {
        let rest = u64::from(self.total.saturating_sub(self.weight));
        let sum: u64 = stable.iter().map(|backend| u64::from(backend.weight)).sum();
        let canary = sum.max(1).saturating_mul(u64::from(self.weight));
        let mut weights: Vec<u64> = stable.iter().map(|one| u64::from(one.weight).saturating_mul(rest)).collect();
        weights.push(canary);
        let widest = weights.iter().copied().max().unwrap_or(0);
        let shift = u64::BITS.saturating_sub(widest.leading_zeros()).saturating_sub(u32::BITS);
        let scaled = |weight: u64| match u32::try_from(weight >> shift).unwrap_or(u32::MAX) {
            0 if weight > 0 => 1,
            scaled => scaled,
        };
        let added = backends::reference(1, self.backend.clone(), Vec::new());
        let all = stable.iter().cloned().chain([added]);
        all.zip(weights).map(|(backend, weight)| BackendRef { weight: scaled(weight), ..backend }).collect()
    }

    /// Returns the matches that decide, in the order of their precedence.
    fn decisions(&self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if let Some(header) = &self.header {
            let exact = |value: &str, takes_canary: bool| Decision {
                header: HeaderMatch { name: header.name.clone(), value: StringMatch::Exact(value.to_owned()) },
                takes_canary,
            };
            match &header.values {
                CanaryValues::AlwaysNever => decisions.extend([exact("always", true), exact("never", false)]),
                CanaryValues::Value(value) => decisions.push(exact(value, true)),
                CanaryValues::Pattern(regex) => decisions.push(Decision {
                    header: HeaderMatch { name: header.name.clone(), value: StringMatch::Regex(regex.clone()) },
                    takes_canary: true,
                }),
            }
        }
        let cookie = self.cookie.as_deref().into_iter();
        let cookies = cookie.flat_map(|name| [(name, "always", true), (name, "never", false)]);
        decisions.extend(cookies.filter_map(|(name, value, takes_canary)| {
            let header = HeaderMatch::cookie(name, value).ok()?;
            Some(Decision { header, takes_canary })
        }));
        decisions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary(weight: u32, total: u32) -> Canary {
        Canary { backend: None, header: None, cookie: None, weight, total }
    }

    #[test]
    fn weights_keep_their_proportion_and_their_bounds() {
        let stable: Vec<BackendRef> = [1, 3].map(backends::invalid).into();
        let weights = |canary: &Canary, stable: &[BackendRef]| -> Vec<u32> {
            canary.mixed(stable).iter().map(|backend| backend.weight).collect()
        };
        assert_eq!(weights(&canary(20, 100), &stable), [80, 240, 80]);
        assert_eq!(weights(&canary(0, 100), &stable), [100, 300, 0]);
        assert_eq!(weights(&canary(100, 100), &stable), [0, 0, 400]);
        assert_eq!(weights(&canary(200, 100), &stable), [0, 0, 800]);
        let heavy: Vec<BackendRef> = [1_000_000, 1].map(backends::invalid).into();
        let mixed = weights(&canary(500_000, 1_000_000), &heavy);
        assert_eq!(mixed.iter().filter(|weight| **weight == 0).count(), 0);
        assert!(mixed[2].abs_diff(mixed[0]) < mixed[0] / 1000, "{mixed:?}");
    }
}
