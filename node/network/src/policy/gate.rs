//! The gate between the pod network and enforcement: a new pod waits here until its policies are in the kernel.
//!
//! It never opens by itself. A pod whose policies are not in the kernel in time fails its setup, and the kubelet tries
//! again.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::{Key, Labels};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// The time that a pod may wait for its policies before its setup fails and is retried.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of requests that may wait for the task.
const QUEUE: usize = 256;

/// A pod of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    pub key: Key,
    /// Its uid; empty if unknown.
    pub uid: String,
    /// The kubelet's labels of the pod, used where the API has no object of this uid.
    pub labels: Labels,
    /// Whether it may run without an object of the API: then the kubelet's labels are enough.
    pub static_pod: bool,
    pub addresses: Vec<IpAddr>,
}

/// A pod's sandbox on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub pod: LocalPod,
}

pub(crate) enum Request {
    /// The sandboxes of an earlier run: always the first request.
    Adopt(Vec<Sandbox>),
    Attach {
        sandbox: Sandbox,
        done: oneshot::Sender<()>,
    },
    Detach {
        sandbox: String,
    },
}

/// The pod network's end.
#[derive(Clone, Debug)]
pub struct Gate {
    requests: mpsc::Sender<Request>,
}

/// The end of the enforcing task.
pub struct Requests(pub(crate) mpsc::Receiver<Request>);

/// Makes a gate and its other end.
pub fn gate() -> (Gate, Requests) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Gate { requests: sender }, Requests(receiver))
}

impl Gate {
    /// Waits until the policies that select the pod are in the kernel.
    pub(crate) async fn attach(&self, sandbox: Sandbox) -> Result<(), Error> {
        self.attach_within(TIMEOUT, sandbox).await
    }

    async fn attach_within(&self, timeout: Duration, sandbox: Sandbox) -> Result<(), Error> {
        let (done, held) = oneshot::channel();
        let passed = async {
            self.requests.send(Request::Attach { sandbox, done }).await.map_err(|_| Error::PoliciesUnknown)?;
            held.await.map_err(|_| Error::PoliciesUnknown)
        };
        tokio::time::timeout(timeout, passed).await.unwrap_or(Err(Error::PoliciesUnknown))
    }

    /// Reports every running sandbox. Enforcement begins with them: until then the rules of the earlier run stay.
    pub(crate) async fn adopt(&self, sandboxes: Vec<Sandbox>) {
        // The other end is gone only when the node is shutting down.
        let _ = self.requests.send(Request::Adopt(sandboxes)).await;
    }

    pub(crate) async fn detach(&self, sandbox: &str) {
        let _ = self.requests.send(Request::Detach { sandbox: sandbox.to_owned() }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox() -> Sandbox {
        let pod = LocalPod {
            key: Key::new("shop", "web"),
            uid: "uid".to_owned(),
            labels: Labels::default(),
            static_pod: false,
            addresses: Vec::new(),
        };
        Sandbox { id: "a".to_owned(), pod }
    }

    #[tokio::test]
    async fn a_gate_that_is_not_opened_stays_closed() {
        let (gate, mut requests) = gate();
        let outcome = gate.attach_within(Duration::ZERO, sandbox()).await;
        assert!(matches!(outcome, Err(Error::PoliciesUnknown)), "{outcome:?}");
        let Some(Request::Attach { done, .. }) = requests.0.recv().await else { panic!("no request") };
        assert!(done.is_closed());
        drop(requests);
        assert!(matches!(gate.attach(sandbox()).await, Err(Error::PoliciesUnknown)));
    }
}
