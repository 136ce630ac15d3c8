//! The gate between the pod network and enforcement: a new pod waits here until its policies hold.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::Key;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// How long a pod may wait for its policies before its setup fails and is tried again.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that may wait for the task.
const QUEUE: usize = 256;

/// A pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    pub key: Key,
    /// Its uid; empty if it is not known.
    pub uid: String,
    pub addresses: Vec<IpAddr>,
}

pub(crate) enum Request {
    Attach { sandbox: String, pod: LocalPod, done: Option<oneshot::Sender<()>> },
    Detach { sandbox: String },
}

/// The pod network's end.
#[derive(Clone, Debug)]
pub struct Gate {
    requests: mpsc::Sender<Request>,
}

/// The end of the task that enforces.
pub struct Requests(pub(crate) mpsc::Receiver<Request>);

/// A gate and its other end.
pub fn gate() -> (Gate, Requests) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Gate { requests: sender }, Requests(receiver))
}

impl Gate {
    /// Returns when the policies that select the pod are in the kernel.
    pub(crate) async fn attach(&self, sandbox: &str, pod: LocalPod) -> Result<(), Error> {
        let (done, held) = oneshot::channel();
        let request = Request::Attach { sandbox: sandbox.to_owned(), pod, done: Some(done) };
        let passed = async {
            self.requests.send(request).await.map_err(|_| Error::PoliciesUnknown)?;
            held.await.map_err(|_| Error::PoliciesUnknown)
        };
        tokio::time::timeout(PATIENCE, passed).await.unwrap_or(Err(Error::PoliciesUnknown))
    }

    /// Tells of a pod that runs already.
    pub(crate) async fn adopt(&self, sandbox: &str, pod: LocalPod) {
        // Nobody listens only when the node is shutting down.
        let _ = self.requests.send(Request::Attach { sandbox: sandbox.to_owned(), pod, done: None }).await;
    }

    pub(crate) async fn detach(&self, sandbox: &str) {
        let _ = self.requests.send(Request::Detach { sandbox: sandbox.to_owned() }).await;
    }
}
