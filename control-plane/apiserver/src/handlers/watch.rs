//! GET of a collection with `watch`: where a watch starts, and what it says first.

use std::sync::Arc;
use std::time::Duration;

use corten_meta::Status;
use futures::stream::StreamExt;
use http::{HeaderValue, header};

use super::Target;
use super::list::{filter, number, revision};
use super::options::check_list_options;
use crate::body::{Body, Delivery, Reply, Watch, WatchEvent};
use crate::cache::{Watcher, WatcherOptions};
use crate::registry::Resource;
use crate::response;

/// How long a watch lasts whose client does not say; spread, so that not all come back at once.
const MIN_TIMEOUT: u64 = 1800;

/// Answers with a stream of events.
pub async fn watch(target: &Target<'_>) -> Result<Reply, Status> {
    let context = target.context;
    let query = &context.info.query;
    let stored = target.resource.storage()?;
    check_list_options(query, true)?;
    let filter = filter(target.resource, target.namespace, query)?;
    let asked = revision(query).map_err(|e| Status { code: 500, message: e.to_string(), ..Status::default() })?;
    let caches = &target.server.registry.caches;
    let streaming_list = query.has("sendInitialEvents").then(|| query.flag("sendInitialEvents"));

    let reached = match asked {
        Some(0) => caches.revision(),
        Some(revision) if streaming_list == Some(true) => caches.reach(revision).await?,
        Some(revision) => {
            // A client may have learned a revision from a write before the caches have seen it.
            if revision > caches.revision() {
                caches.reach(revision).await?;
            }
            revision
        }
        None => caches.fresh().await?,
    };
    let wants_state = streaming_list.unwrap_or(matches!(asked, None | Some(0)));
    let (after, initial) = if wants_state {
        let snapshot = stored.cache.snapshot(reached);
        let selected =
            snapshot.namespace(&filter.namespace, None).filter(|(_, item)| filter.matches(&stored.hub, item));
        (snapshot.revision, Some(selected.map(|(_, item)| Arc::clone(&item.object)).collect()))
    } else {
        (reached, None)
    };
    let options = WatcherOptions {
        after,
        initial,
        mark_initial_end: streaming_list == Some(true),
        bookmarks: query.flag("allowWatchBookmarks"),
        timeout: timeout(number(query, "timeoutSeconds")?),
    };
    let shutdown = target.server.shutdown.clone();
    let deliveries = Watcher::start(Arc::clone(caches), Arc::clone(&stored.cache), filter, options, shutdown)?;
    let resource = Arc::clone(target.resource);
    let deliveries = if resource.is_converted() {
        let resource = Arc::clone(&resource);
        let convert = move |delivery: Delivery| convert(Arc::clone(&resource), delivery.event);
        deliveries.then(convert).map(Into::into).boxed()
    } else {
        deliveries
    };
    let encode = response::event_encoder(context.accept, context.include_object(), resource);
    let cache = Arc::clone(&stored.cache);
    let mut reply = Reply::new(Body::Watch(Watch { deliveries, encode, cache, under_way: None }));
    let content_type = "application/json";
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(reply)
}

fn timeout(asked: Option<i64>) -> Duration {
    match asked {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()),
        _ => {
            let spread = u64::from(uuid::Uuid::new_v4().as_bytes()[0]) * MIN_TIMEOUT / 256;
            Duration::from_secs(MIN_TIMEOUT + spread)
        }
    }
}

/// The event in the version that is watched; an object that cannot be converted ends up as an error.
async fn convert(resource: Arc<Resource>, event: WatchEvent) -> WatchEvent {
    let converted = match event {
        WatchEvent::Added(object) => resource.serve(&object).await.map(WatchEvent::Added),
        WatchEvent::Modified(object) => resource.serve(&object).await.map(WatchEvent::Modified),
        WatchEvent::Deleted(object) => resource.serve(&object).await.map(WatchEvent::Deleted),
        other => Ok(other),
    };
    converted.unwrap_or_else(WatchEvent::Error)
}
