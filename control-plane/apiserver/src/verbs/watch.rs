//! GET of a collection with `watch`: the start of a watch, and its initial events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_meta::Status;
use futures::stream::StreamExt;
use http::{HeaderValue, header};

use super::list::{self, ListOptions, revision};
use super::options::initial_events;
use crate::body::{Body, Reply, Source, Watch};
use crate::cache::event::Delivery;
use crate::cache::{ChangeKind, Filter, Item, Watcher, WatcherOptions, transition};
use crate::metrics::WATCH_LIST_SECONDS;
use crate::negotiation::{Format, STREAMED, View};
use crate::registry::Resource;
use crate::response;
use crate::write::Scope;

/// The shortest default timeout of a watch; a random part is added, so that not all watches end at once.
const MIN_TIMEOUT: u64 = 1800;

/// The longest timeout of a watch, whatever its client requests: far longer than a connection, and no time overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the response with a stream of events.
pub async fn watch(target: &Scope<'_>) -> Result<Reply, Status> {
    let context = target.context;
    let query = &context.info.query;
    let stored = target.resource.storage()?;
    let ListOptions { timeout: requested_timeout, filter, .. } = ListOptions::read(target, true)?;
    let requested = revision(query).map_err(|e| Status { code: 500, message: e.to_string(), ..Status::default() })?;
    if context.accept.format == Format::Yaml {
        return Err(Status::not_acceptable(STREAMED));
    }
    if context.accept.view == View::PartialMetadataList {
        // No event is a list, so the stream ends before its first.
        return Ok(streamed(context.accept.format, Body::Stream(futures::stream::empty().boxed())));
    }
    let feed = &stored.cache.feed;
    let began = Instant::now();
    let initial_events = initial_events(query);
    let bookmarks = query.flag("allowWatchBookmarks");

    let reached = match requested {
        Some(0) => feed.revision(),
        Some(revision) if initial_events == Some(true) => match feed.reach(revision).await {
            Ok(reached) => reached,
            // The client gets the error as an event.
            Err(status) => return Ok(response::only_error(context.accept, &target.resource.kind, &status)),
        },
        // A future resourceVersion is allowed: then no event comes before it.
        Some(revision) => revision,
        None => feed.fresh().await?,
    };
    stored.check_namespace(target.namespace, "")?;
    target.resource.check_readable().await?;
    let (after, initial) = if initial_events.unwrap_or(matches!(requested, None | Some(0))) {
        let (revision, objects) = list::everything(target, &filter, reached).await?;
        (revision, Some(objects))
    } else {
        (reached, None)
    };
    if initial.is_some() && bookmarks {
        let kind = &target.resource.kind;
        let scope = if target.namespace.is_empty() { "cluster" } else { "namespace" };
        let labels = [kind.group.as_str(), kind.plural.as_str(), scope, kind.version.as_str()];
        target.core.metrics.took(&WATCH_LIST_SECONDS, &labels, began.elapsed());
    }
    let options = WatcherOptions {
        after,
        initial,
        mark_initial_end: bookmarks && initial_events == Some(true),
        bookmarks,
        timeout: timeout(requested_timeout),
        plain: context.accept.view == View::Plain && context.accept.format == Format::Json,
    };
    let resource = Arc::clone(target.resource);
    let watched = if resource.is_selected_as_served() { filter.by_name() } else { filter.clone() };
    let end = resource.retired.clone();
    let watcher = Watcher::start(Arc::clone(&stored.cache), watched, options, end)?;
    let source = if resource.is_selected_as_served() {
        let resource = Arc::clone(&resource);
        let filter = Arc::new(filter);
        let serve = move |delivery: Delivery| served(Arc::clone(&resource), Arc::clone(&filter), delivery);
        let served = watcher.deliveries().then(serve).take_while(|served| std::future::ready(served.is_ok()));
        Source::Converted(served.filter_map(|served| std::future::ready(served.ok().flatten())).boxed())
    } else {
        Source::Cache(watcher)
    };
    let encode = response::event_encoder(context.accept, context.include_object(), resource);
    let cache = Arc::clone(&stored.cache);
    let watch = Watch { source, encode, cache, until_end: Vec::new() };
    Ok(streamed(context.accept.format, Body::Watch(watch)))
}

fn streamed(format: Format, body: Body) -> Reply {
    let mut reply = Reply::new(body);
    let content_type = match format {
        Format::Protobuf => corten_protobuf::STREAMED,
        _ => "application/json",
    };
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

fn timeout(requested: Option<i64>) -> Duration {
    match requested {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()).min(LONGEST),
        _ => {
            let spread = u64::from(uuid::Uuid::new_v4().as_bytes()[0]) * MIN_TIMEOUT / 256;
            Duration::from_secs(MIN_TIMEOUT + spread)
        }
    }
}

/// Returns a delivery in the watched version, if the object is selected in it. A failed conversion ends the watch; the
/// client's next request gets the error. The initial events were served already.
async fn served(resource: Arc<Resource>, filter: Arc<Filter>, delivery: Delivery) -> Result<Option<Delivery>, Status> {
    let Some(change) = &delivery.change else { return Ok(Some(delivery)) };
    let stored = change.previous.iter().chain((change.kind != ChangeKind::Deleted).then_some(&change.item));
    let items: Vec<&Arc<Item>> = stored.collect();
    let served = resource.serve_items(items.iter().copied()).await?;
    let selected = |at: usize| served.get(at).filter(|shown| filter.matches_as(&resource.kind, items[at], shown));
    let is_at = usize::from(change.previous.is_some());
    let event = transition(change, (is_at > 0).then(|| selected(0)).flatten(), selected(is_at));
    let Some(event) = event else { return Ok(None) };
    // A change that is shown as it happened shares its frame with all other watchers that see it so.
    let as_stored = items.iter().zip(&served).all(|(item, shown)| Arc::ptr_eq(&item.object, shown));
    match as_stored && std::mem::discriminant(&event) == std::mem::discriminant(&delivery.event) {
        true => Ok(Some(delivery)),
        false => Ok(Some(event.into())),
    }
}
