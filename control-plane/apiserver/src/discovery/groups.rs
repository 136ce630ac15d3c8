//! Discovery: the groups, versions and resources, in the legacy documents and in the aggregated one.
//!
//! Everything is derived from the kind table. The documents have an ETag, by which clients that kept them learn that
//! nothing changed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use corten_api::Kind;
use corten_meta::{Status, Value};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::remote::RemoteVersion;
use crate::body::{Body, Reply};
use crate::context::Context;
use crate::negotiation::View;
use crate::registry::Resource;
use crate::response;
use crate::upstream_order::UpstreamOrder;
use crate::version_priority::priority;

/// The order in which upstream lists groups (its priorities); other groups follow by name.
const GROUPS: &[&str] = &[
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
];

/// One group version and its kinds.
struct Version {
    version: String,
    kinds: Vec<Arc<Kind>>,
    /// The server that serves it, if it is not this one.
    remote: Option<RemoteVersion>,
}

impl Version {
    /// Returns whether a registered kind has this version.
    fn is_own(&self) -> bool {
        self.kinds.iter().any(|kind| kind.serving().is_registered)
    }
}

/// All discovery documents.
pub struct Discovery {
    documents: BTreeMap<String, Value>,
    aggregated: BTreeMap<&'static str, Tagged>,
}

struct Tagged {
    value: Value,
    etag: String,
}

impl Discovery {
    /// Makes the documents of the resources served here, at this address, and of the group versions that other servers
    /// serve. The objects of the `terminating` CustomResourceDefinitions are being deleted. The `announced` group
    /// versions of CustomResourceDefinitions are listed without resources until they are served.
    pub fn new(
        address: &str,
        resources: &[Arc<Resource>],
        remote: &[RemoteVersion],
        terminating: &HashSet<String>,
        announced: &BTreeSet<(String, String)>,
    ) -> Discovery {
        let (groups, ranks) = group(resources, remote, terminating, announced);
        let mut documents = BTreeMap::new();
        let server = json!([{ "clientCIDR": "0.0.0.0/0", "serverAddress": address }]);
        documents.insert(
            "/api".to_owned(),
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": server }),
        );
        // Groups of one rank are in the order of their first APIService's names.
        let mut named: Vec<_> = groups.iter().zip(ranks).filter(|((name, _), _)| !name.is_empty()).collect();
        named.sort_by_cached_key(|((name, versions), rank)| {
            (*rank, versions.iter().map(|v| format!("{}.{name}", v.version)).min())
        });
        let list: Vec<Value> = named.iter().map(|((name, versions), _)| api_group(name, versions)).collect();
        documents.insert("/apis".to_owned(), json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": list }));
        for (name, versions) in &groups {
            if !name.is_empty() {
                let mut document = api_group(name, versions);
                document["kind"] = "APIGroup".into();
                document["apiVersion"] = "v1".into();
                documents.insert(format!("/apis/{name}"), document);
            }
            let is_own = versions.iter().any(Version::is_own);
            for version in versions {
                let path = if name.is_empty() {
                    format!("/api/{}", version.version)
                } else {
                    format!("/apis/{name}/{}", version.version)
                };
                // Another server serves its own documents; and custom resources in a built-in group are not reachable.
                if !version.kinds.is_empty() && (version.is_own() || !is_own) {
                    documents.insert(path, resource_list(name, version));
                }
            }
        }
        let aggregated = BTreeMap::from([
            ("/api", tagged(aggregate(groups.iter().filter(|(name, _)| name.is_empty())))),
            ("/apis", tagged(aggregate(groups.iter().filter(|(name, _)| !name.is_empty())))),
        ]);
        Discovery { documents, aggregated }
    }

    /// Answers a discovery path, if it is one.
    pub fn serve(&self, context: &Context) -> Option<Result<Reply, Status>> {
        let path = context.info.path.trim_end_matches('/');
        if context.accept.view == View::AggregatedDiscovery
            && let Some(tagged) = self.aggregated.get(path)
        {
            return Some(Ok(serve_aggregated(context, tagged)));
        }
        let document = self.documents.get(path)?;
        if let Some(status) = &context.not_acceptable {
            return Some(Err(status.clone()));
        }
        Some(Ok(response::value(context.accept, StatusCode::OK, &UpstreamOrder::document(document))))
    }

    /// Returns every path that is served, for the index.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.documents.keys().map(String::as_str)
    }
}

fn serve_aggregated(context: &Context, tagged: &Tagged) -> Reply {
    let known = context.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok());
    let mut reply = if known == Some(tagged.etag.as_str()) {
        let mut reply = Reply::new(Body::empty());
        *reply.status_mut() = StatusCode::NOT_MODIFIED;
        reply
    } else {
        response::value(context.accept, StatusCode::OK, &UpstreamOrder::document(&tagged.value))
    };
    let content_type = format!("{};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", context.accept.content_type());
    let headers = reply.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(&content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(etag) = HeaderValue::from_str(&tagged.etag) {
        headers.insert(header::ETAG, etag);
    }
    reply
}

