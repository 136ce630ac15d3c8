//! Keeps a cache current: lists once, watches from there, resumes after a watch ended, and lists again if the revision
//! is compacted.

use crate::backoff::{Backoff, jitter};
use crate::{Dynamic, Error, ListOptions, WatchEvent};
use corten_meta::Object;
use futures::StreamExt;
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The duration from which a watch counts as healthy: the next is opened at once.
const HEALTHY: Duration = Duration::from_secs(1);

/// The number of objects per page of a list that is not streamed.
const PAGE: u64 = 500;

/// The receiver of lists and watches.
pub(super) trait Sink: Send + Sync {
    /// Applies one event of a watch: an addition, a modification, or (with `deleted`) a deletion.
    fn apply(&self, object: Arc<Object>, deleted: bool);

    /// Applies the result of a list: objects that are not in it are deleted.
    fn replace(&self, objects: Vec<Arc<Object>>);

    /// Ends every subscription after its pending changes, and every wait for the first list.
    fn close(&self);
}

pub(super) struct Reflector {
    resource: Dynamic,
    namespace: String,
    options: ListOptions,
    cache: Arc<dyn Sink>,
    /// The newest revision in the cache; `None` before the first list and after the server compacted it.
    revision: Option<u64>,
    /// Whether the server streams lists, as far as known.
    streaming: bool,
}

/// The reason why a watch ended.
#[derive(Debug)]
enum End {
    /// The server closed it; resume.
    Closed,
    /// The revision is compacted; list again.
    Expired,
    Failed(Error),
}

impl Reflector {
    pub(super) fn new(resource: Dynamic, namespace: &str, options: ListOptions, cache: Arc<dyn Sink>) -> Reflector {
        Reflector { resource, namespace: namespace.into(), options, cache, revision: None, streaming: true }
    }

    /// Runs until shutdown, through all failures of the server.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let cache = self.cache.clone();
        let _ = shutdown.run_until_cancelled(self.follow()).await;
        cache.close();
    }

    async fn follow(&mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        let mut unhealthy = 0;
        loop {
            let started = Instant::now();
            let end = self.list_and_watch().await;
            unhealthy += 1;
            if started.elapsed() >= HEALTHY {
                backoff.reset();
                unhealthy = 0;
            }
            match end {
                End::Closed if unhealthy == 0 => continue,
                End::Closed => {}
                End::Expired => {
                    tracing::debug!(resource = %self.resource.resource().plural, "watch expired, listing again");
                    self.revision = None;
                    // The first time without waiting; further expirations back off.
                    if unhealthy <= 1 {
                        continue;
                    }
                }
                End::Failed(error) => {
                    tracing::warn!(resource = %self.resource.resource().plural, %error, "watch failed");
                }
            }
            tokio::time::sleep(backoff.delay()).await;
        }
    }

    /// Brings the cache up to date if necessary, and then follows one watch to its end.
    async fn list_and_watch(&mut self) -> End {
        let opened = match self.revision {
            Some(revision) => self.open(revision).await,
            None if self.streaming => self.open_streaming().await,
            None => match self.list().await {
                Ok(revision) => self.open(revision).await,
                Err(error) => Err(error),
            },
        };
        let end = match opened {
            Ok(events) => self.drain(events).await,
            Err(error) if error.is_expired() => End::Expired,
            Err(error) => End::Failed(error),
        };
        match end {
            End::Failed(error) if self.streaming && self.revision.is_none() && refuses_streaming(&error) => {
                self.streaming = false;
                Box::pin(self.list_and_watch()).await
            }
            end => end,
        }
    }

    /// Opens a watch from a revision on.
    async fn open(&self, revision: u64) -> Result<BoxStream<'static, Result<WatchEvent, Error>>, Error> {
        let options = ListOptions { resource_version: Some(revision.to_string()), ..self.watch_options() };
        self.resource.watch(&self.namespace, &options).await
    }

    /// Opens a watch that begins with all existing objects.
    async fn open_streaming(&self) -> Result<BoxStream<'static, Result<WatchEvent, Error>>, Error> {
        let options = ListOptions {
            send_initial_events: true,
            resource_version_match: Some("NotOlderThan".into()),
            ..self.watch_options()
        };
        self.resource.watch(&self.namespace, &options).await
    }

    fn watch_options(&self) -> ListOptions {
        // Between five and ten minutes, so that the watches of many clients do not end together.
        let timeout = 300 + (jitter() * 300.0) as u64;
        ListOptions { allow_watch_bookmarks: true, timeout_seconds: Some(timeout), ..self.options.clone() }
    }

    /// Lists page by page into the cache; returns the revision of the list.
    async fn list(&mut self) -> Result<u64, Error> {
        let mut options = ListOptions { limit: Some(PAGE), ..self.options.clone() };
        let mut objects = Vec::new();
        let revision = loop {
            let page = self.resource.list_objects(&self.namespace, &options).await?;
            objects.extend(page.items);
            if page.continue_token.is_empty() {
                break page.resource_version.parse().map_err(|_| {
                    Error::Decode(format!("a list has the resource version {:?}", page.resource_version))
                })?;
            }
            options.continue_token = Some(page.continue_token);
        };
        self.cache.replace(objects);
        self.revision = Some(revision);
        Ok(revision)
    }

    /// Follows a watch to its end. Collects the initial events of a streaming list until their closing bookmark, and
    /// then makes them the content of the cache.
    async fn drain(&mut self, mut events: BoxStream<'static, Result<WatchEvent, Error>>) -> End {
        let mut initial: Option<BTreeMap<corten_meta::Key, Arc<Object>>> =
            if self.revision.is_none() { Some(BTreeMap::new()) } else { None };
        while let Some(event) = events.next().await {
            let (object, deleted) = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
                Ok(WatchEvent::Deleted(object)) => (object, true),
                Ok(WatchEvent::Bookmark { revision, initial_events_end }) => {
                    if initial_events_end && let Some(objects) = initial.take() {
                        self.cache.replace(objects.into_values().collect());
                    }
                    if initial.is_none() {
                        self.revision = Some(revision);
                    }
                    continue;
                }
                Ok(WatchEvent::Error(status)) if status.is_expired() => return End::Expired,
                Ok(WatchEvent::Error(status)) => return End::Failed(status.into()),
                Err(error) => return End::Failed(error),
            };
            match &mut initial {
                Some(objects) if deleted => {
                    objects.remove(&object.key());
                }
                Some(objects) => {
                    objects.insert(object.key(), object);
                }
                None => {
                    self.revision = Some(object.revision.max(self.revision.unwrap_or(0)));
                    self.cache.apply(object, deleted);
                }
            }
        }
        End::Closed
    }
}

/// Reports whether the error means that the server does not stream lists: it does not know the option, or its storage
/// does not support it, which is an internal error.
fn refuses_streaming(error: &Error) -> bool {
    error.status().is_some_and(|status| status.is_invalid() || status.is_bad_request() || status.code == 500)
}
