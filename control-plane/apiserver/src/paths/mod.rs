//! Paths that are not resources: discovery, OpenAPI, health, version, metrics, keys.

mod build_metrics;
mod health;
mod metrics;
mod version;
mod zpages;

use corten_meta::Status;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;

use crate::body::{Body, Reply};
use crate::context::Context;
use crate::flow_control;
use crate::metrics::process;
use crate::negotiation::{ACCEPTED, Accept, Format, unsupported_body};
use crate::response;
use crate::server::Server;
use crate::site::{self, PageRequest, Site};
use crate::upstream_order::UpstreamOrder;

/// The media type of metrics.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The media type of the keys of tokens.
const KEYS: &str = "application/jwk-set+json";

/// Paths that are not found with a trailing slash.
const EXACT: [&str; 6] = ["/flagz", "/metrics", "/metrics/slis", "/metrics/state", "/openapi/v2", "/statusz"];

/// The caching of the documents about tokens.
const KEPT: HeaderValue = HeaderValue::from_static("public, max-age=3600");

/// Returns the site that a path belongs to.
pub fn site<'a>(server: &'a Server, context: &Context) -> Option<&'a dyn Site> {
    server.core.config.site.as_deref().filter(|site| site::has(*site, &context.info.path))
}

/// Answers with a page of a site.
pub async fn page(site: &dyn Site, context: &Context) -> Reply {
    let request = PageRequest {
        method: &context.method,
        path: &context.info.path,
        query: &context.raw_query,
        headers: &context.headers,
        user: &context.user,
    };
    site.answer(request).await.map(Body::Full)
}

/// Answers a path that is no resource.
pub async fn serve(server: &Server, context: &Context) -> Result<Reply, Status> {
    let path = context.info.path.trim_end_matches('/');
    if context.info.path.len() > 1 && context.info.path.ends_with('/') && !takes_slashes(&context.info.path, path) {
        return Ok(match path.starts_with("/openapi/v3") {
            true => no_document(),
            false => response::page_not_found(),
        });
    }
    if let Some(reply) = health::serve(server, context) {
        return Ok(reply);
    }
    if path != context.info.path && EXACT.contains(&path) {
        return Ok(response::page_not_found());
    }
    if takes_only_get(server, path) {
        if context.method != Method::GET {
            return Err(Status::method_not_allowed());
        }
        check_content_type(path, &context.headers)?;
    }
    server.custom_resources.settled().await;
    if let Some(reply) = server.published.discovery().serve(context) {
        return reply;
    }
    if let Some(reply) = server.published.openapi().serve(context).await {
        return Ok(reply);
    }
    match path {
        "" | "/index.html" => {
            // People read these two, and get them indented without asking.
            let accept = Accept { format: Format::Json, pretty: true, ..context.accept };
            Ok(response::value(accept, StatusCode::OK, &index(server)))
        }
        "/version" => {
            let accept = Accept { pretty: true, ..context.accept.only("application/json", &context.headers)? };
            Ok(response::value(
                accept,
                StatusCode::OK,
                &UpstreamOrder::document(&version::version(&server.core.config)),
            ))
        }
        "/statusz" => zpages::serve(server, context, "Statusz"),
        "/flagz" => zpages::serve(server, context, "Flagz"),
        "/metrics" => Ok(exposition(metrics::render(server))),
        "/metrics/slis" => Ok(exposition(server.core.metrics.health.render(process::started()))),
        "/metrics/state" => state_metrics(server).await,
        "/.well-known/openid-configuration" => {
            let accept = context.accept.only("application/json", &context.headers)?;
            let jwks = format!("https://{}/openid/v1/jwks", server.core.config.host_port());
            Ok(kept(response::value(accept, StatusCode::OK, &server.authentication.tokens.openid_configuration(&jwks))))
        }
        "/openid/v1/jwks" => {
            context.accept.only(KEYS, &context.headers)?;
            Ok(kept(response::full(StatusCode::OK, KEYS, server.authentication.tokens.jwks().to_string().into())))
        }
        _ if path.starts_with("/debug/") => {
            let details = context.info.query.get("includeRequestDetails").is_some_and(|value| !value.is_empty());
            let dump = flow_control::dump(&server.flow_control, path, details);
            let page = |text: String| response::full(StatusCode::OK, "text/plain; charset=utf-8", text.into());
            Ok(dump.map_or_else(response::page_not_found, page))
        }
        _ if path.starts_with("/openapi/v3/") => Ok(no_document()),
        _ if is_in_api(server, path) => Err(Status::path_not_found()),
        _ => Ok(response::page_not_found()),
    }
}

