//! The role that lets every client read the pages beside the API, also before it has signed in. An administrator may
//! delete its binding.

use serde_json::json;

use super::Wanted;
use crate::site::Site;

const GROUP: &str = "rbac.authorization.k8s.io";
const NAME: &str = "corten:pages";

/// Returns the role and its binding.
pub fn wanted(site: &dyn Site) -> Vec<Wanted> {
    let prefix = site.prefix();
    let paths = [prefix.trim_end_matches('/').to_owned(), format!("{prefix}*")];
    let role = json!({
        "metadata": {"name": NAME},
        "rules": [{"nonResourceURLs": paths, "verbs": ["get", "head"]}],
    });
    let group = |name: &str| json!({"apiGroup": GROUP, "kind": "Group", "name": name});
    let binding = json!({
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME},
        "subjects": [group("system:authenticated"), group("system:unauthenticated")],
    });
    vec![Wanted::new(GROUP, "v1", "clusterroles", role), Wanted::new(GROUP, "v1", "clusterrolebindings", binding)]
}
