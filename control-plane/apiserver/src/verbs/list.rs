//! GET of a collection: consistent, filtered, in pages that are pinned to one revision.
//!
//! The first page comes from the watch cache, and the following ones from the same snapshot of it, or from the store at
//! its revision: all pages together are one state.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use corten_access::Verb;
use corten_meta::quote::quote;
use corten_meta::{FieldSelector, Object, Selector, Status};
use serde_json::{Value, json};

use super::options::check_list_options;
use crate::body::Reply;
use crate::cache::{Filter, Item, Pinned};
use crate::registry::Resource;
use crate::request::Query;
use crate::response::{self, ListMeta};
use crate::write::Scope;

pub struct Page {
    pub objects: Vec<Arc<Object>>,
    pub meta: ListMeta,
}

/// The number of objects that are converted together before a selector is applied.
const CHUNK: usize = 500;

/// The base64 of continue tokens, as lenient as upstream's: trailing bits are ignored.
const BASE64URL: GeneralPurpose =
    GeneralPurpose::new(&base64::alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// The version of continue tokens.
const VERSION: &str = "meta.k8s.io/v1";

/// The revision in a token that continues in the newest state; upstream takes any number below zero.
const NEWEST: i64 = -1;

/// The position where a list continues.
struct Continue {
    /// The revision of the first page; `None` continues in the newest state, which may differ from the first page's.
    revision: Option<u64>,
    start: String,
}

impl Continue {
    fn encode(&self) -> String {
        let revision = self.revision.map_or(json!(NEWEST), Value::from);
        let token = json!({ "v": VERSION, "rv": revision, "start": self.start });
        BASE64URL.encode(token.to_string())
    }

    fn parse(token: &str) -> Result<Continue, Status> {
        let invalid =
            |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = BASE64URL.decode(token).map_err(|e| match e {
            base64::DecodeError::InvalidByte(at, _) => invalid(&format!("illegal base64 data at input byte {at}")),
            _ => invalid(&format!("illegal base64 data at input byte {}", token.len().saturating_sub(1))),
        })?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|e| invalid(&corten_meta::go::json_error(&bytes).unwrap_or_else(|| e.to_string())))?;
        let version = value["v"].as_str().unwrap_or_default();
        if version != VERSION {
            return Err(invalid(&format!("server does not recognize this encoded version {version}")));
        }
        let unset = || invalid(&format!("incorrect encoded start resourceVersion (version {VERSION})"));
        let revision = value["rv"].as_i64().filter(|rv| *rv != 0).ok_or_else(unset)?;
        let revision = u64::try_from(revision).ok();
        let start = value["start"].as_str().unwrap_or_default();
        if start.is_empty() {
            return Err(invalid(&format!("encoded start key empty (version {VERSION})")));
        }
        if start.contains("..") {
            return Err(invalid(start));
        }
        Ok(Continue { revision, start: start.to_owned() })
    }
}

/// The options of a list, checked as far as this needs no store.
pub struct ListOptions {
    limit: usize,
    pub timeout: Option<i64>,
    pub filter: Filter,
}

impl ListOptions {
    /// Reads the options. Unreadable ones are reported first, then invalid combinations, then unsupported field
    /// selectors.
    pub fn read(target: &Scope<'_>, watch: bool) -> Result<ListOptions, Status> {
        let query = &target.context.info.query;
        let timeout = number(query, "timeoutSeconds")?;
        let limit = usize::try_from(number(query, "limit")?.unwrap_or(0)).unwrap_or(0);
        let (labels, fields) = selectors(query)?;
        check_list_options(query, watch)?;
        Ok(ListOptions { limit, timeout, filter: filter(target.resource, target.namespace, labels, fields)? })
    }
}

/// Returns the response with a list.
pub async fn list(target: &Scope<'_>) -> Result<Reply, Status> {
    let page = page(target, ListOptions::read(target, false)?).await?;
    let context = target.context;
    Ok(response::list(context.accept, context.include_object(), &target.resource.kind, page.objects, &page.meta))
}

