//! Rules of Ingresses: paths, filters, canaries and redirects.

use std::sync::Arc;

use corten_meta::Key;

use corten_routing::{
    BackendKey, BackendProtocol, Filter, FixedResponse, ForwardAuth, HeaderChange, HostPattern, HttpRule, Mirror,
    ObjectName, PathChange, PathMatch, Redirect, Timeouts,
};

use super::super::certificates::Problem;
use super::super::http::{path_regex, regex};
use super::super::settings::{Canary, CanaryHeader, CanaryValues, Settings};
use super::super::{Resolved, backends, table};
use super::{Collected, Context, Ours, Place, Rules, backend_at, hosts_of};
use crate::annotations::{CanaryRole, RedirectTo, is_token};
use crate::objects::{IngressBackend, IngressPath, Reference};

/// The headers that belong to a connection and to the form of a message: no ConfigMap sets them.
const CONNECTION_HEADERS: [&str; 7] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];
/// The most headers of one ConfigMap.
const MAX_RESPONSE_HEADERS: usize = 64;

/// Records a problem of an annotation, once for all paths of the Ingress.
fn refuse_once(one: &mut Ours<'_>, name: &str, message: &str) {
    if !one.options.problems.iter().any(|problem| problem.name == name && problem.message == message) {
        one.options.refuse(name, message, false);
    }
}

/// Returns the path that matches every request.
pub fn everything(backend: &IngressBackend) -> IngressPath {
    IngressPath { path: None, path_type: "Prefix".to_owned(), backend: backend.clone() }
}

/// Returns the filter of an Ingress with an annotation that cannot be followed.
pub fn closed() -> Filter {
    let response = FixedResponse {
        status: 503,
        content_type: "text/plain; charset=utf-8".into(),
        body: Arc::from(*b"An annotation of the Ingress is invalid.\n"),
        exempt: Vec::new(),
    };
    Filter::Respond(Arc::new(response))
}

fn new_rule(one: &Ours<'_>, path: PathMatch) -> HttpRule {
    let metadata = &one.object.metadata;
    HttpRule {
        route: ObjectName {
            kind: "Ingress",
            namespace: metadata.namespace.as_str().into(),
            name: metadata.name.as_str().into(),
        },
        rule_name: None,
        path,
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::new([]),
        backends: Arc::new([]),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: one.options.protocol.is_grpc(),
        grpc_method: None,
    }
}

/// Returns the rule that redirects the root of a host.
pub fn app_root(one: &Ours<'_>, root: &str) -> HttpRule {
    let path = Some(PathChange::ReplaceFull(root.into()));
    let redirect = Redirect { scheme: None, hostname: None, path, port: None, status: 302 };
    let rule = new_rule(one, PathMatch::Exact("/".to_owned()));
    HttpRule { filters: Arc::new([Filter::Redirect(redirect)]), ..rule }
}

fn redirect(to: &RedirectTo) -> Redirect {
    Redirect {
        scheme: Some(to.scheme.as_str().into()),
        hostname: to.host.as_deref().map(Arc::from),
        path: to.path.as_deref().map(|path| PathChange::ReplaceFull(path.into())),
        port: to.port,
        status: to.status,
    }
}

/// Returns a canary by its annotations.
pub fn canary(role: &CanaryRole, backend: Option<BackendKey>) -> Result<Canary, Problem> {
    let header = role.header.as_ref().map(|header| {
        let values = match (&header.value, &header.pattern) {
            (Some(value), _) => CanaryValues::Value(value.clone()),
            (None, Some(pattern)) => CanaryValues::Pattern(regex(pattern)?),
            (None, None) => CanaryValues::AlwaysNever,
        };
        Ok(CanaryHeader { name: header.name.to_lowercase(), values })
    });
    let header = header.transpose()?;
    Ok(Canary { backend, header, cookie: role.cookie.clone(), weight: role.weight, total: role.total })
}

/// Adds the redirects between hosts with and without `www.`, where no Ingress has rules for the other one.
pub fn add_www_redirects(ours: &[Ours<'_>], collected: &mut Rules) {
    for one in ours.iter().filter(|one| one.options.www_redirect && one.options.canary.is_none()) {
        for host in hosts_of(one.object) {
            let HostPattern::Exact(name) = host else { continue };
            let other = HostPattern::Exact(www_twin(&name));
            if collected.contains_key(&other) {
                continue;
            }
            let redirect = Redirect { scheme: None, hostname: Some(name.into()), path: None, port: None, status: 308 };
            let rule = new_rule(one, PathMatch::Prefix(String::new()));
            let rule = HttpRule { filters: Arc::new([Filter::Redirect(redirect)]), ..rule };
            collected.insert(other, vec![Collected { rule, https_only: false }]);
        }
    }
}

/// Returns a host with `www.` if it has none, and without it if it has one.
pub fn www_twin(host: &str) -> String {
    host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned)
}

