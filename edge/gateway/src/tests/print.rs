//! Prints configurations, statuses and Services in lines.

use std::fmt::Write as _;

use corten_meta::Value;
use corten_routing::{
    BackendRef, Configuration, Filter, HostPattern, HttpHost, HttpRule, ListenerProtocol, PathMatch, StringMatch,
    TlsHost, TlsUse,
};

use crate::objects::Objects;
use crate::resolve::{Allocated, slices};

/// Prints all conditions of a status: of the object, of listeners, of parents and ancestors.
pub fn status(status: &Value) -> String {
    let mut lines = Vec::new();
    lines.extend(conditions(&status["conditions"]));
    for address in status["addresses"].as_array().into_iter().flatten() {
        lines.push(format!("address {}", address["value"].as_str().unwrap_or_default()));
    }
    for ingress in status["loadBalancer"]["ingress"].as_array().into_iter().flatten() {
        lines.push(format!("address {}", ingress["ip"].as_str().unwrap_or_default()));
    }
    if let Some(count) = status["attachedListenerSets"].as_u64().filter(|count| *count > 0) {
        lines.push(format!("{count} ListenerSets"));
    }
    for listener in status["listeners"].as_array().into_iter().flatten() {
        let kinds = listener["supportedKinds"].as_array().into_iter().flatten();
        let kinds: Vec<&str> = kinds.filter_map(|kind| kind["kind"].as_str()).collect();
        let name = listener["name"].as_str().unwrap_or_default();
        lines.push(format!("listener {name}: {} routes, {}", listener["attachedRoutes"], kinds.join(" ")));
        lines.extend(conditions(&listener["conditions"]).iter().map(|line| format!("  {line}")));
    }
    for (list, field) in [("parents", "parentRef"), ("ancestors", "ancestorRef")] {
        for parent in status[list].as_array().into_iter().flatten() {
            let reference = &parent[field];
            let mut line = format!(
                "{} {}",
                reference["kind"].as_str().unwrap_or_default(),
                reference["name"].as_str().unwrap_or_default()
            );
            if let Some(section) = reference["sectionName"].as_str() {
                let _ = write!(line, " {section}");
            }
            lines.push(line);
            lines.extend(conditions(&parent["conditions"]).iter().map(|line| format!("  {line}")));
        }
    }
    lines.join("\n")
}

fn conditions(list: &Value) -> Vec<String> {
    let condition = |one: &Value| {
        let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        let mut line = format!("{}={}", text("type"), text("status"));
        if text("reason") != text("type") && text("reason") != "NoConflicts" {
            let _ = write!(line, " {}", text("reason"));
        }
        let is_good = (one["status"] == "True") != (one["type"] == "Conflicted");
        if is_good { line } else { format!("{line}: {}", text("message")) }
    };
    list.as_array().into_iter().flatten().map(condition).collect()
}

pub fn service(objects: &Objects, service: &Allocated) -> String {
    let ports: Vec<String> =
        service.ports.iter().map(|(port, bound)| format!("{:?} {}->{bound}", port.transport, port.port)).collect();
    let mut line = format!("{}: {}", service.key, ports.join(", "));
    if let Some(address) = service.object["spec"]["loadBalancerIP"].as_str() {
        let _ = write!(line, ", asks for {address}");
    }
    for slice in slices(objects, service) {
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            let address = endpoint["addresses"][0].as_str().unwrap_or_default();
            let _ = write!(line, "\n  {} {address}", endpoint["nodeName"].as_str().unwrap_or_default());
        }
    }
    line
}

pub fn configuration(configuration: &Configuration) -> String {
    let mut lines = Vec::new();
    for (key, listener) in &configuration.listeners {
        let owner = &key.owner;
        lines.push(format!("{} {} {:?} {} at {}", owner.kind, owner.name, key.transport, key.port, listener.bind_port));
        match &listener.protocol {
            ListenerProtocol::Http(hosts) => lines.extend(http_hosts(hosts.entries(), "  ")),
            ListenerProtocol::Tls(hosts) => {
                for (pattern, host) in hosts.entries() {
                    lines.extend(tls_host(&pattern, host));
                }
            }
            ListenerProtocol::Tcp(backends) | ListenerProtocol::Udp(backends) => {
                lines.push(format!("  {}", references(backends)));
            }
        }
    }
    for (key, backend) in &configuration.backends {
        let mut line = format!("backend {}/{}:{} {:?}", key.namespace, key.service, key.port, backend.protocol);
        if let Some(tls) = &backend.tls {
            let trusted = match &tls.trusted {
                corten_routing::TrustedCertificates::System => "system",
                corten_routing::TrustedCertificates::Pem(_) => "own",
                corten_routing::TrustedCertificates::Unverified => "unverified",
                corten_routing::TrustedCertificates::Invalid => "invalid",
            };
            let _ = write!(line, " TLS {} {trusted} {:?}", tls.hostname, tls.subject_alt_names);
        }
        lines.push(line);
    }
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

fn host_name(pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Exact(name) => name.clone(),
        HostPattern::Wildcard(suffix) => format!("*.{suffix}"),
        HostPattern::OneLabel(suffix) => format!("*.{suffix} (one label)"),
        HostPattern::Any => "*".to_owned(),
    }
}

fn http_hosts<'a>(
    hosts: impl Iterator<Item = (HostPattern, &'a std::sync::Arc<HttpHost>)>,
    indent: &str,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (pattern, host) in hosts {
        lines.push(format!("{indent}{}", host_name(&pattern)));
        lines.extend(host.rules().map(|one| format!("{indent}  {}", rule(one))));
    }
    lines
}

