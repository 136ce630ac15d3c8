//! The desired replicas of a pod's controller, which percentages of a budget refer to.

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use corten_api::k8s_openapi::api::core::v1::ReplicationController;
use corten_meta::{Key, Owner};

use crate::runtime::{ScaleQuestion, View};
use crate::workload::owner::controller_of;

pub enum Scale {
    /// The controller that decides, and its desired replicas.
    Of { uid: String, replicas: i32 },
    /// The controller does not exist, or another object has its name.
    Unknown,
    /// The kind is in no cache, and its scale has not been read yet.
    Unasked(ScaleQuestion),
}

pub fn scale_of(view: &dyn View, namespace: &str, owner: &Owner) -> Result<Scale, String> {
    let key = Key::new(namespace, owner.name.clone());
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    Ok(match (group, owner.kind.as_str()) {
        ("apps", "ReplicaSet") => of_replica_set(view, &key, &owner.uid),
        ("apps", "Deployment") => {
            found::<Deployment>(view, &key, &owner.uid, |d| d.spec.as_ref().and_then(|spec| spec.replicas))
        }
        ("apps", "StatefulSet") => {
            found::<StatefulSet>(view, &key, &owner.uid, |s| s.spec.as_ref().and_then(|spec| spec.replicas))
        }
        ("", "ReplicationController") => {
            found::<ReplicationController>(view, &key, &owner.uid, |r| r.spec.as_ref().and_then(|spec| spec.replicas))
        }
        _ => {
            let question = ScaleQuestion { api_version: owner.api_version.clone(), kind: owner.kind.clone(), key };
            match view.scale(&question) {
                None => Scale::Unasked(question),
                Some(Ok(Some((uid, replicas)))) if uid == owner.uid => Scale::Of { uid, replicas },
                Some(Ok(_)) => Scale::Unknown,
                Some(Err(error)) => return Err(error),
            }
        }
    })
}

/// Returns the scale of the Deployment for a ReplicaSet of a Deployment.
fn of_replica_set(view: &dyn View, key: &Key, uid: &str) -> Scale {
    let Some(set) = view.typed::<ReplicaSet>(key).filter(|set| set.metadata.uid.as_deref() == Some(uid)) else {
        return Scale::Unknown;
    };
    match controller_of(&set.metadata).filter(|owner| owner.kind == Deployment::KIND) {
        Some(owner) => {
            let above = Key::new(key.namespace.clone(), owner.name.clone());
            found::<Deployment>(view, &above, &owner.uid, |d| d.spec.as_ref().and_then(|spec| spec.replicas))
        }
        None => Scale::Of { uid: uid.to_owned(), replicas: set.spec.and_then(|spec| spec.replicas).unwrap_or(1) },
    }
}

fn found<K: Typed>(view: &dyn View, key: &Key, uid: &str, replicas: fn(&K) -> Option<i32>) -> Scale {
    match view.typed::<K>(key).filter(|found| found.meta().uid.as_deref() == Some(uid)) {
        Some(found) => Scale::Of { uid: uid.to_owned(), replicas: replicas(&found).unwrap_or(1) },
        None => Scale::Unknown,
    }
}
