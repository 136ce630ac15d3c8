//! The driver alone, for tests and for csi-sanity: `driver <pool directory> <socket>` serves until it is stopped.

use std::path::PathBuf;

use corten_storage_driver::{Config, Volumes};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let mut next = || arguments.next().ok_or_else(|| anyhow::anyhow!("usage: driver <pool directory> <socket>"));
    let pool = next()?;
    let socket = next()?;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        stop.cancel();
    });
    let config = Config {
        node_name: "node".into(),
        pool,
        socket,
        registration: None,
        overcommit: 1.0,
        volumes: Volumes::default(),
        fence: None,
    };
    corten_storage_driver::run(config, shutdown).await?;
    Ok(())
}
