//! The view of a pod for the rest of the kubelet: the kubelet's API reads logs and finds containers by it. Only the
//! pod's worker writes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;

use super::observed::Observed;
use super::spec;

/// One pod at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub pod: Arc<Pod>,
    pub status: PodStatus,
    pub observed: Observed,
}

/// The views of all pods of the node, by uid.
#[derive(Clone, Default)]
pub struct Views {
    by_uid: Arc<Mutex<HashMap<String, watch::Receiver<View>>>>,
}

impl Views {
    pub fn insert(&self, uid: &str, view: watch::Receiver<View>) {
        self.lock().insert(uid.to_owned(), view);
    }

    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    pub fn get(&self, uid: &str) -> Option<watch::Receiver<View>> {
        self.lock().get(uid).cloned()
    }

    pub fn all(&self) -> Vec<View> {
        self.lock().values().map(|view| view.borrow().clone()).collect()
    }

    /// Returns the pod with that name, and with that uid if one is given. Of two pods with the name, the one that does
    /// not terminate wins.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<watch::Receiver<View>> {
        let views = self.lock();
        let mut named: Vec<&watch::Receiver<View>> = views
            .iter()
            .filter(|(key, _)| uid.is_none_or(|uid| uid == key.as_str()))
            .map(|(_, view)| view)
            .filter(|view| {
                let view = view.borrow();
                spec::namespace(&view.pod) == namespace && spec::name(&view.pod) == name
            })
            .collect();
        named.sort_by_key(|view| view.borrow().pod.metadata.deletion_timestamp.is_some());
        named.first().map(|view| (*view).clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<View>>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
