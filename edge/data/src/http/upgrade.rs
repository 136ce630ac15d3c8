//! Connections that changed protocols: WebSockets and others. Their bytes pass both ways until one side ends, whatever
//! happens to the rule that let them through.

use std::sync::Arc;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;

use crate::backend::{Http1Connection, InFlight};
use crate::client::ConnectionInfo;

/// Passes bytes between a client and an endpoint in a task of its own.
pub(super) fn begin(
    connection: &Arc<ConnectionInfo>,
    client: OnUpgrade,
    endpoint: Box<Http1Connection>,
    request: InFlight,
) {
    let connection = Arc::clone(connection);
    let tasks = connection.shared.tasks.clone();
    tasks.spawn(async move {
        let tunnel = async {
            let endpoint = endpoint.into_upgraded();
            let mut client = TokioIo::new(client.await.map_err(std::io::Error::other)?);
            // Bytes that the endpoint sent along with its answer.
            client.write_all(&endpoint.read).await?;
            client.flush().await?;
            corten_listen::relay(client, endpoint.stream).await
        };
        tokio::select! {
            passed = tunnel => {
                if let Err(error) = passed {
                    tracing::debug!(%error, "a connection that changed protocols ended");
                }
            }
            () = connection.listener.killed() => {}
        }
        drop(request);
    });
}
