//! Runs the loops for a driver of another project: `storage_control SOCKET KUBECONFIG [NODE]`, until it is interrupted.

use std::path::Path;

use corten_client::Client;
use corten_storage_control::Options;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, kubeconfig, node @ ..] = arguments.as_slice() else {
        return Err("usage: storage_control SOCKET KUBECONFIG [NODE]".into());
    };
    let client = Client::from_kubeconfig(kubeconfig, None)?;
    let options =
        Options { node: node.first().cloned(), identity: std::process::id().to_string(), ..Options::default() };
    let shutdown = CancellationToken::new();
    let running = corten_storage_control::run(Path::new(socket), client, options, shutdown.clone());
    tokio::pin!(running);
    tokio::select! {
        ended = &mut running => ended?,
        _ = tokio::signal::ctrl_c() => {
            shutdown.cancel();
            running.await?;
        }
    }
    Ok(())
}
