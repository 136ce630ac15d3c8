//! Changes in the container runtime, by pod: from its events where it has them, and by a relist every second where it
//! has not (runtimes before CRI's events). It only names the pod; workers observe for themselves.

use std::collections::HashMap;
use std::time::Duration;

use corten_cri::v1 as cri;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cri::Runtime;
use crate::error::{Error, Result};
use crate::pod::labels;

const RECONNECT: Duration = Duration::from_millis(500);
/// The interval at which a runtime without events is listed: upstream's relist period.
const RELIST_PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChange {
    /// A container of this pod changed.
    Pod(String),
    /// Events may have been lost: every pod is reconciled.
    All,
}

/// Sends changes until shutdown.
pub async fn listen(runtime: Runtime, changes: mpsc::Sender<RuntimeChange>, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = forever(&runtime, &changes) => {}
    }
}

async fn forever(runtime: &Runtime, changes: &mpsc::Sender<RuntimeChange>) {
    loop {
        match runtime.events().await {
            Ok(events) => {
                if forward_events(events, changes).await.is_none() {
                    return;
                }
            }
            Err(Error::Runtime(status)) if status.code() == tonic::Code::Unimplemented => {
                info!("the container runtime has no events: it is listed every second");
                return relist(runtime, changes).await;
            }
            Err(_) => {}
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

/// Forwards events. After every (re)connection every pod is reconciled, so that no change in between is missed. `None`
/// when the receiver is dropped.
async fn forward_events(
    mut events: tonic::Streaming<cri::ContainerEventResponse>,
    changes: &mpsc::Sender<RuntimeChange>,
) -> Option<()> {
    changes.send(RuntimeChange::All).await.ok()?;
    while let Ok(Some(event)) = events.message().await {
        let uid = event.pod_sandbox_status.and_then(|status| status.metadata).map(|metadata| metadata.uid);
        changes.send(uid.map_or(RuntimeChange::All, RuntimeChange::Pod)).await.ok()?;
    }
    Some(())
}

/// The state of every sandbox and container, with the pod it belongs to.
type States = HashMap<String, (String, i32)>;

async fn relist(runtime: &Runtime, changes: &mpsc::Sender<RuntimeChange>) {
    let mut known = States::new();
    loop {
        // A runtime that does not answer now has no changes.
        if let Ok(states) = states(runtime).await {
            for uid in changed(&known, &states) {
                if changes.send(RuntimeChange::Pod(uid)).await.is_err() {
                    return;
                }
            }
            known = states;
        }
        tokio::time::sleep(RELIST_PERIOD).await;
    }
}

async fn states(runtime: &Runtime) -> Result<States> {
    let (sandboxes, containers) = futures::try_join!(runtime.list_sandboxes(None), runtime.list_containers(None))?;
    let pod = |labels: &HashMap<String, String>| labels.get(labels::POD_UID).cloned();
    let sandboxes = sandboxes.into_iter().filter_map(|one| Some((one.id, (pod(&one.labels)?, one.state))));
    let containers = containers.into_iter().filter_map(|one| Some((one.id, (pod(&one.labels)?, one.state))));
    Ok(sandboxes.chain(containers).collect())
}

/// Returns the pods with a created, removed or changed container; each once.
fn changed(before: &States, after: &States) -> Vec<String> {
    let went = before.iter().filter(|(id, _)| !after.contains_key(*id));
    let came = after.iter().filter(|(id, state)| before.get(*id) != Some(state));
    let mut pods: Vec<String> = went.chain(came).map(|(_, (pod, _))| pod.clone()).collect();
    pods.sort_unstable();
    pods.dedup();
    pods
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(list: &[(&str, &str, i32)]) -> States {
        list.iter().map(|(id, pod, state)| ((*id).to_owned(), ((*pod).to_owned(), *state))).collect()
    }

    #[test]
    fn only_changed_pods_are_woken() {
        let before = states(&[("s1", "a", 0), ("c1", "a", 1), ("c2", "b", 1), ("c3", "c", 1)]);
        let after = states(&[("s1", "a", 0), ("c1", "a", 2), ("c2", "b", 1), ("c4", "d", 0)]);
        assert_eq!(changed(&before, &after), ["a", "c", "d"]);
        assert!(changed(&after, &after).is_empty());
    }
}
