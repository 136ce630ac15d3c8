//! The secure port of a control plane component: its health and its metrics.
//!
//! Health checks need no authentication, as in upstream's components. Everything else needs a client certificate of the
//! cluster or a token that the API server knows, and authorization to `get` the path. Without a given certificate, a
//! self-signed one is made at the start: a client that verifies it needs a component with a certificate that the
//! cluster trusts.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use corten_api::k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use corten_api::k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_client::Client;
use corten_listen::{Gate, Limits, Slot};
use corten_meta::metrics::HealthChecks;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::pki::Identity;
use crate::serving_options::Serving;
use crate::supervision;

/// The largest number of connections.
const LIMITS: Limits = Limits { connections: 1024, unauthenticated: 64 };

/// A check, which returns an error if it fails.
pub type Check = (&'static str, Box<dyn Fn() -> Result<(), String> + Send + Sync>);

/// A page that is made on request.
pub type Page = Box<dyn Fn() -> String + Send + Sync>;

/// The endpoints of a component.
pub struct Endpoint {
    /// The address; port zero serves nothing.
    pub address: SocketAddr,
    /// The certificates, now and after they were renewed.
    pub tls: watch::Receiver<EndpointTls>,
    /// The client for TokenReviews and SubjectAccessReviews.
    pub client: Client,
    /// The checks of `/readyz`; `/healthz` and `/livez` show that the process answers.
    pub ready: Vec<Check>,
    /// `/metrics`, in the Prometheus text format.
    pub metrics: Page,
    /// `/metrics/slis`: the results of the checks above.
    pub checks: HealthChecks,
}

/// The certificates of an endpoint.
#[derive(Clone)]
pub struct EndpointTls {
    /// The serving certificate; self-signed if absent.
    pub identity: Option<Identity>,
    /// The CA of client certificates; none accepts no client certificate.
    pub client_ca: Option<String>,
}

/// Returns the certificates that the flags name, and the CA that the API server publishes.
pub async fn given_tls(flags: &Serving, client: &Client) -> Result<watch::Receiver<EndpointTls>> {
    let identity = flags.identity()?;
    let client_ca = published_client_ca(client).await;
    Ok(watch::channel(EndpointTls { identity, client_ca }).1)
}

/// Serves until shutdown.
pub async fn serve(endpoint: Endpoint, shutdown: CancellationToken) -> Result<()> {
    let address = endpoint.address;
    if address.port() == 0 {
        shutdown.cancelled().await;
        return Ok(());
    }
    let mut tls = endpoint.tls.clone();
    let mut acceptor = acceptor(&tls.borrow_and_update())?;
    let listener = supervision::listen(address).await?;
    tracing::info!(%address, "health and metrics are served");
    let endpoint = Arc::new(endpoint);
    let connections = TaskTracker::new();
    let gate = Gate::new(LIMITS);
    loop {
        let (stream, slot) = tokio::select! {
            () = shutdown.cancelled() => break,
            Ok(()) = tls.changed() => {
                match self::acceptor(&tls.borrow_and_update()) {
                    Ok(renewed) => acceptor = renewed,
                    Err(error) => tracing::warn!("the renewed certificate is not used: {error:#}"),
                }
                continue;
            }
            accepted = gate.accept(&listener) => accepted,
        };
        let endpoint = endpoint.clone();
        let acceptor = acceptor.clone();
        let shutdown = shutdown.clone();
        let served: BoxFuture<'static, ()> = Box::pin(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = slot.closed() => {}
                () = connection(endpoint, acceptor, stream, &slot) => {}
            }
        });
        connections.spawn(served);
    }
    connections.close();
    connections.wait().await;
    Ok(())
}

