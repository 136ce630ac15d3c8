//! GET of a collection: consistent, filtered, in pages that are pinned to one revision.
//!
//! The first page comes from the watch cache; the following ones are read from the store at the revision of
//! the first, so that all pages together are one snapshot.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_meta::{FieldSelector, Object, Selector, Status};
use serde_json::{Value, json};

use super::Target;
use crate::body::Reply;
use crate::cache::{Filter, Item};
use crate::registry::Resource;
use crate::request::Query;
use crate::response::{self, ListMeta};

/// One page.
pub struct Page {
    pub objects: Vec<Arc<Object>>,
    pub meta: ListMeta,
}

/// Where a list goes on.
struct Continue {
    revision: u64,
    start: String,
}

impl Continue {
    fn encode(&self) -> String {
        let token = json!({ "v": "meta.k8s.io/v1", "rv": self.revision, "start": self.start });
        BASE64URL.encode(token.to_string())
    }

    fn parse(token: &str) -> Result<Continue, Status> {
        let invalid = || Status::bad_request("continue key is not valid: encoded continue token is malformed");
        let bytes = BASE64URL.decode(token).map_err(|_| invalid())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let revision = value["rv"].as_u64().ok_or_else(invalid)?;
        let start = value["start"].as_str().filter(|s| !s.contains("..")).ok_or_else(invalid)?;
        Ok(Continue { revision, start: start.to_owned() })
    }
}

/// Answers with a list.
pub async fn list(target: &Target<'_>) -> Result<Reply, Status> {
    let page = page(target).await?;
    let context = target.context;
    Ok(response::list(context.accept, context.include_object(), &target.resource.kind, &page.objects, &page.meta))
}

/// The page that the query asks for, in the served version.
pub async fn page(target: &Target<'_>) -> Result<Page, Status> {
    let query = &target.context.info.query;
    let filter = filter(target.resource, target.namespace, query)?;
    let limit = number(query, "limit")?.unwrap_or(0) as usize;
    let asked = number(query, "resourceVersion")?;
    let exact = check_match(query, asked)?;
    if let Some(token) = query.get("continue") {
        if asked.is_some_and(|rv| rv != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let from = Continue::parse(token)?;
        return past(target, &filter, limit, from.revision, Some(&from.start)).await;
    }
    if exact && let Some(revision) = asked {
        return past(target, &filter, limit, revision, None).await;
    }
    let caches = &target.server.registry.caches;
    let at_least = match asked {
        // Zero accepts any state, so the cache answers at once.
        Some(0) => caches.revision(),
        Some(revision) => caches.reach(revision).await?,
        None => caches.fresh().await?,
    };
    present(target, &filter, limit, at_least).await
}

/// A page of the present state, from the cache.
async fn present(target: &Target<'_>, filter: &Filter, limit: usize, at_least: u64) -> Result<Page, Status> {
    let stored = target.resource.storage()?;
    let snapshot = stored.cache.snapshot(at_least);
    let mut objects = Vec::new();
    let mut next = None;
    for (key, item) in snapshot.namespace(&filter.namespace, None) {
        if !filter.matches(&stored.hub, item) {
            continue;
        }
        if limit > 0 && objects.len() == limit {
            next = Some(key.clone());
            break;
        }
        objects.push(Arc::clone(&item.object));
    }
    let mut meta = ListMeta { resource_version: snapshot.revision, ..ListMeta::default() };
    if let Some(start) = next {
        if filter.is_everything() {
            meta.remaining = Some(snapshot.namespace(&filter.namespace, Some(&start)).count() as u64);
        }
        meta.continue_token = Continue { revision: snapshot.revision, start }.encode();
    }
    Ok(Page { objects: target.resource.serve_all(objects).await?, meta })
}

/// A page of a past state, from the store.
async fn past(
    target: &Target<'_>,
    filter: &Filter,
    limit: usize,
    revision: u64,
    start: Option<&str>,
) -> Result<Page, Status> {
    let stored = target.resource.storage()?;
    let registry = &target.server.registry;
    let read = registry.range_at(target.resource, &filter.namespace, start, 0, revision).await;
    let (entries, _, _) = read.map_err(|e| match e {
        corten_store::Error::Compacted { .. } => Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
        ),
        corten_store::Error::Future { requested, current } => crate::cache::too_large_resource_version(requested, current),
        other => crate::registry::store_status(other),
    })?;
    let total = entries.len();
    let mut meta = ListMeta { resource_version: revision, ..ListMeta::default() };
    let mut objects = Vec::new();
    for (index, (key, object)) in entries.into_iter().enumerate() {
        let item = Item::new(object);
        if !filter.matches(&stored.hub, &item) {
            continue;
        }
        if limit > 0 && objects.len() == limit {
            meta.remaining = filter.is_everything().then_some((total - index) as u64);
            meta.continue_token = Continue { revision, start: key }.encode();
            break;
        }
        objects.push(Arc::clone(&item.object));
    }
    Ok(Page { objects: target.resource.serve_all(objects).await?, meta })
}

/// The filter of a list or a watch.
pub fn filter(resource: &Resource, namespace: &str, query: &Query) -> Result<Filter, Status> {
    let bad = |e: corten_meta::Error| Status::bad_request(e.to_string());
    let labels = Selector::parse(query.get("labelSelector").unwrap_or_default()).map_err(bad)?;
    let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default()).map_err(bad)?;
    for requirement in fields.requirements() {
        let field = requirement.field.as_str();
        let common = field == "metadata.name" || field == "metadata.namespace";
        if !common && !resource.kind.selectable_fields.iter().any(|known| known == field) {
            return Err(Status::bad_request(format!(
                "Unable to find {:?} that match label selector {:?}, field selector {:?}: field label not supported: {field}",
                format!("{}, Resource={}", resource.kind.api_version(), resource.kind.plural),
                query.get("labelSelector").unwrap_or_default(),
                query.get("fieldSelector").unwrap_or_default(),
            )));
        }
    }
    Ok(Filter { namespace: namespace.to_owned(), labels, fields })
}

/// A whole number of the query.
pub fn number(query: &Query, key: &str) -> Result<Option<u64>, Status> {
    match query.get(key) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            Status::bad_request(format!(
                "Invalid value: {text:?}: {key}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        }),
    }
}

/// Whether the list must be exactly at the revision asked for.
fn check_match(query: &Query, asked: Option<u64>) -> Result<bool, Status> {
    let Some(how) = query.get("resourceVersionMatch") else { return Ok(false) };
    let forbidden = |why: &str| {
        let error = corten_meta::FieldError::forbidden(&corten_meta::Path::root("resourceVersionMatch"), why);
        let kind = corten_meta::GroupKind { group: "meta.k8s.io".to_owned(), kind: "ListOptions".to_owned() };
        Err(Status::invalid(&kind, "", vec![error]))
    };
    match (how, asked) {
        _ if query.get("continue").is_some() => {
            forbidden("resourceVersionMatch is forbidden when continue is provided")
        }
        ("NotOlderThan" | "Exact", None) => {
            forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        ("Exact", Some(0)) => forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""),
        ("Exact", _) => Ok(true),
        ("NotOlderThan", _) => Ok(false),
        (other, _) => {
            let path = corten_meta::Path::root("resourceVersionMatch");
            let error = corten_meta::FieldError::not_supported(&path, other, &["Exact", "NotOlderThan", ""]);
            let kind = corten_meta::GroupKind { group: "meta.k8s.io".to_owned(), kind: "ListOptions".to_owned() };
            Err(Status::invalid(&kind, "", vec![error]))
        }
    }
}
