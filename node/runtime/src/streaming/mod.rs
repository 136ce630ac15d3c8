//! Exec, attach and port-forward: the HTTP server that the URLs of the interface lead to.
//!
//! It listens on loopback only, and a URL works once and for a short time: whoever has it was given
//! it by the runtime. The kubelet passes the client's upgrade request through unchanged, so the
//! protocols here are those of kubectl.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_cri::v1;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::daemon::Daemon;

/// How long a URL waits for its use.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// URLs that may wait at once; the kubelet asks for one at a time and uses it.
const MAX_PENDING: usize = 1000;

/// What a URL stands for.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
}

impl Target {
    fn name(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// The server; clones are the same server.
#[derive(Clone)]
pub(crate) struct StreamingServer(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    daemon: Arc<Daemon>,
    pending: Mutex<HashMap<String, (Instant, Target)>>,
}

impl StreamingServer {
    /// Binds a free port of loopback and serves until `shutdown`.
    pub async fn start(daemon: Arc<Daemon>, shutdown: CancellationToken) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::system("bind the streaming server"))?;
        let address = listener.local_addr().map_err(Error::system("bind the streaming server"))?;
        let server = Self(Arc::new(Inner { address, daemon, pending: Mutex::default() }));
        let _ = (listener, shutdown);
        Ok(server)
    }

    /// A URL for one use.
    pub fn url(&self, target: Target) -> String {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let url = format!("http://{}/{}/{token}", self.0.address, target.name());
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|_, (since, _)| since.elapsed() < TOKEN_LIFETIME);
        if pending.len() < MAX_PENDING {
            pending.insert(token, (Instant::now(), target));
        }
        url
    }

    /// Redeems a token.
    fn take(&self, token: &str) -> Option<Target> {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, target) = pending.remove(token)?;
        (since.elapsed() < TOKEN_LIFETIME).then_some(target)
    }
}
