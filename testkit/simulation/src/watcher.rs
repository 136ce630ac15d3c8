//! A client that watches pods through the faulty network, and resumes after every break where it was.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_client::{Client, Dynamic, Error, ListOptions, Resource, WatchEvent};
use futures::StreamExt;
use tokio::task::JoinHandle;

use crate::promises::{ChangeKind, PodChange};

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// The watcher's record.
#[derive(Clone, Default)]
pub struct Watcher {
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    seen: Vec<PodChange>,
    /// The revisions that lists replaced: what lies between is not promised one by one.
    gaps: Vec<Gap>,
    /// The last revision that it knows.
    at: u64,
}

/// The revisions after `after` and up to `until`.
struct Gap {
    after: u64,
    until: u64,
}

impl Watcher {
    pub fn start(&self, client: &Client) -> JoinHandle<()> {
        let pods = client.dynamic(&Resource::new("", "v1", "pods", true));
        let watcher = self.clone();
        tokio::spawn(async move {
            loop {
                if watcher.revision() == 0 {
                    let _ = watcher.list(&pods).await;
                } else if let Err(error) = watcher.watch(&pods).await
                    && error.is_expired()
                {
                    let _ = watcher.list(&pods).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
    }

    /// Returns the last revision that the watcher knows.
    pub fn revision(&self) -> u64 {
        self.with(|record| record.at)
    }

    /// Returns how its record differs from what happened.
    pub fn difference(&self, happened: &[PodChange]) -> Option<String> {
        self.with(|record| {
            let is_listed = |change: &&PodChange| {
                record.gaps.iter().any(|gap| gap.after < change.revision && change.revision <= gap.until)
            };
            let promised: Vec<PodChange> =
                happened.iter().filter(|change| change.revision <= record.at && !is_listed(change)).copied().collect();
            let differs =
                (0..promised.len().max(record.seen.len())).find(|at| promised.get(*at) != record.seen.get(*at))?;
            Some(format!("a watch shows {:?} where {:?} happened", record.seen.get(differs), promised.get(differs)))
        })
    }

    async fn list(&self, pods: &Dynamic) -> Result<(), Error> {
        let list = pods.list_objects("", &ListOptions::default()).await?;
        let until = list.resource_version.parse().unwrap_or(0);
        self.with(|record| {
            record.gaps.push(Gap { after: record.at, until });
            record.at = until;
        });
        Ok(())
    }

    async fn watch(&self, pods: &Dynamic) -> Result<(), Error> {
        let options = ListOptions {
            resource_version: Some(self.revision().to_string()),
            allow_watch_bookmarks: true,
            ..ListOptions::default()
        };
        let mut events = pods.watch("", &options).await?;
        while let Some(event) = events.next().await {
            let (revision, kind) = match event? {
                WatchEvent::Added(object) => (object.revision, Some(ChangeKind::Added)),
                WatchEvent::Modified(object) => (object.revision, Some(ChangeKind::Modified)),
                WatchEvent::Deleted(object) => (object.revision, Some(ChangeKind::Deleted)),
                WatchEvent::Bookmark { revision, .. } => (revision, None),
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            self.with(|record| {
                record.at = revision;
                record.seen.extend(kind.map(|kind| PodChange { revision, kind }));
            });
        }
        Ok(())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Record) -> T) -> T {
        work(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