fn tagged(value: Value) -> Tagged {
    Tagged { etag: format!("\"{}\"", hash(value.to_string().as_bytes())), value }
}

/// Returns the SHA-512 of a document, in upper case hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA512, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The rank of a group in discovery.
type Rank = (u8, i64);

/// Returns the groups in order, each with its versions, the preferred one first; and the rank of each.
fn group(
    resources: &[Arc<Resource>],
    remote: &[RemoteVersion],
    terminating: &HashSet<String>,
    announced: &BTreeSet<(String, String)>,
) -> (Vec<(String, Vec<Version>)>, Vec<Rank>) {
    let mut groups: Vec<(String, Vec<Version>)> = Vec::new();
    // A version that is only stored has no verbs, and is not shown.
    let served = resources.iter().filter(|resource| !resource.is_unresolved && !resource.kind.verbs.is_empty());
    for kind in served.map(|resource| &resource.kind) {
        let kind = &shown(kind, terminating);
        let at = groups.iter().position(|(name, _)| *name == kind.group).unwrap_or_else(|| {
            groups.push((kind.group.clone(), Vec::new()));
            groups.len() - 1
        });
        let versions = &mut groups[at].1;
        match versions.iter_mut().find(|v| v.version == kind.version) {
            Some(version) if !kind.serving().is_registered && version.is_own() => {}
            Some(version) => version.kinds.push(Arc::clone(kind)),
            None => {
                versions.push(Version { version: kind.version.clone(), kinds: vec![Arc::clone(kind)], remote: None })
            }
        }
    }
    for (name, version) in announced {
        let at = groups.iter().position(|(group, _)| group == name).unwrap_or_else(|| {
            groups.push((name.clone(), Vec::new()));
            groups.len() - 1
        });
        if groups[at].1.iter().all(|known| known.version != *version) {
            groups[at].1.push(Version { version: version.clone(), kinds: Vec::new(), remote: None });
        }
    }
    let custom: Vec<String> = groups.iter().map(|(name, _)| name.clone()).collect();
    for known in remote {
        let name = known.group.clone();
        let version = known.version.clone();
        let at = groups.iter().position(|(group, _)| *group == name).unwrap_or_else(|| {
            groups.push((name, Vec::new()));
            groups.len() - 1
        });
        groups[at].1.retain(|v| v.version != version);
        groups[at].1.push(Version { version, kinds: Vec::new(), remote: Some(known.clone()) });
    }
    for (_, versions) in &mut groups {
        let of = |v: &Version| v.remote.as_ref().map_or(0, |known| known.version_priority);
        versions.sort_by_key(|v| std::cmp::Reverse((of(v), priority(&v.version))));
        for version in versions {
            version.kinds.sort_unstable_by(|a, b| a.plural.cmp(&b.plural));
        }
    }
    // Built-in groups first, then those of other servers by their APIServices' priority, then custom resources.
    let rank = |(name, versions): &(String, Vec<Version>)| -> Rank {
        let requested = versions.iter().filter_map(|v| v.remote.as_ref().map(|known| known.group_priority)).max();
        let of_others = if custom.contains(name) { 1000 } else { requested.unwrap_or(1000) };
        match GROUPS.iter().position(|g| g == name) {
            Some(at) => (0, at as i64),
            None => (1, -of_others),
        }
    };
    groups.sort_by_key(rank);
    let ranks = groups.iter().map(rank).collect();
    (groups, ranks)
}

/// Returns a kind as discovery shows it: while its objects are being deleted, it has no verbs of writes.
fn shown(kind: &Arc<Kind>, terminating: &HashSet<String>) -> Arc<Kind> {
    let is_terminating = || terminating.contains(&format!("{}.{}", kind.plural, kind.group));
    if terminating.is_empty() || !kind.is_custom() || !is_terminating() {
        return Arc::clone(kind);
    }
    let kind = Kind::clone(kind);
    Arc::new(kind.verbs(&["delete", "deletecollection", "get", "list", "watch"]))
}

fn api_group(name: &str, versions: &[Version]) -> Value {
    let entry = |v: &Version| json!({ "groupVersion": format!("{name}/{}", v.version), "version": v.version });
    let all: Vec<Value> = versions.iter().map(entry).collect();
    json!({ "name": name, "versions": all, "preferredVersion": all.first() })
}

