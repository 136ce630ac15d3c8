//! Watching the kinds that a trace follows.

use corten_client::{Client, Error, ListOptions, Resource, WatchEvent};
use corten_meta::Value;
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;

use crate::tracer::Tracer;

/// The kinds that a trace follows: group, version, plural.
const KINDS: [(&str, &str, &str); 11] = [
    ("apps", "v1", "deployments"),
    ("apps", "v1", "replicasets"),
    ("apps", "v1", "statefulsets"),
    ("apps", "v1", "daemonsets"),
    ("batch", "v1", "cronjobs"),
    ("batch", "v1", "jobs"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "persistentvolumeclaims"),
    ("discovery.k8s.io", "v1", "endpointslices"),
    ("", "v1", "events"),
];

/// A state of an object that a watch delivered.
#[derive(Debug)]
pub struct Watched {
    pub at: Timestamp,
    pub object: Value,
    /// Whether the object was there when the watch began.
    pub existed: bool,
}

fn resources() -> impl Iterator<Item = Resource> {
    KINDS.into_iter().map(|(group, version, plural)| Resource::new(group, version, plural, true))
}

/// Reads all objects of a namespace that may belong to a trace, into a tracer.
pub async fn read(client: &Client, namespace: &str, tracer: &mut Tracer) -> Result<(), Error> {
    for resource in resources() {
        let list = client.dynamic(&resource).list_objects(namespace, &ListOptions::default()).await?;
        tracer.see_existing(list.items.iter().map(|object| object.value()).collect(), Timestamp::now());
    }
    Ok(())
}

/// Watches all kinds of a namespace. Each state is given with the time at which it arrived.
pub async fn follow(
    client: &Client,
    namespace: &str,
) -> Result<impl Stream<Item = Result<Watched, Error>> + use<>, Error> {
    let mut watches = Vec::new();
    for resource in resources() {
        let dynamic = client.dynamic(&resource);
        let list = dynamic.list_objects(namespace, &ListOptions::default()).await?;
        let existing = list
            .items
            .into_iter()
            .map(|object| Ok(Watched { at: Timestamp::now(), object: object.value(), existed: true }));
        let options = ListOptions { resource_version: Some(list.resource_version), ..ListOptions::default() };
        let events = dynamic.watch(namespace, &options).await?;
        let changes = events.filter_map(|event| async move { changed(event).transpose() });
        watches.push(stream::iter(existing.collect::<Vec<_>>()).chain(changes).boxed());
    }
    Ok(stream::select_all(watches))
}

/// Returns the state that an event of a watch brings; a deletion brings none.
fn changed(event: Result<WatchEvent, Error>) -> Result<Option<Watched>, Error> {
    match event? {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            Ok(Some(Watched { at: Timestamp::now(), object: object.value(), existed: false }))
        }
        WatchEvent::Deleted(_) | WatchEvent::Bookmark { .. } => Ok(None),
        WatchEvent::Error(status) => Err(Error::from(status)),
    }
}