impl Context<'_> {
    fn path(&self, host: &HostPattern, path: &IngressPath) -> Result<PathMatch, Problem> {
        let text = path.path.clone().unwrap_or_default();
        if self.regex_hosts.contains(host) && !text.is_empty() {
            return Ok(PathMatch::Regex(path_regex(&text)?));
        }
        Ok(match path.path_type.as_str() {
            "Exact" => PathMatch::Exact(text),
            // An implementation-specific path is a prefix here.
            _ => PathMatch::Prefix(text.trim_end_matches('/').to_owned()),
        })
    }

    /// Returns a rule with nothing but its path and backend.
    pub fn plain_rule(&self, one: &Ours<'_>, host: &HostPattern, path: &IngressPath) -> Result<HttpRule, Problem> {
        let backend = backends::reference(1, self.backend_key(one, &path.backend), Vec::new());
        Ok(HttpRule { backends: Arc::new([backend]), ..new_rule(one, self.path(host, path)?) })
    }

    /// Returns the rules of a path of a host, with all settings that concern it.
    pub fn rules(
        &self,
        one: &mut Ours<'_>,
        host: &HostPattern,
        path: &IngressPath,
        resolved: &mut Resolved,
    ) -> Vec<HttpRule> {
        let matched = match self.path(host, path) {
            Ok(matched) => matched,
            Err(problem) => {
                one.options.refuse("use-regex", format!("path: {}", problem.message), false);
                return Vec::new();
            }
        };
        let backend = self.backend(one, &path.backend, resolved);
        let filters = self.own_filters(one, resolved);
        let rule = HttpRule { filters: filters.into(), backends: Arc::new([backend]), ..new_rule(one, matched) };
        let mut settings = self.with_auth_path(one, host, resolved);
        let place = Place { host: host.clone(), path: path.path.clone().unwrap_or_default() };
        if one.options.satisfy_any {
            settings.satisfy_any();
        }
        settings.canary = self.canaries.get(&place).cloned();
        self.policies.routes.ingress_rules(&one.object.metadata.key(), settings.apply(&[rule]))
    }

    /// Returns the filters that no policy has.
    fn own_filters(&self, one: &mut Ours<'_>, resolved: &mut Resolved) -> Vec<Filter> {
        let mut filters = Vec::new();
        filters.extend(one.options.redirect.as_ref().map(|to| Filter::Redirect(redirect(to))));
        filters.extend(one.options.cors.clone().map(Filter::Cors));
        if let Some(prefix) = &one.options.forwarded_prefix {
            let set = vec![("X-Forwarded-Prefix".to_owned(), prefix.clone())];
            filters.push(Filter::RequestHeaders(HeaderChange { set, ..HeaderChange::default() }));
        }
        filters.extend(self.response_headers(one, resolved));
        filters.extend(one.options.origin.clone().map(|change| Filter::Origin(Arc::new(change))));
        let Some(mirror) = one.options.mirror.clone() else { return filters };
        let port = Some(mirror.port);
        let to = Reference { name: mirror.name, namespace: mirror.namespace, port, ..Reference::default() };
        match backends::resolve(self.objects, one.from(), &to) {
            Ok(backend) => {
                self.add_plain(&backend, resolved);
                filters.push(Filter::Mirror(Mirror { backend, numerator: 1, denominator: 1 }));
            }
            Err(problem) => {
                one.options.mirror = None;
                one.options.refuse("mirror-target", problem.message, false);
            }
        }
        filters
    }

    /// Returns the filter of the ConfigMap with headers of responses.
    fn response_headers(&self, one: &mut Ours<'_>, resolved: &mut Resolved) -> Option<Filter> {
        let name = one.options.response_headers.clone()?;
        let key = Key::new(one.object.metadata.namespace.clone(), name);
        resolved.references.config_maps.insert(key.clone());
        let Some(map) = self.objects.config_maps.get(&key) else {
            refuse_once(one, "custom-headers", &format!("ConfigMap {key} does not exist"));
            return None;
        };
        let is_usable = |(name, value): &(&String, &String)| {
            is_token(name)
                && !CONNECTION_HEADERS.contains(&name.to_ascii_lowercase().as_str())
                && value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        };
        let set: Vec<(String, String)> = map
            .data
            .iter()
            .filter(is_usable)
            .take(MAX_RESPONSE_HEADERS)
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if set.len() < map.data.len() {
            refuse_once(one, "custom-headers", &format!("some headers of ConfigMap {key} cannot be used"));
        }
        Some(Filter::ResponseHeaders(HeaderChange { set, ..HeaderChange::default() }))
    }

    fn add_plain(&self, key: &BackendKey, resolved: &mut Resolved) {
        let made = || Arc::new(table::backend(self.objects, key, BackendProtocol::Http1));
        resolved.configuration.backends.entry(key.clone()).or_insert_with(made);
    }

    /// Returns the settings of an Ingress at a host, with the backend of the host's path that decides on requests.
    fn with_auth_path(&self, one: &mut Ours<'_>, host: &HostPattern, resolved: &mut Resolved) -> Settings {
        let mut settings = one.settings.clone();
        let Some(auth) = one.options.auth_path.clone() else { return settings };
        let Some(backend) = backend_at(&self.plain, host, &auth.path) else {
            let is_known = one.options.problems.iter().any(|problem| problem.name == "auth-url");
            if !is_known {
                let message = format!("no Ingress of the host serves {}", auth.path);
                one.options.refuse("auth-url", message, true);
            }
            settings.limits.insert(0, closed());
            return settings;
        };
        self.add_plain(&backend, resolved);
        settings.authentication.push(Filter::ForwardAuth(Arc::new(ForwardAuth {
            backend,
            host: None,
            path: auth.path.into(),
            request_headers: Vec::new(),
            response_headers: auth.response_headers,
            sign_in: auth.sign_in.map(Arc::from),
        })));
        settings
    }
}
