//! Paths that are not resources: discovery, OpenAPI, health, version, metrics, keys.

mod facts;
mod health;
mod metrics;
mod version;
mod zpages;

use corten_meta::Status;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;

use crate::body::Reply;
use crate::context::Context;
use crate::flow_control;
use crate::metrics::process;
use crate::negotiation::{ACCEPTED, Accept, Format, unread_form};
use crate::ordered::Ordered;
use crate::response;
use crate::server::Server;

/// What metrics are written in.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// What the keys of tokens are written in.
const KEYS: &str = "application/jwk-set+json";

/// Paths that do not lead anywhere with another slash behind them.
const EXACT: [&str; 5] = ["/flagz", "/metrics", "/metrics/slis", "/openapi/v2", "/statusz"];

/// For how long what there is to know of tokens may be kept.
const KEPT: HeaderValue = HeaderValue::from_static("public, max-age=3600");

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
            // People read these two, and get them in lines without asking.
            let accept = Accept { format: Format::Json, pretty: true, ..context.accept };
            Ok(response::value(accept, StatusCode::OK, &index(server)))
        }
        "/version" => {
            let accept = Accept { pretty: true, ..context.accept.only("application/json", &context.headers)? };
            Ok(response::value(accept, StatusCode::OK, &Ordered::document(&version::version(&server.core.config))))
        }
        "/statusz" => zpages::serve(server, context, "Statusz"),
        "/flagz" => zpages::serve(server, context, "Flagz"),
        "/metrics" => Ok(exposition(metrics::render(server))),
        "/metrics/slis" => Ok(exposition(server.core.metrics.health.render(process::started()))),
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

/// Metrics, with when they began to be counted.
fn exposition(text: String) -> Reply {
    let mut reply = response::full(StatusCode::OK, EXPOSITION, text.into());
    if let Some(started) = process::started() {
        reply.headers_mut().insert("process-start-time-unix", HeaderValue::from(started as u64));
    }
    reply
}

fn kept(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(header::CACHE_CONTROL, KEPT);
    reply
}

/// The answer where a group version without a document is asked for.
fn no_document() -> Reply {
    response::full(StatusCode::NOT_FOUND, "text/plain", bytes::Bytes::new())
}

/// Whether the path is below a built-in group or the version, which answer in their own form what they do not have.
fn is_in_api(server: &Server, path: &str) -> bool {
    let mut parts = path.strip_prefix('/').unwrap_or(path).split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("api" | "version"), Some(_), _) => true,
        (Some("apis"), Some(group), Some(_)) => {
            !group.is_empty()
                && server.core.registry.resources().ordered.iter().any(|r| r.kind.group == group && !r.kind.is_custom())
        }
        _ => false,
    }
}

/// Whether a path may end with slashes: those of the API and of facts may. The list of groups may with one, and all
/// others are what they are.
fn takes_slashes(given: &str, path: &str) -> bool {
    (path.starts_with("/api") && given != "/apis//") || path.starts_with("/version/") || is_fact(path)
}

fn is_fact(path: &str) -> bool {
    matches!(path, "/version" | "/.well-known/openid-configuration" | "/openid/v1/jwks")
}

/// Built-in versions and facts about the server are read by GET and nothing else; lists of groups, versions of custom
/// resources, health and schemas do not look at the method.
fn takes_only_get(server: &Server, path: &str) -> bool {
    let is_version = path == "/api" || is_in_api(server, path);
    is_fact(path) || (is_version && server.published.discovery().paths().any(|known| known == path))
}

/// Who says what its body is, though it has none, says something that is read here.
fn check_content_type(path: &str, headers: &HeaderMap) -> Result<(), Status> {
    let read: &[&str] = match path {
        "/version" => &ACCEPTED[..1],
        _ if is_fact(path) => return Ok(()),
        _ => ACCEPTED,
    };
    let said = headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    let is_read = |part: &str| read.contains(&part.split(';').next().unwrap_or_default().trim());
    match said.is_empty() || said.split(',').any(is_read) {
        true => Ok(()),
        false => Err(unread_form()),
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