fn acceptor(tls: &EndpointTls) -> Result<TlsAcceptor> {
    let Identity { certificate, key } = match tls.identity.clone() {
        Some(given) => given,
        None => {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
            Identity { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
        }
    };
    let client_ca = tls.client_ca.as_deref().unwrap_or_default();
    let config = corten_apiserver::tls_config(&certificate, &key, client_ca).context("it cannot be served")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(endpoint: Arc<Endpoint>, acceptor: TlsAcceptor, stream: TcpStream, slot: &Slot) {
    let stream = match corten_listen::handshake(&acceptor, stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "TLS handshake failed"),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = certificate.and_then(|certificate| user_of(certificate));
    if user.is_some() {
        slot.authenticated();
    }
    let service = service_fn(move |request| {
        slot.request_arrived();
        let endpoint = endpoint.clone();
        let user = user.clone();
        async move {
            let method = request.method().clone();
            let response = answer(&endpoint, user, request).await;
            Ok::<_, Infallible>(corten_listen::head::answer(&method, response, Full::default()))
        }
    });
    if let Err(error) = corten_listen::http().serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Answers a request: health without authentication; for everything else authenticates, authorizes, then routes.
async fn answer(endpoint: &Endpoint, user: Option<User>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let verbose = request.uri().query().is_some_and(|query| query.contains("verbose"));
    match path {
        "/healthz" | "/livez" => return health(path, &[], &endpoint.checks, verbose),
        "/readyz" => return health(path, &endpoint.ready, &endpoint.checks, verbose),
        _ => {}
    }
    let user = match user {
        Some(user) => Some(user),
        None => authenticate(endpoint, &request).await,
    };
    let Some(user) = user else { return text(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()) };
    if !may_get(endpoint, &user, path).await {
        let why = format!("forbidden: User {:?} cannot get path {path:?}", user.name);
        return text(StatusCode::FORBIDDEN, why);
    }
    match path {
        "/metrics" => text(StatusCode::OK, (endpoint.metrics)()),
        "/metrics/slis" => text(StatusCode::OK, endpoint.checks.render(corten_apiserver::process_started())),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    }
}

/// Runs the checks and counts their results. Every endpoint has the check that the process answers at all.
fn health(path: &str, checks: &[Check], counts: &HealthChecks, verbose: bool) -> Response<Full<Bytes>> {
    let mut results: Vec<(&str, Result<(), String>)> = vec![("ping", Ok(()))];
    results.extend(checks.iter().map(|(name, check)| (*name, check())));
    let well = results.iter().all(|(_, result)| result.is_ok());
    let name = path.trim_start_matches('/');
    for (check, result) in &results {
        counts.observe(check, name, result.is_ok());
    }
    if well && !verbose {
        return text(StatusCode::OK, "ok".to_owned());
    }
    let mut body = String::new();
    for (check, result) in results {
        match result {
            Ok(()) => body.push_str(&format!("[+]{check} ok\n")),
            Err(_) => body.push_str(&format!("[-]{check} failed: reason withheld\n")),
        }
    }
    body.push_str(&format!("{name} check {}\n", if well { "passed" } else { "failed" }));
    text(if well { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, body)
}

#[derive(Clone)]
struct User {
    name: String,
    groups: Vec<String>,
}

fn user_of(certificate: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let name = certificate.subject().iter_common_name().next().and_then(text)?;
    let groups = certificate.subject().iter_organization().filter_map(text);
    Some(User { name, groups: groups.chain(["system:authenticated".to_owned()]).collect() })
}

/// Returns the user of the token, or the anonymous user without one. A token that the API server does not know is
/// refused.
async fn authenticate(endpoint: &Endpoint, request: &Request<Incoming>) -> Option<User> {
    let value = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((_, token)) = value.and_then(|value| value.split_once(' ')) else {
        let groups = vec!["system:unauthenticated".to_owned()];
        return Some(User { name: "system:anonymous".to_owned(), groups });
    };
    let spec = TokenReviewSpec { token: token.trim().to_owned(), ..TokenReviewSpec::default() };
    let review = endpoint.client.create(&TokenReview { spec, ..TokenReview::default() }).await.ok()?;
    let status = review.status.filter(|status| status.authenticated == Some(true))?;
    let user = status.user?;
    Some(User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() })
}

async fn may_get(endpoint: &Endpoint, user: &User, path: &str) -> bool {
    let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some("get".to_owned()) };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = endpoint.client.create(&review).await;
    answer.is_ok_and(|review| review.status.is_some_and(|status| status.allowed))
}

/// Returns the CA of client certificates that the API server publishes for components that run alone.
pub async fn published_client_ca(client: &Client) -> Option<String> {
    match client.find::<ConfigMap>("kube-system", "extension-apiserver-authentication").await {
        Ok(map) => map?.data?.get("client-ca-file").cloned(),
        Err(error) => {
            tracing::warn!(%error, "client certificates are not believed: their authority cannot be read");
            None
        }
    }
}

/// Returns the metrics page of a component and its process.
pub fn page(metrics: corten_client::Metrics) -> Page {
    Box::new(move || {
        let mut process = corten_meta::metrics::Exposition::default();
        corten_apiserver::process_metrics(&mut process);
        metrics.render() + &process.finish()
    })
}

fn text(status: StatusCode, content: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(content.into()));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().insert("x-content-type-options", header::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_lists_each_check() {
        let check = |name, fails: bool| -> Check {
            (name, Box::new(move || if fails { Err("why".to_owned()) } else { Ok(()) }))
        };
        let counts = HealthChecks::default();
        let well = health("/readyz", &[check("a", false)], &counts, false);
        assert_eq!(well.status(), StatusCode::OK);
        let ill = health("/readyz", &[check("a", false), check("b", true)], &counts, false);
        assert_eq!(ill.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let page = counts.render(None);
        for sample in [
            r#"kubernetes_healthcheck{name="b",type="readyz"} 0"#,
            r#"kubernetes_healthchecks_total{name="a",status="success",type="readyz"} 2"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 2"#,
        ] {
            assert!(page.contains(sample), "{page}");
        }
    }

    async fn get(address: SocketAddr, path: &str) -> (u16, String) {
        let server = format!("https://{address}");
        let config = corten_client::HttpsConfig { server, insecure_skip_tls_verify: true, ..Default::default() };
        let request = Request::builder().uri(path).body(Bytes::new()).unwrap();
        let response = Client::https(config).unwrap().request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().into_bytes().await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn health_is_public_and_metrics_need_authorization() {
        let plane = testkit::server::TestServer::start().await;
        // A loopback address that no other test uses.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 128 | high, middle, low], 10259));
        let endpoint = Endpoint {
            address,
            tls: watch::channel(EndpointTls { identity: None, client_ca: None }).1,
            client: plane.client("system:kube-scheduler", &[]),
            ready: vec![("b", Box::new(|| Err("not yet".to_owned())))],
            metrics: Box::new(|| "a_total 1\n".to_owned()),
            checks: HealthChecks::default(),
        };
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(endpoint, shutdown.clone()));
        while tokio::net::TcpStream::connect(address).await.is_err() {
            assert!(!served.is_finished(), "the endpoint is served");
            tokio::task::yield_now().await;
        }
        assert_eq!(get(address, "/healthz").await, (200, "ok".to_owned()));
        let (status, body) = get(address, "/readyz").await;
        assert!(status == 500 && body.contains("[-]b failed"), "{status} {body}");
        assert_eq!(get(address, "/metrics").await.0, 403);
        let admin = plane.admin();
        let rule = serde_json::json!({"nonResourceURLs": ["/metrics", "/metrics/slis"], "verbs": ["get"]});
        let role = serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "metrics"}, "rules": [rule]});
        let binding = serde_json::json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "metrics"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:anonymous"}]});
        use corten_api::Typed as _;
        use corten_api::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
        admin.create(&ClusterRole::from_value(role).unwrap()).await.unwrap();
        admin.create(&ClusterRoleBinding::from_value(binding).unwrap()).await.unwrap();
        let mut answer = get(address, "/metrics").await;
        let began = std::time::Instant::now();
        while answer.0 != 200 && began.elapsed() < std::time::Duration::from_secs(300) {
            answer = get(address, "/metrics").await;
        }
        assert_eq!(answer, (200, "a_total 1\n".to_owned()));
        let (status, page) = get(address, "/metrics/slis").await;
        assert!(
            status == 200 && page.contains(r#"kubernetes_healthcheck{name="b",type="readyz"} 0"#),
            "{status} {page}"
        );
        shutdown.cancel();
        served.await.unwrap().unwrap();
    }
}
