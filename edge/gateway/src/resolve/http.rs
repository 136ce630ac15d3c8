//! Rules of HTTPRoutes and GRPCRoutes.

use std::sync::Arc;
use std::time::Duration;

use corten_routing::{
    BackendRef, Cors, Filter, FixedResponse, HeaderChange, HeaderMatch, HttpRule, Mirror, ObjectName, PathChange,
    PathMatch, QueryMatch, Redirect, Retry, StringMatch, Timeouts,
};
use regex::Regex;

use super::backends;
use super::certificates::Problem;
use super::references::From;
use crate::objects::{
    BackendRefSpec, FilterSpec, GrpcMatchSpec, GrpcRouteSpec, HeaderFilter, HttpMatchSpec, HttpRouteSpec, HttpRuleSpec,
    Objects, PathModifier, ValueMatch,
};

/// The longest regular expression, in bytes of its compiled form.
const REGEX_SIZE: usize = 256 * 1024;

/// The rules of a route, and the errors of its references and values.
#[derive(Default, Debug)]
pub struct Rules {
    pub rules: Vec<Arc<HttpRule>>,
    /// A reference that cannot be resolved, for the condition ResolvedRefs.
    pub unresolved: Option<Box<Problem>>,
    /// A value that cannot be used, for the condition Accepted.
    pub unsupported: Option<Box<Problem>>,
}

/// Where a route's references come from.
pub struct Source<'a> {
    pub objects: &'a Objects,
    pub from: From<'a>,
    pub route: ObjectName,
}

/// Returns the rules of an HTTPRoute.
pub fn http(source: &Source<'_>, spec: &HttpRouteSpec) -> Rules {
    let mut rules = Rules::default();
    for rule in &spec.rules {
        let filters: Arc<[Filter]> = source.filters(&rule.filters, &mut rules).into();
        let backends = source.backends(&rule.backend_refs, &rule.filters, &mut rules);
        let parts =
            Parts { name: rule.name.as_deref(), filters, backends, timeouts: timeouts(rule), retry: retry(rule) };
        let all = [HttpMatchSpec::default()];
        let matches = if rule.matches.is_empty() { all.as_slice() } else { &rule.matches };
        for one in matches {
            match http_rule(source, &parts, one) {
                Ok(rule) => rules.rules.push(Arc::new(rule)),
                Err(problem) => rules.unsupported = Some(Box::new(problem)),
            }
        }
    }
    rules.rules.shrink_to_fit();
    rules
}

/// Returns the rules of a GRPCRoute: a method is the path of a POST.
pub fn grpc(source: &Source<'_>, spec: &GrpcRouteSpec) -> Rules {
    let mut rules = Rules::default();
    for rule in &spec.rules {
        let filters: Arc<[Filter]> = source.filters(&rule.filters, &mut rules).into();
        let backends = source.backends(&rule.backend_refs, &rule.filters, &mut rules);
        let name = rule.name.as_deref();
        let parts = Parts { name, filters, backends, timeouts: Timeouts::default(), retry: None };
        let all = [GrpcMatchSpec::default()];
        let matches = if rule.matches.is_empty() { all.as_slice() } else { &rule.matches };
        for one in matches {
            match grpc_rule(source, &parts, one) {
                Ok(rule) => rules.rules.push(Arc::new(rule)),
                Err(problem) => rules.unsupported = Some(Box::new(problem)),
            }
        }
    }
    rules.rules.shrink_to_fit();
    rules
}

/// The parts that all matches of a rule share.
struct Parts<'a> {
    name: Option<&'a str>,
    filters: Arc<[Filter]>,
    backends: Arc<[BackendRef]>,
    timeouts: Timeouts,
    retry: Option<Arc<Retry>>,
}

impl Parts<'_> {
    fn rule(&self, source: &Source<'_>, path: PathMatch, headers: Vec<HeaderMatch>) -> HttpRule {
        HttpRule {
            route: source.route.clone(),
            rule_name: self.name.map(Arc::from),
            path,
            method: None,
            headers,
            query: Vec::new(),
            filters: self.filters.clone(),
            backends: self.backends.clone(),
            timeouts: self.timeouts,
            retry: self.retry.clone(),
            session: None,
            grpc: false,
            grpc_method: None,
        }
    }
}

