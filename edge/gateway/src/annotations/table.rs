//! The table of annotations. The manual's table is written from it.

use super::value::Kind;

/// An annotation of ingress-nginx.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// The name without its prefix.
    pub name: &'static str,
    pub kind: Kind,
    pub use_: Use,
}

/// The effect of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It sets something, in the words of the manual.
    Sets(&'static str),
    /// It protects something: an invalid value closes the Ingress.
    Guards(&'static str),
    /// It tunes nginx, and needs no equivalent, for this reason.
    NoEffect(&'static str),
    /// It would change the answers of the Ingress, and is not supported, for this reason.
    Unsupported(&'static str),
    /// Its value is text of a configuration.
    Refused,
}

const fn sets(name: &'static str, kind: Kind, what: &'static str) -> Annotation {
    Annotation { name, kind, use_: Use::Sets(what) }
}

const fn guards(name: &'static str, kind: Kind, what: &'static str) -> Annotation {
    Annotation { name, kind, use_: Use::Guards(what) }
}

const fn no_effect(name: &'static str, why: &'static str) -> Annotation {
    Annotation { name, kind: Kind::Any, use_: Use::NoEffect(why) }
}

const fn unsupported(name: &'static str, why: &'static str) -> Annotation {
    Annotation { name, kind: Kind::Any, use_: Use::Unsupported(why) }
}

const fn refused(name: &'static str) -> Annotation {
    Annotation { name, kind: Kind::Any, use_: Use::Refused }
}

const SECONDS: Kind = Kind::Number { min: 0, max: 31_536_000 };
const COUNT: Kind = Kind::Number { min: 1, max: 1_000_000 };
const BUFFERS: &str = "bodies are passed on as they come";
const OWN_TIMEOUT: &str = "the proxy has timeouts of its own";
const NO_CACHE: &str = "every request is decided on";
const OWN_TLS: &str = "the proxy chooses ciphers and protocols itself";

/// All annotations that are known.
#[rustfmt::skip]
pub const TABLE: &[Annotation] = &[
    // Paths and redirects.
    sets("rewrite-target", Kind::Target, "the path that the backend sees; all paths of the host become regular expressions"),
    sets("use-regex", Kind::Bool, "paths of the host are regular expressions that match a beginning, in any case"),
    sets("app-root", Kind::Path, "redirects `/` to a path"),
    sets("ssl-redirect", Kind::Bool, "redirects to HTTPS where the Ingress has TLS; off unless it is set"),
    sets("force-ssl-redirect", Kind::Bool, "redirects to HTTPS, with TLS or without"),
    sets("permanent-redirect", Kind::Url, "redirects to another address"),
    sets("permanent-redirect-code", Kind::Number { min: 300, max: 308 }, "the status of that; 301 by default"),
    sets("temporal-redirect", Kind::Url, "redirects to another address"),
    sets("temporal-redirect-code", Kind::Number { min: 300, max: 308 }, "the status of that; 302 by default"),
    sets("from-to-www-redirect", Kind::Bool, "redirects between a host and `www.` before it"),
    sets("server-alias", Kind::Hosts, "further hosts with the same rules"),
    sets("upstream-vhost", Kind::Host, "the host that the backend sees"),
    sets("x-forwarded-prefix", Kind::Path, "the header X-Forwarded-Prefix"),
    sets("custom-headers", Kind::Object, "a ConfigMap of the Ingress's namespace with headers that responses get"),
    sets("proxy-redirect-from", Kind::Url, "the beginning of the backend's redirects that is replaced; `off` replaces none"),
    sets("proxy-redirect-to", Kind::Url, "that which replaces it"),
    sets("proxy-cookie-domain", Kind::Pair, "the Domain of the backend's cookies, and the one that replaces it; `off` replaces none"),
    sets("proxy-cookie-path", Kind::Pair, "the beginning of the Path of the backend's cookies, and the one that replaces it"),
    // Canaries.
    sets("canary", Kind::Bool, "the Ingress is a canary of another with the same hosts and paths"),
    sets("canary-by-header", Kind::Header, "the header whose value `always` or `never` decides"),
    sets("canary-by-header-value", Kind::Text, "the value of that header that takes the canary"),
    sets("canary-by-header-pattern", Kind::Regex, "the values of that header that take the canary"),
    sets("canary-by-cookie", Kind::Cookie, "the cookie whose value `always` or `never` decides"),
    sets("canary-weight", Kind::Number { min: 0, max: 1_000_000 }, "the share of the other requests"),
    sets("canary-weight-total", COUNT, "the whole of that share; 100 by default"),
    // Access.
    guards("auth-type", Kind::Choice(&["basic"]), "basic authentication"),
    guards("auth-secret", Kind::Object, "the Secret with users, in the Ingress's namespace"),
    guards("auth-secret-type", Kind::Choice(&["auth-file", "auth-map"]), "one key `auth` of htpasswd's lines, or a key for each user"),
    sets("auth-realm", Kind::Text, "the realm of basic authentication"),
    guards("auth-url", Kind::Url, "a Service (`http://NAME.NAMESPACE.svc/PATH`) or a path of the same host (`https://$host/PATH`) that decides on requests"),
    guards("auth-method", Kind::Choice(&["GET"]), "the method of that request"),
    sets("auth-signin", Kind::Url, "the address that clients without authorization are redirected to"),
    sets("auth-signin-redirect-param", Kind::Cookie, "the parameter with the address that was asked for; `rd` by default"),
    sets("auth-response-headers", Kind::Headers, "headers of the decision that the backend sees"),
    guards("whitelist-source-range", Kind::Networks, "the clients that are allowed"),
    guards("allowlist-source-range", Kind::Networks, "the clients that are allowed"),
    guards("denylist-source-range", Kind::Networks, "the clients that are refused"),
    guards("satisfy", Kind::Choice(&["any", "all"]), "whether the address or the authentication suffices, or both must hold; `all` by default"),
    guards("limit-rps", COUNT, "requests of a client in a second, on each node"),
    guards("limit-rpm", COUNT, "requests of a client in a minute, on each node"),
    guards("limit-connections", COUNT, "requests of a client in flight, on each node"),
    sets("limit-burst-multiplier", Kind::Number { min: 1, max: 1000 }, "the burst, as a multiple of the rate; 5 by default"),
    sets("limit-whitelist", Kind::Networks, "clients without limits"),
    sets("limit-allowlist", Kind::Networks, "clients without limits"),
    guards("proxy-body-size", Kind::Size, "the most bytes of a request body; 0 is no limit, and so is the default"),
    guards("auth-tls-secret", Kind::Object, "the Secret with `ca.crt` for client certificates, in the Ingress's namespace; HTTP is redirected"),
    guards("auth-tls-verify-client", Kind::Choice(&["on", "off", "optional"]), "whether clients need a certificate"),
    // Backends.
    guards("backend-protocol", Kind::Choice(&["HTTP", "HTTPS", "GRPC", "GRPCS", "AUTO_HTTP"]), "the protocol of the backends"),
    guards("proxy-ssl-secret", Kind::Object, "the Secret with `ca.crt`, and `tls.crt` and `tls.key` for a client certificate"),
    guards("proxy-ssl-verify", Kind::Choice(&["on", "off"]), "whether certificates of backends are verified; off by default"),
    guards("proxy-ssl-name", Kind::Host, "the name in the certificates of backends"),
    sets("proxy-read-timeout", SECONDS, "the longest time until a response begins"),
    sets("proxy-next-upstream", Kind::Words(&["error", "timeout", "invalid_header", "http_500", "http_502", "http_503", "http_504", "http_403", "http_404", "http_429", "non_idempotent", "off"]), "the failures after which another endpoint is tried"),
    sets("proxy-next-upstream-tries", Kind::Number { min: 0, max: 10 }, "the most tries; 3 by default"),
    sets("affinity", Kind::Choice(&["cookie"]), "requests of a session go to one endpoint"),
    sets("session-cookie-name", Kind::Cookie, "the cookie of sessions; `INGRESSCOOKIE` by default"),
    sets("session-cookie-path", Kind::Path, "its path"),
    sets("session-cookie-domain", Kind::Host, "its domain"),
    sets("session-cookie-expires", SECONDS, "its age in seconds"),
    sets("session-cookie-max-age", SECONDS, "its age in seconds"),
    sets("session-cookie-samesite", Kind::Choice(&["None", "Lax", "Strict"]), "its attribute SameSite; `Lax` by default"),
    sets("session-cookie-secure", Kind::Bool, "its attribute Secure"),
    sets("upstream-hash-by", Kind::Variable, "one endpoint for requests with the same `$remote_addr`, `$http_NAME`, `$cookie_NAME`, `$request_uri` or `$host`"),
    sets("custom-http-errors", Kind::Statuses, "statuses whose pages the default backend makes"),
    sets("default-backend", Kind::Object, "the Service that makes error pages, of 503 without custom-http-errors"),
    sets("mirror-target", Kind::Url, "a Service (`http://NAME.NAMESPACE.svc`) that gets a copy of requests"),
    sets("ssl-passthrough", Kind::Bool, "TLS goes on to the backend as it is"),
    sets("enable-access-log", Kind::Bool, "whether requests are logged"),
    // Cross-origin requests.
    sets("enable-cors", Kind::Bool, "answers cross-origin requests"),
    sets("cors-allow-origin", Kind::Origins, "the origins; all by default"),
    sets("cors-allow-methods", Kind::Methods, "the methods; `GET, PUT, POST, DELETE, PATCH, OPTIONS` by default"),
    sets("cors-allow-headers", Kind::Headers, "the headers"),
    sets("cors-expose-headers", Kind::Headers, "the headers that scripts see"),
    sets("cors-allow-credentials", Kind::Bool, "whether cookies are allowed, never for all origins"),
    sets("cors-max-age", SECONDS, "the seconds for which an answer holds; 1728000 by default"),
    // Settings of nginx without an equivalent.
    no_effect("proxy-connect-timeout", OWN_TIMEOUT),
    no_effect("proxy-send-timeout", OWN_TIMEOUT),
    no_effect("proxy-next-upstream-timeout", OWN_TIMEOUT),
    no_effect("affinity-mode", "sessions are persistent"),
    no_effect("affinity-canary-behavior", "sessions are sticky"),
    no_effect("session-cookie-change-on-failure", "a session whose endpoint is gone begins anew"),
    no_effect("session-cookie-conditional-samesite-none", "no client is told apart"),
    no_effect("service-upstream", "endpoints that leave end their requests"),
    no_effect("load-balance", "the less loaded of two endpoints is taken"),
    no_effect("upstream-hash-by-subset", "a hash has one endpoint"),
    no_effect("upstream-hash-by-subset-size", "a hash has one endpoint"),
    no_effect("proxy-buffering", BUFFERS),
    no_effect("proxy-buffer-size", BUFFERS),
    no_effect("proxy-buffers-number", BUFFERS),
    no_effect("proxy-busy-buffers-size", BUFFERS),
    no_effect("proxy-max-temp-file-size", BUFFERS),
    no_effect("proxy-request-buffering", BUFFERS),
    no_effect("client-body-buffer-size", BUFFERS),
    no_effect("mirror-request-body", "a mirror gets the body"),
    no_effect("preserve-trailing-slash", "paths stay as they are"),
    no_effect("proxy-http-version", "HTTP/1.1, or the protocol of the port"),
    no_effect("connection-proxy-header", "connections are kept"),
    no_effect("http2-push-preload", "browsers no longer support it"),
    no_effect("enable-rewrite-log", "`corten why --url` shows the rewrite"),
    no_effect("ssl-ciphers", OWN_TLS),
    no_effect("ssl-prefer-server-ciphers", OWN_TLS),
    no_effect("proxy-ssl-ciphers", OWN_TLS),
    no_effect("proxy-ssl-protocols", OWN_TLS),
    no_effect("proxy-ssl-server-name", "the name is always sent"),
    no_effect("proxy-ssl-verify-depth", "chains have a bound"),
    no_effect("auth-tls-verify-depth", "chains have a bound"),
    no_effect("auth-cache-key", NO_CACHE),
    no_effect("auth-cache-duration", NO_CACHE),
    no_effect("auth-keepalive", "connections are kept"),
    no_effect("auth-keepalive-share-vars", "there are no variables"),
    no_effect("auth-keepalive-requests", "connections are kept"),
    no_effect("auth-keepalive-timeout", "connections are kept"),
    no_effect("auth-always-set-cookie", "cookies of a refusal reach the client"),
    no_effect("disable-proxy-intercept-errors", "only custom-http-errors are replaced"),
    no_effect("use-port-in-redirects", "redirects have the port that clients see"),
    // Settings that change answers, and that the proxy does not have.
    unsupported("auth-proxy-set-headers", "the decision gets the headers of the request"),
    unsupported("auth-request-redirect", "the decision gets X-Original-URL"),
    unsupported("enable-global-auth", "there is no global authentication"),
    unsupported("auth-tls-error-page", "a handshake without a certificate fails"),
    unsupported("auth-tls-pass-certificate-to-upstream", "certificates are not passed on"),
    unsupported("auth-tls-match-cn", "names of client certificates are not compared"),
    unsupported("limit-rate", "responses are not slowed down"),
    unsupported("limit-rate-after", "responses are not slowed down"),
    unsupported("mirror-host", "a mirror sees the host of the request"),
    unsupported("enable-modsecurity", "there is no web application firewall"),
    unsupported("enable-owasp-core-rules", "there is no web application firewall"),
    unsupported("modsecurity-transaction-id", "there is no web application firewall"),
    unsupported("enable-opentelemetry", "requests are not traced; traceparent is passed on and logged"),
    unsupported("opentelemetry-operation-name", "requests are not traced"),
    unsupported("opentelemetry-trust-incoming-span", "requests are not traced"),
    unsupported("fastcgi-index", "backends speak HTTP"),
    unsupported("fastcgi-params-configmap", "backends speak HTTP"),
    unsupported("secure-verify-ca-secret", "use proxy-ssl-secret"),
    // Text of a configuration.
    refused("configuration-snippet"),
    refused("server-snippet"),
    refused("stream-snippet"),
    refused("location-snippet"),
    refused("auth-snippet"),
    refused("modsecurity-snippet"),
    refused("lua-resty-waf"),
];