fn tls_host(pattern: &HostPattern, host: &TlsHost) -> Vec<String> {
    let name = host_name(pattern);
    match host {
        TlsHost::Passthrough(backends) => vec![format!("  {name} passthrough {}", references(backends))],
        TlsHost::Terminate { certificates, client_validation, then } => {
            let clients = match client_validation {
                None => "",
                Some(validation) if validation.optional => " (client certificates are optional)",
                Some(_) => " (with client certificates)",
            };
            let head = format!("  {name} terminate, {} certificates{clients}", certificates.len());
            match then {
                TlsUse::Tcp(backends) => vec![format!("{head} {}", references(backends))],
                TlsUse::Http(hosts) => [vec![head], http_hosts(hosts.entries(), "    ")].concat(),
            }
        }
    }
}

fn value(value: &StringMatch) -> String {
    match value {
        StringMatch::Exact(text) => text.clone(),
        StringMatch::Regex(regex) => format!("~{}", regex.as_str()),
    }
}

/// Prints the filters and backends of a rule.
pub fn consequences(rule: &HttpRule) -> String {
    let filters: Vec<String> = rule.filters.iter().map(filter).collect();
    format!("{} {}", filters.join(" "), references(&rule.backends)).trim().to_owned()
}

fn rule(rule: &HttpRule) -> String {
    let path = match &rule.path {
        PathMatch::Exact(path) => format!("={path}"),
        PathMatch::Prefix(prefix) => format!("{prefix}/"),
        PathMatch::Regex(regex) => format!("~{}", regex.as_str()),
    };
    let mut line = path;
    if let Some(method) = &rule.method {
        let _ = write!(line, " {method}");
    }
    if let Some(method) = &rule.grpc_method {
        let _ = write!(line, " rpc {method}");
    }
    for header in &rule.headers {
        let _ = write!(line, " {}:{}", header.name, value(&header.value));
    }
    for query in &rule.query {
        let _ = write!(line, " ?{}={}", query.name, value(&query.value));
    }
    for one in rule.filters.iter() {
        let _ = write!(line, " {}", filter(one));
    }
    if let Some(time) = rule.timeouts.request {
        let _ = write!(line, " within {time:?}");
    }
    if let Some(time) = rule.timeouts.backend_request {
        let _ = write!(line, " try {time:?}");
    }
    if let Some(retry) = &rule.retry {
        let _ = write!(line, " retry {} {:?}", retry.attempts, retry.codes);
    }
    if let Some(session) = &rule.session {
        let _ = write!(line, " session {}", session.name);
    }
    format!("{line} -> {} ({})", references(&rule.backends), rule.route.name)
}

fn filter(filter: &Filter) -> String {
    match filter {
        Filter::RequestHeaders(change) => format!("request {:?}", change.set),
        Filter::ResponseHeaders(change) => format!("response {:?}", change.set),
        Filter::Redirect(redirect) => format!("redirect {}", redirect.status),
        Filter::Rewrite { hostname, path } => format!("rewrite {hostname:?} {path:?}"),
        Filter::Mirror(mirror) => {
            format!(
                "mirror {}:{} {}/{}",
                mirror.backend.service, mirror.backend.port, mirror.numerator, mirror.denominator
            )
        }
        Filter::Cors(cors) => format!("cors {:?}", cors.allow_origins),
        Filter::Respond(response) => format!("respond {}", response.status),
        Filter::RateLimit(limit) => {
            let per = if limit.per_client { "client" } else { "node" };
            format!("{}/{:?}+{} per {per} as {}", limit.requests, limit.period, limit.burst, limit.name)
        }
        Filter::Concurrency(limit) => format!("{} at once as {}", limit.requests, limit.name),
        Filter::Addresses(policy) => format!("allow {} deny {}", networks(&policy.allow), networks(&policy.deny)),
        Filter::BasicAuth(users) => {
            format!("users {:?} of {:?}", users.users.keys().collect::<Vec<_>>(), users.realm)
        }
        Filter::ForwardAuth(auth) => {
            let sign_in = auth.sign_in.as_deref().map(|url| format!(" else {url}")).unwrap_or_default();
            format!("asks {}:{}{}{sign_in}", auth.backend.service, auth.backend.port, auth.path)
        }
        Filter::Jwt(jwt) => format!("jwt of {:?}", jwt.issuer),
        Filter::BodySize(size) => format!("body {size}"),
        Filter::AnyOf(conditions) => {
            format!("any of [{}]", conditions.iter().map(self::filter).collect::<Vec<_>>().join(", "))
        }
        Filter::Origin(change) => {
            format!("origin {:?} {:?} {:?}", change.redirect, change.cookie_domain, change.cookie_path)
        }
        Filter::Compression => "gzip".to_owned(),
        Filter::NoAccessLog => "unlogged".to_owned(),
        Filter::HashBy(key) => format!("hash {key:?}"),
        Filter::ErrorPages(pages) => format!("pages {:?} of {}", pages.statuses, pages.backend.service),
    }
}

fn networks(list: &[corten_routing::Network]) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn references(backends: &[BackendRef]) -> String {
    let one = |backend: &BackendRef| {
        let target = match &backend.key {
            Some(key) => format!("{}:{}", key.service, key.port),
            None => "error".to_owned(),
        };
        let filters: Vec<String> = backend.filters.iter().map(filter).collect();
        let target = if filters.is_empty() { target } else { format!("{target}[{}]", filters.join(" ")) };
        if backend.weight == 1 { target } else { format!("{target}*{}", backend.weight) }
    };
    if backends.is_empty() { "nothing".to_owned() } else { backends.iter().map(one).collect::<Vec<_>>().join(" ") }
}
