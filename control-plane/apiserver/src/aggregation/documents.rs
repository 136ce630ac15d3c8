//! The documents of a remote server: its resources and their schemas, which this server merges into its own.

use std::sync::Arc;

use corten_meta::Value;
use serde_json::{Map, json};

use super::Remote;
use crate::discovery::RemoteDocuments;
use crate::outbound::Outbound;

/// Fetches the documents; returns `last` itself if they are unchanged.
pub async fn fetch(outbound: &Outbound, remote: &Remote, last: Arc<RemoteDocuments>) -> Arc<RemoteDocuments> {
    let json = async |path: &str| {
        let fetched = remote.fetch(outbound, path).await;
        let parsed = fetched.and_then(|(_, body)| serde_json::from_slice::<Value>(&body).map_err(|e| e.to_string()));
        parsed.inspect_err(|e| tracing::debug!(path, error = e, "an aggregated API server did not tell")).ok()
    };
    let path = remote.path();
    let list = json(&path).await;
    let v3 = json(&format!("/openapi/v3{path}")).await;
    let v2 = json("/openapi/v2").await;
    let documents = RemoteDocuments {
        resources: list.map(|list| resources(&list, &remote.group, &remote.version)).unwrap_or_default(),
        openapi_v3: v3.filter(|v| v.get("openapi").is_some()),
        openapi_v2: v2.map(|document| part_of(&document, &path)),
    };
    if documents == *last { last } else { Arc::new(documents) }
}

/// Converts the resources of an APIResourceList to aggregated discovery.
pub(crate) fn resources(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let all = list["resources"].as_array().cloned().unwrap_or_default();
    let string = |resource: &Value, key: &str| resource[key].as_str().unwrap_or_default().to_owned();
    let response_kind = |resource: &Value| {
        let or = |own: String, default: &str| if own.is_empty() { default.to_owned() } else { own };
        json!({ "group": or(string(resource, "group"), group), "version": or(string(resource, "version"), version),
                "kind": string(resource, "kind") })
    };
    let of = |name: &str| {
        let prefix = format!("{name}/");
        let below = all.iter().filter_map(|sub| Some((string(sub, "name").strip_prefix(&prefix)?.to_owned(), sub)));
        below
            .map(
                |(name, sub)| json!({ "subresource": name, "responseKind": response_kind(sub), "verbs": sub["verbs"] }),
            )
            .collect::<Vec<_>>()
    };
    let top = all.iter().filter(|resource| !string(resource, "name").contains('/'));
    top.map(|resource| {
        let scope = if resource["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let mut entry = json!({
            "resource": resource["name"], "responseKind": response_kind(resource), "scope": scope,
            "singularResource": string(resource, "singularName"), "verbs": resource["verbs"],
        });
        for key in ["shortNames", "categories"] {
            if resource[key].is_array() {
                entry[key] = resource[key].clone();
            }
        }
        let subresources = of(&string(resource, "name"));
        if !subresources.is_empty() {
            entry["subresources"] = json!(subresources);
        }
        entry
    })
    .collect()
}

/// Returns the paths below a prefix, and the definitions.
pub(crate) fn part_of(document: &Value, prefix: &str) -> Value {
    let empty = Map::new();
    let paths = document["paths"].as_object().unwrap_or(&empty);
    let group = prefix.rsplit_once('/').map_or(prefix, |(group, _)| group);
    let is_own = |path: &str| {
        [prefix, group].iter().any(|own| path.trim_end_matches('/') == *own) || path.starts_with(&format!("{prefix}/"))
    };
    let own: Map<String, Value> =
        paths.iter().filter(|(path, _)| is_own(path)).map(|(path, item)| (path.clone(), item.clone())).collect();
    json!({ "paths": own, "definitions": document["definitions"] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_resources_becomes_a_tree() {
        let list = json!({ "resources": [
            { "name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"] },
            { "name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["update"] },
            { "name": "flunders/scale", "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"] },
        ] });
        let tree = resources(&list, "wardle.example.com", "v1");
        assert_eq!(tree.len(), 1);
        assert_eq!(tree[0]["subresources"][1]["responseKind"]["group"], "autoscaling");
        assert_eq!(
            tree[0]["responseKind"],
            json!({ "group": "wardle.example.com", "version": "v1", "kind": "Flunder" })
        );
    }

    #[test]
    fn only_its_own_paths_are_taken() {
        let document = json!({ "paths": { "/apis/g/": 1, "/apis/g/v1/": 2, "/apis/g/v1/things": 3, "/apis/g/v2/things": 4,
                                          "/healthz": 5 }, "definitions": { "d": {} } });
        let part = part_of(&document, "/apis/g/v1");
        assert_eq!(part["paths"], json!({ "/apis/g/": 1, "/apis/g/v1/": 2, "/apis/g/v1/things": 3 }));
        assert_eq!(part["definitions"], json!({ "d": {} }));
    }
}