fn http_rule(source: &Source<'_>, parts: &Parts<'_>, spec: &HttpMatchSpec) -> Result<HttpRule, Problem> {
    let path = match spec.path.type_.as_str() {
        "Exact" => PathMatch::Exact(spec.path.value.clone()),
        "RegularExpression" => PathMatch::Regex(regex(&spec.path.value)?),
        _ => PathMatch::Prefix(spec.path.value.trim_end_matches('/').to_owned()),
    };
    let query = spec.query_params.iter().map(|one| Ok(QueryMatch { name: one.name.clone(), value: value(one)? }));
    let mut rule = parts.rule(source, path, headers(&spec.headers)?);
    rule.method = spec.method.as_deref().map(Arc::from);
    rule.query = query.collect::<Result<_, Problem>>()?;
    Ok(rule)
}

fn grpc_rule(source: &Source<'_>, parts: &Parts<'_>, spec: &GrpcMatchSpec) -> Result<HttpRule, Problem> {
    let method = &spec.method;
    let is_regex = method.type_ == "RegularExpression";
    let part = |text: &Option<String>| match text {
        Some(text) if is_regex => text.clone(),
        Some(text) => regex::escape(text),
        None => "[^/]+".to_owned(),
    };
    let path = match (&method.service, &method.method) {
        (None, None) => PathMatch::Prefix(String::new()),
        (Some(service), Some(name)) if !is_regex => PathMatch::Exact(format!("/{service}/{name}")),
        (Some(service), None) if !is_regex => PathMatch::Prefix(format!("/{service}")),
        // The service decides first, so a method alone ranks below every service.
        (None, Some(_)) if !is_regex => PathMatch::Prefix(String::new()),
        (service, name) => PathMatch::Regex(regex(&format!("/{}/{}", part(service), part(name)))?),
    };
    let mut rule = parts.rule(source, path, headers(&spec.headers)?);
    rule.grpc = true;
    if method.service.is_none() && !is_regex {
        rule.grpc_method = method.method.as_deref().map(Arc::from);
    }
    Ok(rule)
}

fn headers(matches: &[ValueMatch]) -> Result<Vec<HeaderMatch>, Problem> {
    let header = |one: &ValueMatch| Ok(HeaderMatch { name: one.name.to_lowercase(), value: value(one)? });
    // Of several matches of a name that differ in case the first counts.
    let is_first = |(number, one): &(usize, &ValueMatch)| {
        !matches.iter().take(*number).any(|before| before.name.eq_ignore_ascii_case(&one.name))
    };
    matches.iter().enumerate().filter(is_first).map(|(_, one)| header(one)).collect()
}

fn value(one: &ValueMatch) -> Result<StringMatch, Problem> {
    match one.type_.as_str() {
        "RegularExpression" => Ok(StringMatch::Regex(regex(&one.value)?)),
        _ => Ok(StringMatch::Exact(one.value.clone())),
    }
}

/// Compiles a regular expression that must match a whole value.
pub fn regex(text: &str) -> Result<Regex, Problem> {
    let anchored = format!("^(?:{text})$");
    let built = regex::RegexBuilder::new(&anchored).size_limit(REGEX_SIZE).build();
    built.map_err(|_| Problem::new("UnsupportedValue", format!("{text:?} is no regular expression that is supported")))
}

/// Compiles the regular expression of an Ingress's path.
pub fn path_regex(text: &str) -> Result<Regex, Problem> {
    let unsupported = || Problem::new("UnsupportedValue", "no regular expression that is supported");
    crate::path_regex::compile(text).ok_or_else(unsupported)
}

fn timeouts(rule: &HttpRuleSpec) -> Timeouts {
    let of = |text: &Option<String>| text.as_deref().and_then(duration).filter(|time| !time.is_zero());
    Timeouts { request: of(&rule.timeouts.request), backend_request: of(&rule.timeouts.backend_request) }
}

fn retry(rule: &HttpRuleSpec) -> Option<Arc<Retry>> {
    let retry = rule.retry.as_ref()?;
    let backoff = retry.backoff.as_deref().and_then(duration).unwrap_or(Duration::from_millis(25));
    let attempts = retry.attempts.unwrap_or(1);
    Some(Arc::new(Retry { attempts, codes: retry.codes.clone(), backoff, idempotent_only: false }))
}

/// Parses a duration of Gateway API, such as `1h30m` or `500ms`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|character: char| character.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let number: u64 = number.parse().ok()?;
        total += match unit {
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
        rest = tail;
    }
    Some(total)
}

