//! Routes and policies of one Ingress.

use corten_routing::Cors;
use serde_json::{Value, json};

use super::{Grant, Importer, Source, policy_object, tls};
use crate::annotations::{CanaryRole, RedirectTo};
use crate::crds::{GROUP, POLICY_GROUP};
use crate::objects::{IngressPath, IngressRule, Reference};
use crate::policy_spec::{BackendSpec, CanarySpec, ErrorPagesSpec, ForwardAuthSpec, RoutePolicySpec};

/// The most rules of one HTTPRoute.
const MAX_RULES: usize = 16;
/// The statuses that a redirect of Gateway API may have.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

impl Importer {
    /// Adds the routes of an Ingress, and their policies.
    pub(super) fn add_routes(&mut self, source: &Source, all: &[Source]) {
        let spec = &source.object.spec;
        let mut names = Vec::new();
        for (number, rule) in spec.rules.iter().enumerate() {
            let name = match number {
                0 => source.object.metadata.name.clone(),
                number => format!("{}-{number}", source.object.metadata.name),
            };
            if source.options.passthrough {
                self.add_passthrough(source, rule, &name);
                continue;
            }
            names.extend(self.add_host(source, all, rule, &name));
        }
        if let Some(default) = &spec.default_backend {
            let path = IngressPath { path: None, path_type: "Prefix".to_owned(), backend: default.clone() };
            let http = crate::objects::IngressHttp { paths: vec![path] };
            let rule = IngressRule { host: None, http };
            let name = format!("{}-default", source.object.metadata.name);
            names.extend(self.add_host(source, all, &rule, &name));
        }
        self.add_policy(source, all, &names);
        self.note_backends(source);
    }