/// Returns the page that the query requests, in the served version.
pub async fn page(target: &Scope<'_>, ListOptions { limit, filter, .. }: ListOptions) -> Result<Page, Status> {
    let stored = target.resource.storage()?;
    stored.check_namespace(target.namespace, "")?;
    let query = &target.context.info.query;
    let feed = &stored.cache.feed;
    if let Some(token) = query.get("continue") {
        let from = Continue::parse(token)?;
        let limit = if query.get("resourceVersion") == Some("0") { 0 } else { limit };
        if query.get("resourceVersion").is_some_and(|version| version != "0") {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        return match from.revision {
            Some(revision) => past(target, &filter, limit, revision, Some(from.start)).await,
            None => present(target, &filter, limit, feed.fresh().await?, Some(&from.start)).await,
        };
    }
    let requested = revision(query).map_err(|e| Status::bad_request(format!("invalid resource version: {e}")))?;
    // Any state is accepted, so the cache answers, which has all of it: there are no pages.
    let limit = if requested == Some(0) { 0 } else { limit };
    // A page at a revision has exactly that revision, unless the client accepts a later one. A collection is deleted in
    // pages.
    let is_paged = limit > 0 || target.context.info.verb == Verb::DeleteCollection;
    let exact = match query.get("resourceVersionMatch") {
        None => is_paged && !is_of_one(target, &filter) && requested.is_some_and(|revision| revision > 0),
        Some(matching) => matching == "Exact",
    };
    if exact && let Some(revision) = requested {
        return past(target, &filter, limit, revision, None).await;
    }
    let at_least = match requested {
        // Zero accepts any state, so the cache answers at once.
        Some(0) => feed.revision(),
        Some(revision) => feed.reach(revision).await?,
        None => feed.fresh().await?,
    };
    present(target, &filter, limit, at_least, None).await
}

/// Refuses a list that upstream's watch cache would answer and cannot. Pages of everything, and deletions of
/// collections, are read from the store, as far as they go.
async fn check_readable(target: &Scope<'_>, filter: &Filter, limit: usize) -> Result<(), Status> {
    let in_pages = limit > 0 || target.context.info.verb == Verb::DeleteCollection;
    if in_pages && filter.is_everything() { Ok(()) } else { target.resource.check_readable().await }
}

/// Returns a page of the present state, from the cache.
async fn present(
    target: &Scope<'_>,
    filter: &Filter,
    limit: usize,
    at_least: u64,
    start: Option<&str>,
) -> Result<Page, Status> {
    check_readable(target, filter, limit).await?;
    let cache = &target.resource.storage()?.cache;
    if limit == 0
        && start.is_none()
        && !target.resource.is_selected_as_served()
        && let Some(node) = filter.node()
    {
        let (items, revision) = cache.of_node(node, at_least);
        let items = items.into_iter().map(|(key, item)| (Cow::from(key), item));
        return Ok(fill(target, filter, limit, State { revision, left: None }, items).await?.page);
    }
    let snapshot = cache.snapshot(at_least);
    if limit == 0 && filter.is_everything() && !target.resource.is_selected_as_served() {
        // Everything as it is stored: no object has to be inspected.
        let all = snapshot.namespace(&filter.namespace, start).map(|(_, item)| Arc::clone(&item.object));
        let meta = ListMeta { resource_version: snapshot.revision, ..ListMeta::default() };
        return Ok(Page { objects: all.collect(), meta });
    }
    let left = (filter.namespace.is_empty() && start.is_none()).then_some(snapshot.items.len() as u64);
    of_snapshot(target, filter, limit, Pinned { snapshot, left }, start).await
}

/// Returns a page of a snapshot, and keeps the snapshot for the next page.
async fn of_snapshot(
    target: &Scope<'_>,
    filter: &Filter,
    limit: usize,
    Pinned { snapshot, left }: Pinned,
    start: Option<&str>,
) -> Result<Page, Status> {
    let items = snapshot.namespace(&filter.namespace, start);
    let items = items.map(|(key, item)| (Cow::from(key.as_str()), Arc::clone(item)));
    let Filled { page, next } = fill(target, filter, limit, State { revision: snapshot.revision, left }, items).await?;
    if let Some(next) = next {
        let pins = &target.resource.storage()?.cache.pins;
        pins.keep(&snapshot, next, page.meta.remaining, Instant::now());
    }
    Ok(page)
}

/// Returns the snapshot of an earlier page, unless its revision is compacted: then no server could serve it.
fn pinned(target: &Scope<'_>, revision: u64, start: Option<&str>) -> Result<Option<Pinned>, Status> {
    let cache = &target.resource.storage()?.cache;
    let is_compacted = revision < cache.feed.store.compacted();
    Ok(cache.pins.find(revision, start).filter(|_| !is_compacted))
}

/// Returns all objects that a filter selects now, in the served version, and their revision.
pub async fn everything(target: &Scope<'_>, filter: &Filter, at_least: u64) -> Result<(u64, Vec<Arc<Object>>), Status> {
    let page = present(target, filter, 0, at_least, None).await?;
    Ok((page.meta.resource_version, page.objects))
}

/// Returns a page of a past state, from the store.
async fn past(
    target: &Scope<'_>,
    filter: &Filter,
    limit: usize,
    revision: u64,
    start: Option<String>,
) -> Result<Page, Status> {
    check_readable(target, filter, limit).await?;
    if let Some(pinned) = pinned(target, revision, start.as_deref())? {
        return of_snapshot(target, filter, limit, pinned, start.as_deref()).await;
    }
    let registry = &target.core.registry;
    let read = registry.range_at(target.resource, &filter.namespace, start.as_deref(), 0, revision).await;
    let (entries, _, _) = read.map_err(|e| match e {
        corten_store::Error::Compacted { .. } => too_old(start),
        corten_store::Error::Future { requested, current } => {
            crate::cache::too_large_resource_version(requested, current)
        }
        other => crate::registry::store_status(other),
    })?;
    let hub = &target.resource.storage()?.hub;
    let items = entries.into_iter().map(|(key, object)| (Cow::from(key), Arc::new(Item::read(hub, object))));
    Ok(fill(target, filter, limit, State { revision, left: None }, items).await?.page)
}

/// Returns the error for a compacted revision; for a later page it has a token to continue without it.
fn too_old(start: Option<String>) -> Status {
    let Some(start) = start else {
        return Status::expired("The resourceVersion for the provided list is too old.");
    };
    let mut status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.continue_token = Continue { revision: None, start }.encode().into();
    status
}

/// Returns whether a filter can select only one object, by its name.
fn is_of_one(target: &Scope<'_>, filter: &Filter) -> bool {
    let is_in_one_place = !target.resource.kind.namespaced || !filter.namespace.is_empty();
    is_in_one_place && filter.fields.requires_exact_match("metadata.name").is_some()
}

/// The state that a page is read from.
struct State {
    revision: u64,
    /// The number of objects from the start of the page on, if it is known.
    left: Option<u64>,
}

/// A page, and the key of the object after it.
struct Filled {
    page: Page,
    next: Option<String>,
}

/// Takes the selected objects until the page is full. The list continues as long as any object follows the page,
/// selected or not; but a selection by one name has no pages.
async fn fill<'i>(
    target: &Scope<'_>,
    filter: &Filter,
    limit: usize,
    State { revision, left }: State,
    mut items: impl Iterator<Item = (Cow<'i, str>, Arc<Item>)> + Send,
) -> Result<Filled, Status> {
    let resource = target.resource;
    let hub = &target.resource.storage()?.hub;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let as_served = resource.is_selected_as_served() && !filter.is_everything();
    let first = if as_served { filter.by_name() } else { filter.clone() };
    let wanted = if as_served { CHUNK } else { limit };
    let mut candidates = items.by_ref().filter(|(_, item)| first.matches(hub, item));
    let mut objects = Vec::new();
    let mut next = None;
    while objects.len() < limit {
        let (keys, chunk): (Vec<_>, Vec<_>) = candidates.by_ref().take(wanted).unzip();
        if chunk.is_empty() {
            break;
        }
        let served = resource.serve_items(chunk.iter()).await?;
        let mut found = keys.into_iter().zip(&chunk).zip(served);
        let selected =
            found.by_ref().filter(|((_, item), object)| !as_served || filter.matches_as(&resource.kind, item, object));
        objects.extend(selected.take(limit - objects.len()).map(|(_, object)| object));
        next = found.next().map(|((key, _), _)| key);
    }
    drop(candidates);
    if is_of_one(target, filter) {
        next = None;
    } else if next.is_none() && objects.len() == limit {
        next = items.next().map(|(key, _)| key);
    }
    let mut meta = ListMeta { resource_version: revision, ..ListMeta::default() };
    let next = next.map(Cow::into_owned);
    if let Some(start) = next.clone() {
        let left = left.and_then(|left| left.checked_sub(objects.len() as u64));
        meta.remaining = filter.is_everything().then(|| left.unwrap_or_else(|| 1 + items.count() as u64));
        meta.continue_token = Continue { revision: Some(revision), start }.encode();
    }
    Ok(Filled { page: Page { objects, meta }, next })
}

/// Returns the filter of a list or a watch.
pub fn filter(resource: &Resource, namespace: &str, labels: Selector, fields: FieldSelector) -> Result<Filter, Status> {
    for requirement in fields.requirements() {
        if let Some(why) = resource.kind.selection_error(&requirement.field) {
            return Err(Status::bad_request(why));
        }
    }
    Ok(Filter { namespace: namespace.to_owned(), labels, fields })
}

/// Returns the label and field selectors of a query.
pub fn selectors(query: &Query) -> Result<(Selector, FieldSelector), Status> {
    let bad = |e: corten_meta::Error| Status::bad_request(e.to_string());
    let labels = Selector::parse(query.get("labelSelector").unwrap_or_default()).map_err(bad)?;
    let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default()).map_err(bad)?;
    Ok((labels, fields))
}

/// Returns an integer of the query; an empty one is none.
pub fn number(query: &Query, key: &str) -> Result<Option<i64>, Status> {
    let parse = |text: &str| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        text.parse().map_err(|_| Status::bad_request(number_error("ParseInt", text, digits)))
    };
    query.raw(key).map(parse).transpose()
}

/// Returns the resourceVersion of the query.
pub fn revision(query: &Query) -> Result<Option<u64>, corten_meta::FieldError> {
    let Some(text) = query.get("resourceVersion") else { return Ok(None) };
    let parsed = if text.starts_with('+') { None } else { text.parse().ok() };
    parsed.map(Some).ok_or_else(|| {
        let why = number_error("ParseUint", text, text);
        corten_meta::FieldError::invalid(&corten_meta::Path::root("resourceVersion"), text, why)
    })
}

/// Returns upstream's error for a string that is no number, or one out of range.
fn number_error(function: &str, text: &str, digits: &str) -> String {
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}
