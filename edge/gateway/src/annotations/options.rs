//! The settings that follow from the annotations of one Ingress.

use corten_routing::{Cors, OriginChange, Replacement};

use super::url::{self, Server, Url};
use super::{Annotations, Problem, Value};
use crate::policy_spec::{
    AddressesSpec, BackendSpec, BasicAuthSpec, CanaryHeader, ConcurrencySpec, ForwardAuthSpec, HashBySpec,
    RateLimitSpec, RetrySpec, RewriteSpec, RoutePolicySpec, SecretSpec, SessionSpec, TimeoutsSpec,
};

const METHODS: [&str; 6] = ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"];
const HEADERS: [&str; 9] = [
    "DNT",
    "Keep-Alive",
    "User-Agent",
    "X-Requested-With",
    "If-Modified-Since",
    "Cache-Control",
    "Content-Type",
    "Range",
    "Authorization",
];
const CORS_MAX_AGE: u32 = 1_728_000;
const SESSION_COOKIE: &str = "INGRESSCOOKIE";
const BURST_MULTIPLIER: u64 = 5;
const TRIES: u64 = 3;

/// The settings of one Ingress.
#[derive(Clone, Debug, Default)]
pub struct IngressOptions {
    /// The settings that a RoutePolicy also has. It has no targets.
    pub policy: RoutePolicySpec,
    pub https: Https,
    /// Whether paths of its hosts are regular expressions.
    pub regex: bool,
    pub app_root: Option<String>,
    pub aliases: Vec<String>,
    pub redirect: Option<RedirectTo>,
    pub www_redirect: bool,
    pub cors: Option<Cors>,
    pub forwarded_prefix: Option<String>,
    /// The ConfigMap with headers of responses.
    pub response_headers: Option<String>,
    pub origin: Option<OriginChange>,
    /// Whether the client's address or its authentication suffices.
    pub satisfy_any: bool,
    pub protocol: BackendProtocolName,
    pub backend_tls: BackendTlsOptions,
    pub passthrough: bool,
    pub client_certificates: Option<ClientCertificateOptions>,
    pub mirror: Option<BackendSpec>,
    pub canary: Option<CanaryRole>,
    /// A path of the same host that decides on requests.
    pub auth_path: Option<AuthPath>,
    pub error_service: Option<ErrorService>,
    pub problems: Vec<Problem>,
}

/// The requests that are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Https {
    #[default]
    None,
    /// Those of hosts with TLS.
    IfTls,
    All,
}

/// The address of a redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectTo {
    pub scheme: String,
    pub host: Option<String>,
    pub port: Option<u16>,
    /// None keeps the path.
    pub path: Option<String>,
    pub status: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendProtocolName {
    #[default]
    Http,
    Https,
    Grpc,
    Grpcs,
}

impl BackendProtocolName {
    pub fn is_tls(self) -> bool {
        matches!(self, BackendProtocolName::Https | BackendProtocolName::Grpcs)
    }

    pub fn is_grpc(self) -> bool {
        matches!(self, BackendProtocolName::Grpc | BackendProtocolName::Grpcs)
    }
}

/// TLS to backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendTlsOptions {
    pub secret: Option<String>,
    pub name: Option<String>,
    pub verify: bool,
}

/// Client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificateOptions {
    pub secret: String,
    pub optional: bool,
}

/// The role of an Ingress as a canary of another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CanaryRole {
    pub header: Option<CanaryHeader>,
    pub cookie: Option<String>,
    pub weight: u32,
    pub total: u32,
}

/// A path of the request's own host that decides on requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthPath {
    pub path: String,
    pub response_headers: Vec<String>,
    pub sign_in: Option<String>,
}

/// The Service that makes error pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorService {
    pub name: String,
    pub statuses: Vec<u16>,
}

impl IngressOptions {
    /// Reports whether an annotation that protects cannot be followed.
    pub fn is_closed(&self) -> bool {
        self.problems.iter().any(|problem| problem.closes)
    }

    pub fn refuse(&mut self, name: &str, message: impl Into<String>, closes: bool) {
        self.problems.push(Problem { name: name.to_owned(), message: message.into(), closes });
    }
}

