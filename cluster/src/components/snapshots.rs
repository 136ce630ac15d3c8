//! The rights on volume snapshots, backups and replicas: of their controllers, and of users by the roles admin, edit and view.

use corten_controllers::NodeComponent;
use corten_meta::Value;
use corten_snapshots::{BACKUP_GROUP, BACKUP_NAMESPACE};
use serde_json::json;

const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUP_SNAPSHOTS: &str = "groupsnapshot.storage.k8s.io";
/// The role of the snapshot controller.
pub const ROLE: &str = "corten:snapshot-controller";
/// The role of the controller of volume backups, and the one by which nodes read the Secrets of repositories.
pub const BACKUP_ROLE: &str = "corten:volume-backups";
/// The role of the controller of volumes with copies.
pub const REPLICA_ROLE: &str = "corten:volume-replicas";

/// Returns the rules of the snapshot controller. It installs the kinds too.
pub fn rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    let own = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let status = json!(["update", "patch"]);
    json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
         "verbs": ["get", "create", "patch"]},
        {"apiGroups": [""], "resources": ["persistentvolumes", "nodes"], "verbs": read},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": [SNAPSHOTS], "resources": ["volumesnapshotclasses"], "verbs": read},
        {"apiGroups": [SNAPSHOTS], "resources": ["volumesnapshots", "volumesnapshotcontents"], "verbs": own},
        {"apiGroups": [SNAPSHOTS], "resources": ["volumesnapshots/status", "volumesnapshotcontents/status"],
         "verbs": status},
        {"apiGroups": [GROUP_SNAPSHOTS], "resources": ["volumegroupsnapshotclasses"], "verbs": read},
        {"apiGroups": [GROUP_SNAPSHOTS], "resources": ["volumegroupsnapshots", "volumegroupsnapshotcontents"],
         "verbs": own},
        {"apiGroups": [GROUP_SNAPSHOTS],
         "resources": ["volumegroupsnapshots/status", "volumegroupsnapshotcontents/status"], "verbs": status},
    ])
}

/// Returns the rules of the controller of volume backups. It installs the kinds too.
pub fn backup_rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    let kinds = ["volumebackups", "volumebackuprepositories", "volumebackupschedules"];
    json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
         "verbs": ["get", "create", "patch"]},
        {"apiGroups": [""], "resources": ["persistentvolumes", "persistentvolumeclaims", "nodes"], "verbs": read},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": [BACKUP_GROUP], "resources": kinds, "verbs": read},
        // It installs the kind, and waits until it is served.
        {"apiGroups": [BACKUP_GROUP], "resources": ["volumereplicas"], "verbs": ["list"]},
        {"apiGroups": [BACKUP_GROUP], "resources": ["volumebackups"], "verbs": ["create", "patch", "delete"]},
        {"apiGroups": [BACKUP_GROUP], "resources": kinds.map(|kind| format!("{kind}/status")), "verbs": ["patch"]},
    ])
}

/// Returns the rules of the controller of volumes with copies. It labels Nodes, by which a volume follows its primary.
pub fn replica_rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    json!([
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": read},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": read},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
        {"apiGroups": [BACKUP_GROUP], "resources": ["volumereplicas"],
         "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [BACKUP_GROUP], "resources": ["volumereplicas/status"], "verbs": ["patch"]},
    ])
}

/// Returns the namespace of the Secrets of repositories, and the Role by which nodes read them.
pub fn backup_secrets() -> [Value; 3] {
    let group = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NodeComponent::Storage.group(),
    });
    let metadata = json!({"name": BACKUP_ROLE, "namespace": BACKUP_NAMESPACE});
    [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BACKUP_NAMESPACE}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": BACKUP_ROLE},
            "subjects": [group],
        }),
    ]
}

/// Returns the ClusterRoles that become parts of admin, edit and view: users snapshot and back up the claims of their
/// namespaces.
pub fn aggregated_roles() -> Vec<Value> {
    let role = |name: &str, to: &[&str], verbs: Value| {
        let label = |role: &&str| (format!("rbac.authorization.k8s.io/aggregate-to-{role}"), json!("true"));
        let labels: serde_json::Map<String, Value> = to.iter().map(label).collect();
        let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels},
            "rules": [
                rule(SNAPSHOTS, "volumesnapshots"),
                rule(GROUP_SNAPSHOTS, "volumegroupsnapshots"),
                rule(BACKUP_GROUP, "volumebackups"),
                rule(BACKUP_GROUP, "volumebackupschedules"),
            ],
        })
    };
    let write = json!(["create", "delete", "deletecollection", "patch", "update"]);
    vec![
        role("corten:snapshots-edit", &["admin", "edit"], write),
        role("corten:snapshots-view", &["admin", "edit", "view"], json!(["get", "list", "watch"])),
    ]
}