/// Returns a response with metrics, and with the start time of their counters.
fn exposition(text: String) -> Reply {
    let mut reply = response::full(StatusCode::OK, EXPOSITION, text.into());
    if let Some(started) = process::started() {
        reply.headers_mut().insert("process-start-time-unix", HeaderValue::from(started as u64));
    }
    reply
}

/// Returns the metrics of the state of objects. A first page takes long to write, so it is no task of the runtime's threads.
async fn state_metrics(server: &Server) -> Result<Reply, Status> {
    let Some(metrics) = server.core.config.object_metrics.clone() else { return Ok(response::page_not_found()) };
    let core = server.core.clone();
    let page = tokio::task::spawn_blocking(move || {
        metrics.page(&|group, version, plural| core.registry.cached_list(group, version, plural, ""))
    });
    Ok(exposition(page.await.map_err(Status::internal)?))
}

fn kept(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CACHE_CONTROL, KEPT);
    reply
}

/// Returns the response for a group version without a document.
fn no_document() -> Reply {
    response::full(StatusCode::NOT_FOUND, "text/plain", bytes::Bytes::new())
}

/// Returns whether the path is below a registered group or `/version`, which answer an unknown path with a Status.
fn is_in_api(server: &Server, path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("api" | "version"), Some(_), _) => true,
        (Some("apis"), Some(group), Some(_)) => {
            !group.is_empty() && server.core.registry.resources().has_registered_group(group)
        }
        _ => false,
    }
}

/// Returns whether a path may end with slashes: paths of the API and documents about the server may. `/apis` may have
/// one slash, and all other paths none.
fn takes_slashes(given: &str, path: &str) -> bool {
    (path.starts_with("/api") && given != "/apis//") || path.starts_with("/version/") || is_server_document(path)
}

fn is_server_document(path: &str) -> bool {
    matches!(path, "/version" | "/.well-known/openid-configuration" | "/openid/v1/jwks")
}

/// Returns whether a path takes GET only: built-in versions and documents about the server do. Lists of groups,
/// versions of custom resources, health and schemas ignore the method.
fn takes_only_get(server: &Server, path: &str) -> bool {
    let is_version = path == "/api" || is_in_api(server, path);
    is_server_document(path) || (is_version && server.published.discovery().paths().any(|known| known == path))
}

/// Checks that the Content-Type of a GET, which has no body, is one that is supported.
fn check_content_type(path: &str, headers: &HeaderMap) -> Result<(), Status> {
    let read: &[&str] = match path {
        "/version" => &ACCEPTED[..1],
        _ if is_server_document(path) => return Ok(()),
        _ => ACCEPTED,
    };
    let content_type = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    let is_read = |part: &str| read.contains(&part.split(';').next().unwrap_or_default().trim());
    match content_type.is_empty() || content_type.split(',').any(is_read) {
        true => Ok(()),
        false => Err(unsupported_body()),
    }
}

fn index(server: &Server) -> serde_json::Value {
    let own = [
        "/.well-known/openid-configuration",
        "/apis/",
        "/flagz",
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/openid/v1/jwks",
        "/readyz",
        "/statusz",
        "/version",
    ];
    let discovery = server.published.discovery();
    let own = own.into_iter().map(str::to_owned).chain(health::paths(server));
    let mut paths: Vec<String> = discovery.paths().map(str::to_owned).chain(own).collect();
    paths.sort_unstable();
    json!({ "paths": paths })
}
