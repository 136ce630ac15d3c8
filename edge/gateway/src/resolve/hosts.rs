//! Host names of listeners and routes, and the names that both have in common.

use corten_routing::HostPattern;

/// Returns the pattern of a host name of the API; no name means every host.
pub fn pattern(hostname: Option<&str>) -> HostPattern {
    match hostname.filter(|name| !name.is_empty()) {
        None => HostPattern::Any,
        Some(name) => match name.strip_prefix("*.") {
            Some(suffix) => HostPattern::Wildcard(suffix.to_lowercase()),
            None => HostPattern::Exact(name.to_lowercase()),
        },
    }
}

/// Returns the pattern of a host name of an Ingress, whose wildcard stands for one label.
pub fn ingress_pattern(hostname: Option<&str>) -> HostPattern {
    match pattern(hostname) {
        HostPattern::Wildcard(suffix) => HostPattern::OneLabel(suffix),
        other => other,
    }
}

/// Reports whether every host of `inner` is one of `outer`.
pub fn covers(outer: &HostPattern, inner: &HostPattern) -> bool {
    let is_below = |name: &str, suffix: &str| name.strip_suffix(suffix).is_some_and(|head| head.ends_with('.'));
    match (outer, inner) {
        (HostPattern::Any, _) => true,
        (HostPattern::Exact(outer), HostPattern::Exact(inner)) => outer == inner,
        (HostPattern::OneLabel(outer), HostPattern::OneLabel(inner)) => outer == inner,
        (HostPattern::OneLabel(outer), HostPattern::Exact(inner)) => {
            inner.split_once('.').is_some_and(|(_, suffix)| suffix == outer)
        }
        (HostPattern::Wildcard(outer), HostPattern::Exact(inner)) => is_below(inner, outer),
        (HostPattern::Wildcard(outer), HostPattern::Wildcard(inner)) => outer == inner || is_below(inner, outer),
        _ => false,
    }
}

/// Returns the patterns that cover another one, the narrowest first.
pub fn wider(pattern: &HostPattern) -> Vec<HostPattern> {
    let mut patterns = Vec::new();
    let name = match pattern {
        HostPattern::Exact(name) => {
            patterns.extend(name.split_once('.').map(|(_, suffix)| HostPattern::OneLabel(suffix.to_owned())));
            name
        }
        HostPattern::Wildcard(suffix) => suffix,
        HostPattern::OneLabel(_) => return vec![HostPattern::Any],
        HostPattern::Any => return patterns,
    };
    let mut rest = name.as_str();
    while let Some((_, suffix)) = rest.split_once('.') {
        patterns.push(HostPattern::Wildcard(suffix.to_owned()));
        rest = suffix;
    }
    patterns.push(HostPattern::Any);
    patterns
}

/// Returns the hosts that a listener and a route have in common. A route without host names has those of the listener.
pub fn intersect(listener: Option<&str>, route: &[String]) -> Vec<HostPattern> {
    let listener = pattern(listener);
    if route.is_empty() {
        return vec![listener];
    }
    let mut common: Vec<HostPattern> = route
        .iter()
        .map(|name| pattern(Some(name)))
        .filter_map(|route| match (covers(&listener, &route), covers(&route, &listener)) {
            (true, _) => Some(route),
            (_, true) => Some(listener.clone()),
            _ => None,
        })
        .collect();
    common.sort();
    common.dedup();
    common
}

/// Returns the order of specificity: the most specific first.
pub fn specificity(pattern: &HostPattern) -> (u8, std::cmp::Reverse<usize>) {
    match pattern {
        HostPattern::Exact(name) => (0, std::cmp::Reverse(name.len())),
        HostPattern::OneLabel(suffix) => (1, std::cmp::Reverse(suffix.len())),
        HostPattern::Wildcard(suffix) => (2, std::cmp::Reverse(suffix.len())),
        HostPattern::Any => (3, std::cmp::Reverse(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(listener: &str, route: &str) -> String {
        let routes: Vec<String> = route.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let listener = Some(listener).filter(|name| !name.is_empty());
        let name = |pattern: &HostPattern| match pattern {
            HostPattern::Exact(name) => name.clone(),
            HostPattern::Wildcard(suffix) | HostPattern::OneLabel(suffix) => format!("*.{suffix}"),
            HostPattern::Any => "any".to_owned(),
        };
        intersect(listener, &routes).iter().map(name).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn wider_patterns_are_those_that_cover_it() {
        let names = ["", "a", "a.b", "x.a.b", "y.x.a.b", "xa.b", "*.b", "*.a.b", "*.x.a.b", "*.a"];
        let mut all: Vec<HostPattern> = names.iter().map(|name| pattern(Some(name))).collect();
        all.extend(names.iter().map(|name| ingress_pattern(Some(name))));
        all.sort_by_key(specificity);
        all.dedup();
        for one in &all {
            let covering: Vec<&HostPattern> = all.iter().filter(|other| *other != one && covers(other, one)).collect();
            let wider = wider(one);
            let found: Vec<&HostPattern> = wider.iter().filter(|other| all.contains(other)).collect();
            assert_eq!(found, covering, "{one:?}");
        }
    }

    #[test]
    fn the_narrower_of_two_patterns_is_common() {
        assert_eq!(common("", ""), "any");
        assert_eq!(common("", "a.com *.b.com"), "a.com *.b.com");
        assert_eq!(common("a.com", ""), "a.com");
        assert_eq!(common("*.a.com", "x.a.com y.z.a.com a.com b.com"), "x.a.com y.z.a.com");
        assert_eq!(common("x.a.com", "*.a.com"), "x.a.com");
        assert_eq!(common("*.a.com", "*.x.a.com *.com"), "*.a.com *.x.a.com");
        assert_eq!(common("*.a.com", "xa.com *.xa.com"), "");
    }
}
