//! The scale of an object of any kind, read from the server: custom resources are in no cache.
//!
//! A plan that needs a scale contains [`Action::AskScale`](super::Action) and nothing else; the worker reads the scale
//! and lets the controller decide again. Nothing is cached: the answer is as fresh as the decision.

use corten_client::{Client, Error, Resource};
use corten_meta::{Key, Value};

/// A reference to the object whose scale is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScaleQuestion {
    pub api_version: String,
    pub kind: String,
    pub key: Key,
}

/// The uid and the desired replicas of the object; none if it does not exist; or the error message.
pub type ScaleAnswer = Result<Option<(String, i32)>, String>;

/// Finds the resource by discovery and reads its scale.
pub async fn ask(client: &Client, question: &ScaleQuestion) -> ScaleAnswer {
    let (group, version) = question.api_version.rsplit_once('/').unwrap_or(("", &question.api_version));
    let unknown = || format!("no matches for kind {:?} in version {:?}", question.kind, question.api_version);
    let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{}", question.api_version) };
    let list = match read(client, &path).await {
        Ok(list) => list,
        Err(error) if error.is_not_found() => return Err(unknown()),
        Err(error) => return Err(error.to_string()),
    };
    let entries = || list["resources"].as_array().into_iter().flatten();
    let of_kind = |entry: &&Value| entry["kind"] == question.kind.as_str();
    let plain = |entry: &&Value| entry["name"].as_str().is_some_and(|name| !name.contains('/'));
    let entry = entries().filter(plain).find(of_kind).ok_or_else(unknown)?;
    let plural = entry["name"].as_str().unwrap_or_default();
    if !entries().any(|entry| entry["name"] == format!("{plural}/scale") && entry["kind"] == "Scale") {
        let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        return Err(format!("{resource} does not implement the scale subresource"));
    }
    let resource = Resource::new(group, version, plural, entry["namespaced"] == true);
    match read(client, &resource.object_path(&question.key.namespace, &question.key.name, Some("scale"))).await {
        Ok(scale) => {
            let replicas = scale["spec"]["replicas"].as_i64().and_then(|count| i32::try_from(count).ok()).unwrap_or(0);
            Ok(Some((scale["metadata"]["uid"].as_str().unwrap_or_default().to_owned(), replicas)))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

async fn read(client: &Client, path: &str) -> Result<Value, Error> {
    let bytes = client.get_raw(path).await?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Decode(format!("{path}: {error}")))
}
