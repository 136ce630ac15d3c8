//! Serves the halves of the driver on a socket, or the controller's half inside this process.

use std::path::PathBuf;
use std::sync::Arc;

use corten_plugins::csi::controller_server::ControllerServer;
use corten_plugins::csi::identity_server::IdentityServer;
use corten_plugins::csi::node_server::NodeServer;
use corten_storage_plugin::error::Result;
use corten_storage_plugin::sockets::{InProcess, MOST_CALLS, Registration, failed, listen};
use corten_storage_plugin::targets::remove_file;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Server};

use crate::cloud::Cloud;
use crate::controller::ControllerHalf;
use crate::identity::{Driver, NAME};
use crate::node::NodeHalf;

/// The settings of the driver.
pub struct Config {
    /// The volumes of the cluster, for the controller's half.
    pub controller: Option<Cloud>,
    /// The node's half.
    pub node: Option<NodeHalf>,
    /// The socket of the CSI services.
    pub socket: PathBuf,
    /// The socket of the registration, in the directory that the kubelet watches; none without a kubelet.
    pub registration: Option<PathBuf>,
}

/// Runs the driver until the shutdown.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<()> {
    let listener = listen(&config.socket)?;
    let registration = Registration::open(NAME, &config.socket, config.registration.as_deref())?;
    let serving = router(config.controller, config.node)
        .serve_with_incoming_shutdown(listener, shutdown.clone().cancelled_owned());
    let served = tokio::try_join!(
        async { serving.await.map_err(|error| failed(&error)) },
        registration.serve(shutdown.clone()),
    );
    for path in [Some(&config.socket), config.registration.as_ref()].into_iter().flatten() {
        remove_file(path)?;
    }
    served.map(drop)
}

/// Returns the channel to the controller's half inside this process, and the task that serves it until the shutdown.
pub fn in_process(cloud: Cloud, shutdown: CancellationToken) -> (Channel, impl Future<Output = Result<()>>) {
    let connections = InProcess::new();
    let router = router(Some(cloud), None);
    let serving = async move {
        let served = router.serve_with_incoming_shutdown(connections.incoming, shutdown.cancelled_owned());
        served.await.map_err(|error| failed(&error))
    };
    (connections.channel, serving)
}

fn router(controller: Option<Cloud>, node: Option<NodeHalf>) -> Router {
    let controller = controller.map(|cloud| ControllerHalf { cloud: Arc::new(cloud) });
    Server::builder()
        .concurrency_limit_per_connection(MOST_CALLS)
        .add_service(IdentityServer::new(Driver))
        .add_optional_service(controller.map(ControllerServer::new))
        .add_optional_service(node.map(NodeServer::new))
}