impl Annotations {
    fn text(&self, name: &str) -> Option<String> {
        match self.values.get(name) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        match self.values.get(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    fn count(&self, name: &str) -> Option<u32> {
        self.number(name).and_then(|number| u32::try_from(number).ok())
    }

    fn flag(&self, name: &str) -> Option<bool> {
        match self.values.get(name) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    fn is_on(&self, name: &str) -> bool {
        self.flag(name) == Some(true)
    }

    fn list(&self, name: &str) -> Option<Vec<String>> {
        match self.values.get(name) {
            Some(Value::List(list)) => Some(list.clone()),
            _ => None,
        }
    }

    fn status(&self, name: &str, default: u16) -> u16 {
        self.number(name).and_then(|number| u16::try_from(number).ok()).unwrap_or(default)
    }
}

/// Returns the settings of an Ingress of a namespace.
pub fn options(read: Annotations, namespace: &str) -> IngressOptions {
    let mut options = IngressOptions { problems: read.problems.clone(), ..IngressOptions::default() };
    paths(&read, &mut options);
    access(&read, &mut options, namespace);
    forward_auth(&read, &mut options, namespace);
    limits(&read, &mut options);
    backends(&read, &mut options, namespace);
    sessions(&read, &mut options);
    responses(&read, &mut options, namespace);
    options.satisfy_any = read.text("satisfy").as_deref() == Some("any");
    options.cors = cors(&read);
    if read.is_on("canary") {
        options.canary = Some(canary(&read));
    }
    options
}

/// Reads the changes of responses.
fn responses(read: &Annotations, options: &mut IngressOptions, namespace: &str) {
    if let Some(map) = read.text("custom-headers") {
        options.response_headers = local(&map, namespace);
        if options.response_headers.is_none() {
            options.refuse("custom-headers", "the ConfigMap is in another namespace", false);
        }
    }
    let replacement = |from: &str, to: &str| Replacement { from: from.into(), to: to.into() };
    let pair = |name: &str| {
        let text = read.text(name)?;
        super::value::pair(&text).map(|(from, to)| replacement(from, to))
    };
    let from = read.text("proxy-redirect-from").filter(|from| from != "off");
    let redirect = match (from.as_deref(), read.text("proxy-redirect-to")) {
        (Some("default"), _) | (Some(_), None) => {
            options.refuse("proxy-redirect-from", "it needs a URL, and proxy-redirect-to", false);
            None
        }
        (Some(from), Some(to)) => Some(replacement(from, &to)),
        (None, _) => None,
    };
    let change =
        OriginChange { redirect, cookie_domain: pair("proxy-cookie-domain"), cookie_path: pair("proxy-cookie-path") };
    options.origin = (change != OriginChange::default()).then_some(change);
}

fn paths(read: &Annotations, options: &mut IngressOptions) {
    options.https = match (read.is_on("force-ssl-redirect"), read.is_on("ssl-redirect")) {
        (true, _) => Https::All,
        (false, true) => Https::IfTls,
        (false, false) => Https::None,
    };
    let rewrite = read.text("rewrite-target");
    options.regex = read.is_on("use-regex") || rewrite.is_some();
    options.app_root = read.text("app-root");
    options.aliases = read.list("server-alias").unwrap_or_default();
    options.www_redirect = read.is_on("from-to-www-redirect");
    options.forwarded_prefix = read.text("x-forwarded-prefix");
    let hostname = read.text("upstream-vhost");
    if rewrite.is_some() || hostname.is_some() {
        options.policy.rewrite = Some(RewriteSpec { hostname, path: rewrite });
    }
    let redirects = [
        ("permanent-redirect", read.status("permanent-redirect-code", 301)),
        ("temporal-redirect", read.status("temporal-redirect-code", 302)),
    ];
    for (name, status) in redirects {
        let Some(text) = read.text(name) else { continue };
        match redirect(&text, status) {
            Some(redirect) => options.redirect = Some(redirect),
            None => options.refuse(name, "the value is no URL that is supported", false),
        }
    }
}

/// Returns the redirect to a URL, which may keep the host or the path by a variable.
fn redirect(text: &str, status: u16) -> Option<RedirectTo> {
    let url: Url = url::parse(text)?;
    let host = match url.host.as_str() {
        "$host" | "$http_host" => None,
        host if super::value::is_host(host) => Some(host.to_owned()),
        _ => return None,
    };
    let path = match url.path.as_str() {
        "$request_uri" | "/$request_uri" => None,
        "" => Some("/".to_owned()),
        path if path.contains(['$', '?', '#', '{', '}']) => return None,
        path => Some(path.to_owned()),
    };
    let scheme = if url.scheme == "$scheme" { return None } else { url.scheme };
    Some(RedirectTo { scheme, host, port: url.port, path, status })
}

fn access(read: &Annotations, options: &mut IngressOptions, namespace: &str) {
    if read.text("auth-type").is_some() {
        match read.text("auth-secret") {
            Some(secret) => match local(&secret, namespace) {
                Some(name) => {
                    let is_file = read.text("auth-secret-type").as_deref() != Some("auth-map");
                    let secret_ref = SecretSpec { name, key: is_file.then(|| "auth".to_owned()) };
                    options.policy.basic_auth = Some(BasicAuthSpec { realm: read.text("auth-realm"), secret_ref });
                }
                None => options.refuse("auth-secret", "the Secret is in another namespace", true),
            },
            None if options.is_closed() => {}
            None => options.refuse("auth-type", "there is no auth-secret", true),
        }
    }
    let allow = read.list("whitelist-source-range").or_else(|| read.list("allowlist-source-range"));
    let deny = read.list("denylist-source-range");
    if allow.is_some() || deny.is_some() {
        let addresses = AddressesSpec { allow: allow.unwrap_or_default(), deny: deny.unwrap_or_default() };
        options.policy.addresses = Some(addresses);
    }
    let verify = read.text("auth-tls-verify-client");
    if let Some(secret) = read.text("auth-tls-secret").filter(|_| verify.as_deref() != Some("off")) {
        match local(&secret, namespace) {
            Some(secret) => {
                let optional = verify.as_deref() == Some("optional");
                options.client_certificates = Some(ClientCertificateOptions { secret, optional });
                if !optional {
                    options.https = Https::All;
                }
            }
            None => options.refuse("auth-tls-secret", "the Secret is in another namespace", true),
        }
    }
}

/// Returns the name of an object of a namespace; None if it is in another one.
fn local(reference: &str, namespace: &str) -> Option<String> {
    match reference.split_once('/') {
        None => Some(reference.to_owned()),
        Some((of, name)) => (of == namespace).then(|| name.to_owned()),
    }
}

fn forward_auth(read: &Annotations, options: &mut IngressOptions, namespace: &str) {
    let Some(text) = read.text("auth-url") else { return };
    let parsed = url::parse(&text);
    let path = parsed.as_ref().and_then(|url| {
        let path = if url.path.starts_with('/') { url.path.clone() } else { format!("/{}", url.path) };
        url::with_placeholders(&path).filter(|path| !path.contains("{host}") && !path.contains("{scheme}"))
    });
    let (Some(url), Some(path)) = (parsed, path) else {
        return options.refuse("auth-url", "the value is no URL that is supported", true);
    };
    let sign_in = read.text("auth-signin").and_then(|text| {
        let sign_in = sign_in(&text, &read.text("auth-signin-redirect-param").unwrap_or_else(|| "rd".to_owned()));
        if sign_in.is_none() {
            options.refuse("auth-signin", "the value is no URL that is supported", false);
        }
        sign_in
    });
    let response_headers = read.list("auth-response-headers").unwrap_or_default();
    match url.server(namespace) {
        Server::RequestHost => options.auth_path = Some(AuthPath { path, response_headers, sign_in }),
        Server::Service => {
            options.policy.forward_auth = url.service(namespace).map(|backend_ref| ForwardAuthSpec {
                backend_ref,
                host: Some(url.host.clone()),
                path,
                request_headers: Vec::new(),
                response_headers,
                sign_in_url: sign_in,
            });
        }
        Server::Other => {
            let message = "the URL names neither a Service (NAME.NAMESPACE.svc) nor $host";
            options.refuse("auth-url", message, true);
        }
    }
}

/// Returns the address of a login, with the parameter that names the address that was asked for.
fn sign_in(text: &str, parameter: &str) -> Option<String> {
    let url = url::parse(text)?;
    let is_named = url.path.contains(&format!("?{parameter}=")) || url.path.contains(&format!("&{parameter}="));
    let replaced = url::with_placeholders(text)?;
    if is_named {
        return Some(replaced);
    }
    let separator = if url.path.contains('?') { '&' } else { '?' };
    Some(format!("{replaced}{separator}{parameter}={{url}}"))
}

fn limits(read: &Annotations, options: &mut IngressOptions) {
    let exempt = read.list("limit-allowlist").or_else(|| read.list("limit-whitelist")).unwrap_or_default();
    let multiplier = read.number("limit-burst-multiplier").unwrap_or(BURST_MULTIPLIER);
    for (name, period) in [("limit-rps", "1s"), ("limit-rpm", "1m")] {
        let Some(requests) = read.count(name) else { continue };
        let burst = u64::from(requests).saturating_mul(multiplier).min(1_000_000);
        options.policy.rate_limits.push(RateLimitSpec {
            burst: u32::try_from(burst).ok(),
            exempt: exempt.clone(),
            per: "Client".to_owned(),
            period: Some(period.to_owned()),
            requests,
        });
    }
    if let Some(requests) = read.count("limit-connections") {
        options.policy.concurrency = Some(ConcurrencySpec { exempt, requests });
    }
    options.policy.max_body_bytes = read.number("proxy-body-size").filter(|size| *size > 0);
    options.policy.access_log = read.flag("enable-access-log").filter(|is_logged| !is_logged);
}

fn backends(read: &Annotations, options: &mut IngressOptions, namespace: &str) {
    options.protocol = match read.text("backend-protocol").as_deref() {
        Some("HTTPS") => BackendProtocolName::Https,
        Some("GRPC") => BackendProtocolName::Grpc,
        Some("GRPCS") => BackendProtocolName::Grpcs,
        _ => BackendProtocolName::Http,
    };
    let secret = read.text("proxy-ssl-secret").and_then(|secret| {
        let name = local(&secret, namespace);
        if name.is_none() {
            options.refuse("proxy-ssl-secret", "the Secret is in another namespace", true);
        }
        name
    });
    let verify = read.text("proxy-ssl-verify").as_deref() == Some("on");
    options.backend_tls = BackendTlsOptions { secret, name: read.text("proxy-ssl-name"), verify };
    options.passthrough = read.is_on("ssl-passthrough");
    if let Some(seconds) = read.number("proxy-read-timeout").filter(|seconds| *seconds > 0) {
        let backend_request = Some(duration(seconds));
        options.policy.timeouts = Some(TimeoutsSpec { backend_request, request: None });
    }
    options.policy.retry = retry(read);
    if let Some(variable) = read.text("upstream-hash-by") {
        options.policy.hash_by = hash_by(&variable);
        if options.policy.hash_by.is_none() {
            options.refuse("upstream-hash-by", "requests cannot be spread by this variable", false);
        }
    }
    let statuses = match read.values.get("custom-http-errors") {
        Some(Value::Statuses(statuses)) => Some(statuses.clone()),
        _ => None,
    };
    match (read.text("default-backend").and_then(|name| local(&name, namespace)), statuses) {
        (Some(name), statuses) => {
            options.error_service = Some(ErrorService { name, statuses: statuses.unwrap_or_else(|| vec![503]) });
        }
        (None, Some(_)) => options.refuse("custom-http-errors", "there is no default-backend", false),
        (None, None) => {}
    }
    if let Some(text) = read.text("mirror-target") {
        let url = url::parse(&text.replace("$request_uri", ""));
        options.mirror = url.and_then(|url| url.service(namespace));
        if options.mirror.is_none() {
            options.refuse("mirror-target", "the URL names no Service (NAME.NAMESPACE.svc)", false);
        }
    }
}

fn retry(read: &Annotations) -> Option<RetrySpec> {
    let words = read.list("proxy-next-upstream");
    let tries = read.number("proxy-next-upstream-tries");
    if words.is_none() && tries.is_none() {
        return None;
    }
    let words = words.unwrap_or_else(|| vec!["error".to_owned(), "timeout".to_owned()]);
    if words.iter().any(|word| word == "off") {
        return Some(RetrySpec { attempts: Some(0), ..RetrySpec::default() });
    }
    let codes = words.iter().filter_map(|word| word.strip_prefix("http_")?.parse().ok()).collect();
    // Without a bound nginx tries every endpoint once.
    let tries = tries.filter(|tries| *tries > 0).unwrap_or(TRIES);
    Some(RetrySpec {
        attempts: u32::try_from(tries.saturating_sub(1)).ok(),
        backoff: None,
        codes,
        idempotent_only: Some(!words.iter().any(|word| word == "non_idempotent")),
    })
}

fn hash_by(variable: &str) -> Option<HashBySpec> {
    let named = |type_: &str, name: &str| HashBySpec { name: Some(name.to_owned()), type_: type_.to_owned() };
    let plain = |type_: &str| HashBySpec { name: None, type_: type_.to_owned() };
    match variable {
        "$remote_addr" | "$binary_remote_addr" => Some(plain("ClientAddress")),
        "$request_uri" => Some(plain("Target")),
        "$host" | "$http_host" => Some(plain("Host")),
        variable => {
            let header = variable.strip_prefix("$http_").filter(|name| !name.is_empty());
            let cookie = variable.strip_prefix("$cookie_").filter(|name| !name.is_empty());
            header
                .map(|name| named("Header", &name.replace('_', "-")))
                .or_else(|| cookie.map(|name| named("Cookie", name)))
        }
    }
}

fn sessions(read: &Annotations, options: &mut IngressOptions) {
    if read.text("affinity").is_none() {
        return;
    }
    let age = read.number("session-cookie-max-age").or_else(|| read.number("session-cookie-expires"));
    options.policy.session = Some(SessionSpec {
        absolute_timeout: age.filter(|age| *age > 0).map(duration),
        cookie: Some(read.text("session-cookie-name").unwrap_or_else(|| SESSION_COOKIE.to_owned())),
        domain: read.text("session-cookie-domain"),
        idle_timeout: None,
        path: read.text("session-cookie-path"),
        same_site: read.text("session-cookie-samesite"),
        secure: read.flag("session-cookie-secure"),
    });
}

/// Returns seconds as a duration of the API, whose numbers have five digits.
fn duration(seconds: u64) -> String {
    match seconds {
        0..100_000 => format!("{seconds}s"),
        _ => format!("{}h{}s", seconds / 3600, seconds % 3600),
    }
}

fn cors(read: &Annotations) -> Option<Cors> {
    if !read.is_on("enable-cors") {
        return None;
    }
    let or = |list: Option<Vec<String>>, default: &[&str]| {
        list.unwrap_or_else(|| default.iter().map(|one| (*one).to_owned()).collect())
    };
    let allow_origins = or(read.list("cors-allow-origin"), &["*"]);
    let is_open = allow_origins.iter().any(|origin| origin == "*");
    Some(Cors {
        // Browsers refuse credentials where nginx answers `*`; ours answers with the origin itself.
        allow_credentials: read.flag("cors-allow-credentials").unwrap_or(true) && !is_open,
        allow_origins,
        allow_methods: or(read.list("cors-allow-methods"), &METHODS),
        allow_headers: or(read.list("cors-allow-headers"), &HEADERS),
        expose_headers: read.list("cors-expose-headers").unwrap_or_default(),
        max_age_seconds: read.count("cors-max-age").unwrap_or(CORS_MAX_AGE),
    })
}

fn canary(read: &Annotations) -> CanaryRole {
    let header = read.text("canary-by-header").map(|name| {
        let value = read.text("canary-by-header-value");
        // Anywhere in the value, as nginx searches.
        let pattern = read.text("canary-by-header-pattern").filter(|_| value.is_none());
        let pattern = pattern.map(|pattern| format!("(?s:.*)(?:{pattern})(?s:.*)"));
        CanaryHeader { name, pattern, value }
    });
    let total = read.count("canary-weight-total").unwrap_or(100).max(1);
    let weight = read.count("canary-weight").unwrap_or(0).min(total);
    CanaryRole { header, cookie: read.text("canary-by-cookie"), weight, total }
}