impl Source<'_> {
    /// Returns the backends of a rule. A rule without one, or without weight, answers with 500 unless it redirects.
    fn backends(&self, specs: &[BackendRefSpec], filters: &[FilterSpec], rules: &mut Rules) -> Arc<[BackendRef]> {
        let redirects = filters.iter().any(|filter| filter.type_ == "RequestRedirect");
        if specs.is_empty() && !redirects {
            return Arc::new([backends::invalid(1)]);
        }
        let backend = |spec: &BackendRefSpec| {
            let weight = spec.weight.unwrap_or(1);
            let key = backends::resolve(self.objects, self.from, &spec.target);
            let filters = self.filters(&spec.filters, rules);
            match key {
                Ok(key) => backends::reference(weight, Some(key), filters),
                Err(problem) => {
                    rules.unresolved.get_or_insert(Box::new(problem));
                    backends::invalid(weight)
                }
            }
        };
        specs.iter().map(backend).collect()
    }

    fn filters(&self, specs: &[FilterSpec], rules: &mut Rules) -> Vec<Filter> {
        specs.iter().filter_map(|spec| self.filter(spec, rules)).collect()
    }

    fn filter(&self, spec: &FilterSpec, rules: &mut Rules) -> Option<Filter> {
        match spec.type_.as_str() {
            "RequestHeaderModifier" => Some(Filter::RequestHeaders(header_change(&spec.request_header_modifier))),
            "ResponseHeaderModifier" => Some(Filter::ResponseHeaders(header_change(&spec.response_header_modifier))),
            "RequestRedirect" => Some(Filter::Redirect(redirect(spec))),
            "URLRewrite" => {
                let rewrite = &spec.url_rewrite;
                let hostname = rewrite.hostname.as_deref().map(Arc::from);
                Some(Filter::Rewrite { hostname, path: rewrite.path.as_ref().map(path_change) })
            }
            "RequestMirror" => self.mirror(spec, rules),
            "CORS" => Some(Filter::Cors(cors(spec))),
            _ => {
                let message = format!("filters of type {} are not supported", spec.type_);
                rules.unresolved.get_or_insert(Box::new(Problem::new("InvalidKind", message)));
                Some(unsupported_filter())
            }
        }
    }

    fn mirror(&self, spec: &FilterSpec, rules: &mut Rules) -> Option<Filter> {
        let mirror = &spec.request_mirror;
        let fraction = match (&mirror.fraction, mirror.percent) {
            (Some(fraction), _) => (fraction.numerator, fraction.denominator.unwrap_or(100)),
            (None, Some(percent)) => (percent, 100),
            (None, None) => (1, 1),
        };
        let (numerator, denominator) = fraction;
        match backends::resolve(self.objects, self.from, &mirror.backend_ref) {
            Ok(backend) => Some(Filter::Mirror(Mirror { backend, numerator, denominator: denominator.max(1) })),
            Err(problem) => {
                rules.unresolved.get_or_insert(Box::new(problem));
                None
            }
        }
    }
}

/// Returns the filter of a rule that cannot be followed: a filter must never be skipped.
pub fn unsupported_filter() -> Filter {
    let content_type = "text/plain".into();
    Filter::Respond(Arc::new(FixedResponse { status: 500, content_type, body: Arc::new([]), exempt: Vec::new() }))
}

fn header_change(spec: &HeaderFilter) -> HeaderChange {
    let pairs = |list: &[ValueMatch]| list.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
    HeaderChange { set: pairs(&spec.set), add: pairs(&spec.add), remove: spec.remove.clone() }
}

fn redirect(spec: &FilterSpec) -> Redirect {
    let redirect = &spec.request_redirect;
    Redirect {
        scheme: redirect.scheme.as_deref().map(Arc::from),
        hostname: redirect.hostname.as_deref().map(Arc::from),
        path: redirect.path.as_ref().map(path_change),
        port: redirect.port,
        status: redirect.status_code.unwrap_or(302),
    }
}

fn path_change(modifier: &PathModifier) -> PathChange {
    match modifier.type_.as_str() {
        "ReplaceFullPath" => PathChange::ReplaceFull(modifier.replace_full_path.as_str().into()),
        _ => PathChange::ReplacePrefix(modifier.replace_prefix_match.as_str().into()),
    }
}

fn cors(spec: &FilterSpec) -> Cors {
    let cors = spec.cors.clone();
    Cors {
        allow_origins: cors.allow_origins,
        allow_methods: cors.allow_methods,
        allow_headers: cors.allow_headers,
        expose_headers: cors.expose_headers,
        allow_credentials: cors.allow_credentials,
        max_age_seconds: cors.max_age,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(duration("0s"), Some(Duration::ZERO));
        assert_eq!(duration("5"), None);
        assert_eq!(duration("5d"), None);
    }

    #[test]
    fn a_regular_expression_matches_the_whole_value() {
        let regex = regex("a|bc").expect("a regular expression");
        assert!(regex.is_match("bc"));
        assert!(!regex.is_match("abc"));
        assert!(super::regex("(").is_err());
        assert!(super::regex("((a{100}){100}){100}").is_err());
    }
}
