//! Forwards a request to a remote API server, with this server's certificate and the user in headers.

use corten_meta::Status;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};

use super::Known;
use super::remote::{OutBody, is_user_header, set_user};
use crate::body::{Reply, RequestBody};
use crate::context::Context;
use crate::core::Core;
use crate::proxy::{is_passed_on, join, passed};
use crate::response;
use crate::websocket::is_upgrade;

/// Sends the request to the remote server and returns its answer: also watches, and upgraded streams.
pub async fn forward(core: &Core, context: &Context, known: &Known, body: RequestBody) -> Result<Reply, Status> {
    if !known.available {
        return Ok(unavailable("service unavailable"));
    }
    let (mut sender, host) = match known.remote.connect(&core.registry.outbound).await {
        Ok(connected) => connected,
        Err(status) if status.code == 503 => return Ok(unavailable(&status.message)),
        Err(status) => return Err(status),
    };
    let upgrade = is_upgrade(&context.headers);
    let request = request(context, &host, body, upgrade)?;
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(e) => return Ok(unavailable(&format!("error trying to reach service: {e}"))),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return join(&core.tasks, context, response);
    }
    Ok(passed(response))
}

/// Returns a plain text answer, as upstream's aggregator does.
fn unavailable(why: &str) -> Reply {
    response::text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"))
}

fn request(context: &Context, host: &str, body: RequestBody, upgrade: bool) -> Result<Request<OutBody>, Status> {
    let body = if upgrade { OutBody::default() } else { body.passed_on() };
    let query = context.raw_query.as_str();
    let target = if query.is_empty() { context.raw_path.clone() } else { format!("{}?{query}", context.raw_path) };
    let mut builder = Request::builder().method(context.method.clone()).uri(target);
    if let Some(headers) = builder.headers_mut() {
        for (name, value) in &context.headers {
            if is_passed_on(name) && !is_user_header(name) {
                headers.append(name.clone(), value.clone());
            }
        }
        set_user(headers, &context.user);
        if upgrade {
            for name in [header::CONNECTION, header::UPGRADE] {
                if let Some(value) = context.headers.get(&name) {
                    headers.insert(name, value.clone());
                }
            }
        }
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.insert(header::HOST, host);
        }
        let proto = HeaderName::from_static("x-forwarded-proto");
        headers.insert(proto, HeaderValue::from_static("https"));
    }
    builder.body(body).map_err(|e| Status::bad_request(format!("the request cannot be passed on: {e}")))
}
