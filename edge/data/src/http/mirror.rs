//! Copies of requests for mirrors, whose answers are dropped. A mirror never delays the request itself.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::request::Parts;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::mpsc;

use super::{Exchange, forward};
use crate::request_body::RequestBody;

/// The frames of a body that a mirror may be behind.
const MAX_BEHIND: usize = 64;
/// The longest time for a mirror's answer.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends copies of a request to the mirrors that the filters chose.
pub(super) fn begin(exchange: &mut Exchange<'_>, parts: &Parts, body: &mut RequestBody) {
    let has_body = !body.is_end_stream();
    let mut copies = Vec::new();
    for backend in std::mem::take(&mut exchange.mirrors) {
        let Ok(permit) = Arc::clone(&exchange.connection.shared.mirrors).try_acquire_owned() else {
            return;
        };
        let copied = if has_body {
            let (sender, receiver) = mpsc::channel(MAX_BEHIND);
            copies.push(sender);
            RequestBody::copied(receiver)
        } else {
            RequestBody::empty()
        };
        let mut request = Request::new(copied);
        *request.method_mut() = parts.method.clone();
        request.headers_mut().clone_from(&parts.headers);
        *request.uri_mut() = match exchange.target.as_ref().map(|target| target.parse()) {
            Some(Ok(target)) => target,
            Some(Err(_)) => return,
            None => parts.uri.clone(),
        };
        let client = exchange.connection.addresses();
        let scheme = exchange.connection.scheme();
        tokio::spawn(async move {
            let mirrored = async {
                if let Ok(response) = forward::mirror_to(&backend, client, scheme, request).await {
                    let mut body = response.into_body();
                    while let Some(Ok(_)) = body.frame().await {}
                }
            };
            // The answer of a mirror matters to nothing.
            let _ = tokio::time::timeout(MIRROR_TIMEOUT, mirrored).await;
            drop(permit);
        });
    }
    body.copy_to(copies);
}