fn resource_list(group: &str, version: &Version) -> Value {
    let mut resources = Vec::new();
    for kind in &version.kinds {
        let mut entry = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": kind.verbs,
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            entry["categories"] = json!(kind.categories);
        }
        if kind.verbs.contains(&"list") && kind.storage != corten_api::Storage::Virtual {
            entry["storageVersionHash"] = storage_version_hash(kind).into();
        }
        resources.push(entry);
        for sub in &kind.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.namespaced,
                "kind": sub.kind, "verbs": sub.verbs,
            });
            if !sub.version.is_empty() {
                entry["group"] = sub.group.into();
                entry["version"] = sub.version.into();
            }
            resources.push(entry);
        }
    }
    let name = if group.is_empty() { version.version.clone() } else { format!("{group}/{}", version.version) };
    let mut list = json!({ "kind": "APIResourceList", "groupVersion": name, "resources": resources });
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}

fn storage_version_hash(kind: &Kind) -> String {
    use base64::Engine;
    // Upstream still stores these in the version that they had before.
    const FIRST: [&str; 3] = ["CustomResourceDefinition", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"];
    let (group, version) = match &kind.storage {
        corten_api::Storage::Stored { hub: Some((group, version)), .. } => (group.as_str(), version.as_str()),
        _ if FIRST.contains(&kind.kind.as_str()) && !kind.is_custom() => (kind.group.as_str(), "v1beta1"),
        _ => (kind.group.as_str(), kind.version.as_str()),
    };
    let text =
        if group.is_empty() { format!("/{version}/{}", kind.kind) } else { format!("{group}/{version}/{}", kind.kind) };
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

fn aggregate<'a>(groups: impl Iterator<Item = &'a (String, Vec<Version>)>) -> Value {
    let is_served = |version: &&Version| version.remote.is_some() || !version.kinds.is_empty();
    let items: Vec<Value> = groups
        .filter(|(_, versions)| versions.iter().any(|version| is_served(&version)))
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .filter(is_served)
                .map(|v| {
                    let (resources, freshness) = match &v.remote {
                        None => (v.kinds.iter().map(|kind| aggregated_resource(kind)).collect(), "Current"),
                        Some(known) if known.available => (known.documents.resources.clone(), "Current"),
                        Some(known) => (known.documents.resources.clone(), "Stale"),
                    };
                    json!({ "version": v.version, "resources": resources, "freshness": freshness })
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({ "name": name }) };
            json!({ "metadata": metadata, "versions": versions })
        })
        .collect();
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items })
}

fn aggregated_resource(kind: &Kind) -> Value {
    let response_kind =
        |group: &str, version: &str, name: &str| json!({ "group": group, "version": version, "kind": name });
    let (own_group, own_version) = match kind.serving().repeats_version {
        true => (kind.group.as_str(), kind.version.as_str()),
        false => ("", ""),
    };
    let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
    let mut entry = json!({
        "resource": kind.plural, "responseKind": response_kind(own_group, own_version, &kind.kind), "scope": scope,
        "singularResource": kind.singular, "verbs": kind.verbs,
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|sub| {
            let (group, version) =
                if sub.version.is_empty() { (own_group, own_version) } else { (sub.group, sub.version) };
            json!({ "subresource": sub.name, "responseKind": response_kind(group, version, &sub.kind), "verbs": sub.verbs })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = json!(subresources);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_document_has_a_form_in_protobuf() {
        let discovery = Discovery::new("127.0.0.1:6443", &[], &[], &HashSet::new(), &BTreeSet::new());
        let version = Version { version: "v1".to_owned(), kinds: Vec::new(), remote: None };
        let group = ("apps".to_owned(), vec![version]);
        let documents = [resource_list("apps", &group.1[0]), aggregate(std::iter::once(&group))];
        for document in discovery.documents.values().chain(&documents) {
            assert!(corten_protobuf::encode_any(document).is_some(), "{document}");
        }
    }

    #[test]
    fn custom_groups_are_listed_by_the_names_of_their_services() {
        let announced = [("b.example.com", "v1"), ("a.example.com", "v2"), ("c.example.com", "v1alpha1")];
        let announced = announced.map(|(group, version)| (group.to_owned(), version.to_owned())).into();
        let discovery = Discovery::new("127.0.0.1:6443", &[], &[], &HashSet::new(), &announced);
        let groups = discovery.documents["/apis"]["groups"].as_array().cloned().unwrap_or_default();
        let names: Vec<&str> = groups.iter().filter_map(|group| group["name"].as_str()).collect();
        assert_eq!(names, ["b.example.com", "c.example.com", "a.example.com"]);
    }

    #[test]
    fn versions_are_ranked() {
        let mut versions = ["foo1", "v1beta1", "v2", "v1", "v11alpha2", "v10", "v2beta1", "foo10", "v1alpha1"];
        versions.sort_by_key(|v| std::cmp::Reverse(priority(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta1", "v11alpha2", "v1alpha1", "foo1", "foo10"]);
    }
}
