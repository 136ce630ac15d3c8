//! The resources that the API serves, custom resources included, for the controllers that work on all of them.

use corten_client::{Client, Error, Resource};
use corten_meta::Value;

/// A resource as discovery lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    pub resource: Resource,
    pub kind: String,
    verbs: Vec<String>,
}

impl Discovered {
    pub fn allows(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|allowed| allowed == verb))
    }

    pub fn api_version(&self) -> String {
        self.resource.group_version().to_string()
    }
}

/// Returns every resource of the preferred version of every group, without subresources. A group that fails is left out
/// and named in the second list: the namespace controller must know that it has not seen all content.
pub async fn resources(client: &Client) -> Result<(Vec<Discovered>, Vec<String>), Error> {
    let mut paths = vec![("/api/v1".to_owned(), "v1".to_owned())];
    let groups = read(client, "/apis").await?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        let group_version = group["preferredVersion"]["groupVersion"].as_str().unwrap_or_default();
        paths.push((format!("/apis/{group_version}"), group_version.to_owned()));
    }
    let (mut all, mut failing) = (Vec::new(), Vec::new());
    for (path, group_version) in paths {
        match read(client, &path).await {
            Ok(list) => all.extend(
                list["resources"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|entry| discovered(&group_version, entry)),
            ),
            Err(error) => failing.push(format!("{group_version}: {error}")),
        }
    }
    Ok((all, failing))
}

async fn read(client: &Client, path: &str) -> Result<Value, Error> {
    let bytes = client.get_raw(path).await?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Decode(format!("{path}: {error}")))
}

fn discovered(group_version: &str, entry: &Value) -> Option<Discovered> {
    let plural = entry["name"].as_str().filter(|name| !name.contains('/'))?;
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    let verbs = entry["verbs"].as_array()?.iter().filter_map(|verb| verb.as_str().map(str::to_owned)).collect();
    let namespaced = entry["namespaced"].as_bool().unwrap_or(false);
    Some(Discovered {
        resource: Resource::new(group, version, plural, namespaced),
        kind: entry["kind"].as_str()?.to_owned(),
        verbs,
    })
}