    /// Adds the routes of one host, and returns their names.
    fn add_host(&mut self, source: &Source, all: &[Source], rule: &IngressRule, name: &str) -> Vec<String> {
        let sections = self.sections(source, rule.host.as_deref());
        let mut rules = Vec::new();
        if let Some(root) = &source.options.app_root {
            let path = json!({"type": "ReplaceFullPath", "replaceFullPath": root});
            let redirect = json!({"path": path, "statusCode": 302});
            rules.push(json!({
                "matches": [{"path": {"type": "Exact", "value": "/"}}],
                "filters": [{"type": "RequestRedirect", "requestRedirect": redirect}],
            }));
        }
        let mut canaries = Vec::new();
        for path in &rule.http.paths {
            let number = rules.len();
            let Some(mut made) = self.rule(source, rule.host.as_deref(), path) else { continue };
            if let Some(canary) = self.canary_at(all, rule.host.as_deref(), path) {
                made["name"] = json!(format!("rule-{number}"));
                canaries.push((number, canary));
            }
            rules.push(made);
        }
        let mut names = Vec::new();
        for (part, chunk) in rules.chunks(MAX_RULES).enumerate() {
            let name = if part == 0 { name.to_owned() } else { format!("{name}-part-{part}") };
            self.push(route_object(source, &name, &hostnames(source, rule), &sections.serving, chunk));
            for (number, canary) in canaries.iter().filter(|(number, _)| number / MAX_RULES == part) {
                self.push(canary_object(source, &name, *number, canary));
            }
            names.push(name);
        }
        if let Some(section) = &sections.redirecting {
            let redirect = json!({"scheme": "https", "statusCode": 308});
            let rules = [json!({"filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]})];
            let name = format!("{name}-https");
            self.push(route_object(source, &name, &hostnames(source, rule), std::slice::from_ref(section), &rules));
        }
        if source.options.www_redirect
            && let Some(host) = rule.host.as_deref().filter(|host| !host.starts_with("*."))
        {
            let twin = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
            let redirect = json!({"hostname": host, "statusCode": 308});
            let rules = [json!({"filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]})];
            let sections = [self.http_section()];
            self.push(route_object(source, &format!("{name}-www"), &[twin], &sections, &rules));
        }
        if rule.host.as_deref().is_some_and(|host| host.starts_with("*.")) {
            self.note(source, "a wildcard of an HTTPRoute matches hosts of more than one further label");
        }
        names
    }

    fn rule(&mut self, source: &Source, host: Option<&str>, path: &IngressPath) -> Option<Value> {
        let text = path.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
        let is_regex = host.is_some_and(|host| self.regex_hosts.contains(host)) && path.path.is_some();
        let matched = match path.path_type.as_str() {
            _ if is_regex => json!({"type": "RegularExpression", "value": format!("(?i)(?:{text}).*")}),
            "Exact" => json!({"type": "Exact", "value": text}),
            _ => json!({"type": "PathPrefix", "value": text}),
        };
        let filters = self.filters(source);
        let redirects = filters.iter().any(|filter| filter["type"] == "RequestRedirect");
        let mut rule = json!({"matches": [{"path": matched}]});
        if !filters.is_empty() {
            rule["filters"] = json!(filters);
        }
        if !redirects {
            rule["backendRefs"] = json!([self.backend(source, &path.backend)?]);
        }
        Some(rule)
    }

    fn filters(&mut self, source: &Source) -> Vec<Value> {
        let options = &source.options;
        let mut filters = Vec::new();
        if let Some(to) = &options.redirect {
            match REDIRECTS.contains(&to.status) {
                true => filters.push(json!({"type": "RequestRedirect", "requestRedirect": redirect(to)})),
                false => self.note(source, format!("an HTTPRoute cannot redirect with {}", to.status)),
            }
        }
        filters.extend(options.cors.as_ref().map(|cors| json!({"type": "CORS", "cors": cors_filter(cors)})));
        if let Some(prefix) = &options.forwarded_prefix {
            let set = json!([{"name": "X-Forwarded-Prefix", "value": prefix}]);
            filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": set}}));
        }
        for (is_set, name) in [
            (options.response_headers.is_some(), "custom-headers"),
            (options.origin.is_some(), "proxy-redirect and proxy-cookie"),
            (options.satisfy_any, "satisfy"),
        ] {
            if is_set {
                self.note(source, format!("{name}: neither an HTTPRoute nor a RoutePolicy has it"));
            }
        }
        if let Some(mirror) = &options.mirror {
            self.allow(source, GROUP, "HTTPRoute", mirror);
            filters.push(json!({"type": "RequestMirror", "requestMirror": {"backendRef": mirror}}));
        }
        filters
    }

    /// Lets objects of the Ingress's namespace refer to a Service of another.
    fn allow(&mut self, source: &Source, group: &'static str, kind: &'static str, to: &BackendSpec) {
        if let Some(namespace) = &to.namespace {
            let own = source.object.metadata.namespace.clone();
            self.grant(namespace, Grant { group, kind, namespace: own, to: "Service", name: to.name.clone() });
        }
    }

    /// Returns the canary of a path: the oldest Ingress with that role and the same host and path.
    fn canary_at(&mut self, all: &[Source], host: Option<&str>, path: &IngressPath) -> Option<CanarySpec> {
        for source in all {
            let Some(role) = &source.options.canary else { continue };
            let rules = source.object.spec.rules.iter().filter(|rule| rule.host.as_deref() == host);
            let found = rules.flat_map(|rule| &rule.http.paths).find(|one| one.path == path.path);
            if let Some(found) = found {
                let backend_ref = self.backend(source, &found.backend)?;
                return Some(canary_spec(role, backend_ref));
            }
        }
        None
    }

    /// Adds the policy of all routes of an Ingress.
    fn add_policy(&mut self, source: &Source, all: &[Source], names: &[String]) {
        let mut policy = source.options.policy.clone();
        if let Some(auth) = &policy.forward_auth {
            self.allow(source, POLICY_GROUP, "RoutePolicy", &auth.backend_ref.clone());
        }
        self.add_auth_path(source, all, &mut policy);
        if let Some(pages) = &source.options.error_service {
            let key = corten_meta::Key::new(source.object.metadata.namespace.clone(), pages.name.clone());
            let port = self.services.get(&key).and_then(|service| service.spec.ports.first()).map(|port| port.port);
            match port {
                Some(port) => {
                    let backend_ref = BackendSpec { name: pages.name.clone(), namespace: None, port };
                    policy.error_pages = Some(ErrorPagesSpec { backend_ref, statuses: pages.statuses.clone() });
                }
                None => self.note(source, format!("the port of Service {key} is not known")),
            }
        }
        if policy == RoutePolicySpec::default() || names.is_empty() {
            return;
        }
        let target = |name: &String| Reference {
            group: GROUP.to_owned(),
            kind: "HTTPRoute".to_owned(),
            name: name.clone(),
            ..Reference::default()
        };
        for (number, names) in names.chunks(MAX_RULES).enumerate() {
            policy.target_refs = names.iter().map(target).collect();
            let own = &source.object.metadata;
            let name = if number == 0 { own.name.clone() } else { format!("{}-{number}", own.name) };
            let spec = serde_json::to_value(&policy).unwrap_or_default();
            self.push(policy_object(&own.namespace, &name, &spec));
        }
    }

    /// Sets the Service behind the path of the same host that decides on requests.
    fn add_auth_path(&mut self, source: &Source, all: &[Source], policy: &mut RoutePolicySpec) {
        let Some(auth) = &source.options.auth_path else { return };
        let hosts: Vec<Option<&String>> = source.object.spec.rules.iter().map(|rule| rule.host.as_ref()).collect();
        let serves = |path: &&IngressPath| auth.path.starts_with(path.path.as_deref().unwrap_or_default());
        let mut best: Option<(usize, &Source, &IngressPath)> = None;
        for other in all.iter().filter(|other| other.options.canary.is_none()) {
            let rules = other.object.spec.rules.iter().filter(|rule| hosts.contains(&rule.host.as_ref()));
            for path in rules.flat_map(|rule| &rule.http.paths).filter(serves) {
                let length = path.path.as_deref().map_or(0, str::len);
                if best.is_none_or(|(longest, _, _)| length > longest) {
                    best = Some((length, other, path));
                }
            }
        }
        let Some((_, other, path)) = best else {
            return self.note(source, format!("no Ingress of the host serves {}", auth.path));
        };
        let Some(mut backend_ref) = self.backend(other, &path.backend) else { return };
        let namespace = &other.object.metadata.namespace;
        backend_ref.namespace = Some(namespace.clone()).filter(|other| *other != source.object.metadata.namespace);
        self.allow(source, POLICY_GROUP, "RoutePolicy", &backend_ref);
        policy.forward_auth = Some(ForwardAuthSpec {
            backend_ref,
            host: None,
            path: auth.path.clone(),
            request_headers: Vec::new(),
            response_headers: auth.response_headers.clone(),
            sign_in_url: auth.sign_in.clone(),
        });
    }

    fn note_backends(&mut self, source: &Source) {
        let options = &source.options;
        if options.protocol.is_tls() {
            self.note(source, "backend-protocol: write a BackendTLSPolicy with the authority of the backends");
        }
        if options.protocol.is_grpc() {
            self.note(source, "backend-protocol: set appProtocol kubernetes.io/h2c at the ports of its Services");
        }
        if options.client_certificates.is_some() {
            self.note(source, "auth-tls-secret: set spec.tls.frontend of the Gateway, for all hosts of the port");
        }
    }
}

fn hostnames(source: &Source, rule: &IngressRule) -> Vec<String> {
    let aliases = source.options.aliases.iter().filter(|_| rule.host.is_some());
    rule.host.iter().chain(aliases).cloned().collect()
}

fn route_object(source: &Source, name: &str, hosts: &[String], sections: &[tls::Section], rules: &[Value]) -> Value {
    let mut spec = json!({
        "parentRefs": sections.iter().map(tls::Section::reference).collect::<Vec<_>>(),
        "rules": rules,
    });
    if !hosts.is_empty() {
        spec["hostnames"] = json!(hosts);
    }
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": source.object.metadata.namespace},
        "spec": spec,
    })
}

fn canary_spec(role: &CanaryRole, backend_ref: BackendSpec) -> CanarySpec {
    CanarySpec {
        backend_ref,
        cookie: role.cookie.clone(),
        header: role.header.clone(),
        weight: Some(role.weight),
        weight_total: Some(role.total),
    }
}

fn canary_object(source: &Source, route: &str, number: usize, canary: &CanarySpec) -> Value {
    let target = json!({"group": GROUP, "kind": "HTTPRoute", "name": route, "sectionName": format!("rule-{number}")});
    let spec = json!({"targetRefs": [target], "canary": canary});
    policy_object(&source.object.metadata.namespace, &format!("{route}-canary-{number}"), &spec)
}

fn redirect(to: &RedirectTo) -> Value {
    let mut redirect = json!({"scheme": to.scheme, "statusCode": to.status});
    if let Some(host) = &to.host {
        redirect["hostname"] = json!(host);
    }
    if let Some(port) = to.port {
        redirect["port"] = json!(port);
    }
    if let Some(path) = &to.path {
        redirect["path"] = json!({"type": "ReplaceFullPath", "replaceFullPath": path});
    }
    redirect
}

fn cors_filter(cors: &Cors) -> Value {
    let mut filter = json!({
        "allowOrigins": cors.allow_origins,
        "allowMethods": cors.allow_methods,
        "allowHeaders": cors.allow_headers,
        "maxAge": cors.max_age_seconds.max(1),
    });
    if cors.allow_credentials {
        filter["allowCredentials"] = json!(true);
    }
    if !cors.expose_headers.is_empty() {
        filter["exposeHeaders"] = json!(cors.expose_headers);
    }
    filter
}
