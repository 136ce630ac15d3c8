//! Fetches a document of a kubelet for the server itself, and not for a client.

use bytes::Bytes;
use corten_meta::{Status, Value};
use http::{Request, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

use super::kubelet::Kubelets;
use super::locate;

/// Sends a GET to the node's kubelet; an answer larger than `limit` is an error.
pub async fn fetch_from_kubelet(kubelets: &Kubelets, node: &Value, path: &str, limit: usize) -> Result<Bytes, Status> {
    let backend = locate::kubelet(node, path.to_owned())?;
    let stream = kubelets.connect(&backend).await.map_err(Status::internal)?;
    let broken = |e: hyper::Error| Status::internal(format!("error talking to the backend: {e}"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let request = Request::get(&backend.path_and_query)
        .header(header::HOST, format!("{}:{}", backend.host, backend.port))
        .body(Empty::<Bytes>::new())
        .map_err(|e| Status::internal(e.to_string()))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let code = response.status();
        let body = Limited::new(response.into_body(), limit).collect().await;
        let body = body.map_err(|e| Status::internal(format!("error reading the backend's answer: {e}")))?.to_bytes();
        if code.is_success() {
            return Ok(body);
        }
        Err(Status::internal(format!("the kubelet answered {code}: {}", String::from_utf8_lossy(&body))))
    };
    // The connection is polled only while this function waits, and closed with it.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            Ok(()) => answer.await,
            Err(e) => Err(broken(e)),
        },
    }
}
