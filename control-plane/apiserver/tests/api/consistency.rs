//! Random histories of writes, restarts and compactions, and the results of readers.
//!
//! A model keeps every revision. Whatever the history: a read shows the last acknowledged write; a list is the state at
//! exactly one revision, also in pages with writes between them; a watch is the history after its start, with nothing
//! missing, repeated or out of order, also through selectors, reconnects and restarts; and where history is compacted
//! the response is 410 and never a gap.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::server::TestServer;
use corten_apiserver::WatchEvent;
use futures::StreamExt;
use futures::stream::BoxStream;
use proptest::prelude::*;
use serde_json::{Value, json};

/// The next step.
#[derive(Clone, Debug)]
enum Step {
    /// Creates, changes or deletes an object; whichever is possible.
    Write {
        name: usize,
        label: usize,
        delete: bool,
    },
    Restart,
    Compact,
    /// Starts a watch at this part of the history so far, which continues to the end.
    Watch {
        selection: usize,
        from: f64,
        reconnects: bool,
        /// Whether it begins with the present state as events, and follows from the bookmark at its end.
        lists: bool,
    },
    /// Lists in pages, with a write between each two of them.
    Pages {
        limit: usize,
    },
    /// Lists the state at this part of the history so far.
    Exact {
        at: f64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let write = || {
        (0..6usize, 0..3usize, prop::bool::weighted(0.25)).prop_map(|(name, label, delete)| Step::Write {
            name,
            label,
            delete,
        })
    };
    let watch = (0..SELECTIONS.len(), 0.0..1.0, any::<bool>(), prop::bool::weighted(0.3))
        .prop_map(|(selection, from, reconnects, lists)| Step::Watch { selection, from, reconnects, lists });
    prop_oneof![
        20 => write(),
        4 => watch,
        2 => (1..5usize).prop_map(|limit| Step::Pages { limit }),
        2 => (0.0..1.0).prop_map(|at| Step::Exact { at }),
        1 => Just(Step::Restart),
        1 => Just(Step::Compact),
    ]
}

/// The namespaces of the six names, in turn.
const NAMESPACES: [&str; 2] = ["default", "kube-public"];
const LABELS: [&str; 3] = ["", "red", "blue"];

/// The selection of a watch: a namespace, a query, and the same as a function of the object's key and label.
type Selects = fn(&str, &str) -> bool;
const SELECTIONS: [(&str, &str, Selects); 5] = [
    ("", "", |_, _| true),
    ("default", "", |key, _| key.starts_with("default/")),
    ("", "&labelSelector=color%3Dred", |_, label| label == "red"),
    ("default", "&labelSelector=color%21%3Dblue", |key, label| key.starts_with("default/") && label != "blue"),
    ("", "&fieldSelector=metadata.name%3Dm2", |key, _| key.ends_with("/m2")),
];

fn collection(namespace: &str) -> String {
    match namespace {
        "" => "/api/v1/configmaps".to_owned(),
        namespace => format!("/api/v1/namespaces/{namespace}/configmaps"),
    }
}

/// The objects by key, each with its label and revision.
type State = BTreeMap<String, (String, u64)>;

fn key_of(name: usize) -> String {
    format!("{}/m{name}", NAMESPACES[name % NAMESPACES.len()])
}

/// Returns whether the test wrote it: the server has ConfigMaps of its own, and may write them when it starts.
fn is_ours(name: &str) -> bool {
    name.strip_prefix('m').is_some_and(|number| number.parse::<u8>().is_ok())
}

fn revision_of(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn state_of(list: &Value) -> State {
    let items = list["items"].as_array().unwrap().iter();
    let items = items.filter(|item| is_ours(item["metadata"]["name"].as_str().unwrap_or_default()));
    items
        .map(|item| {
            let metadata = &item["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let key = format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]));
            (key, (text(&metadata["labels"]["color"]), revision_of(item)))
        })
        .collect()
}

/// A watch that follows the history.
struct Follower {
    selection: usize,
    from: u64,
    reconnects: bool,
    /// Whether the initial state is still to come.
    lists: bool,
    /// The revision of its last bookmark.
    marked: u64,
    events: Option<BoxStream<'static, WatchEvent>>,
    seen: Vec<(&'static str, String, u64)>,
    /// Whether the history that it needed was compacted.
    expired: bool,
}

struct World {
    server: Option<TestServer>,
    /// Every state, by its revision.
    history: BTreeMap<u64, State>,
    followers: Vec<Follower>,
}

impl World {
    async fn begin() -> World {
        let server = TestServer::start().await;
        let list = server.get(&collection("")).await.expect(200);
        let history = BTreeMap::from([(revision_of(&list), state_of(&list))]);
        World { server: Some(server), history, followers: Vec::new() }
    }

    fn server(&self) -> &TestServer {
        self.server.as_ref().unwrap()
    }

    fn now(&self) -> (&u64, &State) {
        self.history.last_key_value().unwrap()
    }

    /// Returns a revision at this part of the history.
    fn revision(&self, part: f64) -> u64 {
        *self.history.keys().nth((self.history.len() as f64 * part) as usize).unwrap()
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Write { name, label, delete } => self.write(*name, LABELS[*label], *delete).await,
            Step::Restart => {
                // The watches of a server that stops end; the clients reconnect afterwards.
                for follower in &mut self.followers {
                    follower.drain(None).await;
                }
                self.server = Some(self.server.take().unwrap().restart().await);
            }
            Step::Compact => {
                let revision = *self.now().0;
                // An earlier compaction to there is no error here.
                let _ = self.server().compact(revision).await;
            }
            Step::Watch { selection, from, reconnects, lists } => {
                let from = self.revision(*from);
                self.followers.push(Follower {
                    selection: *selection,
                    from,
                    reconnects: *reconnects,
                    lists: *lists,
                    marked: 0,
                    events: None,
                    seen: Vec::new(),
                    expired: false,
                });
            }
            Step::Pages { limit } => self.pages(*limit).await,
            Step::Exact { at } => self.exact(*at).await,
        }
        for index in 0..self.followers.len() {
            let mut follower = self.followers.swap_remove(index);
            follower.catch_up(self).await;
            self.followers.push(follower);
            let last = self.followers.len() - 1;
            self.followers.swap(index, last);
        }
    }

    async fn write(&mut self, name: usize, label: &str, delete: bool) {
        let key = key_of(name);
        let namespace = NAMESPACES[name % NAMESPACES.len()];
        let (all, one) = (collection(namespace), format!("{}/m{name}", collection(namespace)));
        let labels = if label.is_empty() { json!({}) } else { json!({ "color": label }) };
        let data = json!({ "number": self.history.len().to_string() });
        let body = json!({ "metadata": { "name": format!("m{name}"), "labels": labels }, "data": data });
        let mut state = self.now().1.clone();
        let exists = state.contains_key(&key);
        if exists && delete {
            self.server().delete(&one, None).await.expect(200);
            self.server().get(&one).await.expect(404);
            state.remove(&key);
            let list = self.server().get(&collection("")).await.expect(200);
            assert_eq!(state_of(&list), state);
            self.history.insert(revision_of(&list), state);
            return;
        }
        let written = if exists {
            self.server().put(&one, body).await.expect(200)
        } else {
            self.server().post(&all, body).await.expect(201)
        };
        let revision = revision_of(&written);
        // A client that has a response reads the state of it.
        assert_eq!(self.server().get(&one).await.expect(200), written);
        state.insert(key, (label.to_owned(), revision));
        let list = self.server().get(&collection("")).await.expect(200);
        assert_eq!((state_of(&list), revision_of(&list)), (state.clone(), revision));
        self.history.insert(revision, state);
    }

    async fn pages(&mut self, limit: usize) {
        let mut pages = State::new();
        let (mut token, mut pinned) = (String::new(), None);
        let expected = self.now().1.clone();
        for page in 0.. {
            let path = format!("{}?limit={limit}&continue={token}", collection(""));
            let list = self.server().get(&path).await.expect(200);
            assert_eq!(*pinned.get_or_insert(revision_of(&list)), revision_of(&list), "all pages are of one revision");
            for (key, object) in state_of(&list) {
                assert!(pages.insert(key, object).is_none(), "nothing comes twice");
            }
            token = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                break;
            }
            self.write(page % 6, LABELS[page % 3], page % 2 == 0).await;
        }
        assert_eq!(pages, expected);
    }

    async fn exact(&self, at: f64) {
        let revision = self.revision(at);
        let path = format!("{}?resourceVersionMatch=Exact&resourceVersion={revision}", collection(""));
        let answer = self.server().get(&path).await;
        if answer.code == 410 {
            assert!(revision < self.server().compacted(), "what is not compacted can be read");
            return;
        }
        assert_eq!(state_of(&answer.expect(200)), self.history[&revision]);
    }

    /// Returns the events of a selection's watch from a revision up to now.
    fn expected(&self, selection: usize, from: u64) -> Vec<(&'static str, String, u64)> {
        let selected = |state: &State| selected(selection, state);
        let mut before = selected(&self.history[&from]);
        let mut events = Vec::new();
        for (revision, state) in self.history.range(from + 1..) {
            let after = selected(state);
            for key in before.keys().filter(|key| !after.contains_key(*key)) {
                events.push(("DELETED", key.clone(), *revision));
            }
            for (key, object) in &after {
                match before.get(key) {
                    None => events.push(("ADDED", key.clone(), *revision)),
                    Some(old) if old != object => events.push(("MODIFIED", key.clone(), *revision)),
                    Some(_) => {}
                }
            }
            before = after;
        }
        events
    }
}

/// Returns the selected part of a state.
fn selected(selection: usize, state: &State) -> State {
    let (_, _, selects) = SELECTIONS[selection];
    let chosen = state.iter().filter(|(key, (label, _))| selects(key, label));
    chosen.map(|(key, object)| (key.clone(), object.clone())).collect()
}

impl Follower {
    /// Begins a watch with initial events: they are the present state, and everything after the bookmark is new.
    async fn list(&mut self, world: &World) {
        let (namespace, query, _) = SELECTIONS[self.selection];
        let stream = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
        let path = format!("{}?watch=1&{stream}{query}", collection(namespace));
        let mut events = world.server().watch(&path).await;
        let mut state = BTreeMap::new();
        self.marked = loop {
            let event = tokio::time::timeout(Duration::from_secs(300), events.next()).await.unwrap().unwrap();
            match event {
                WatchEvent::Added(object) if is_ours(&object.header.name) => {
                    let key = format!("{}/{}", object.header.namespace, object.header.name);
                    assert!(state.insert(key, object.revision).is_none(), "no event comes twice");
                }
                WatchEvent::Added(_) => {}
                WatchEvent::Bookmark { revision, initial_events_end } => {
                    assert!(initial_events_end);
                    break revision;
                }
                other => panic!("{other:?}"),
            }
        };
        let (now, all) = world.now();
        let expected = selected(self.selection, all).into_iter().map(|(key, (_, revision))| (key, revision));
        assert_eq!(state, expected.collect(), "{self}");
        assert!(self.marked >= *now, "a state is not older than what was acknowledged");
        (self.from, self.lists, self.events) = (*now, false, Some(events));
    }

    /// Starts the watch if there is none, and reads its events so far.
    async fn catch_up(&mut self, world: &World) {
        if self.expired {
            return;
        }
        if self.lists {
            self.list(world).await;
        }
        if self.events.is_none() {
            let (namespace, query, _) = SELECTIONS[self.selection];
            let after = self.seen.last().map_or(self.from, |(_, _, revision)| *revision).max(self.marked);
            let path =
                format!("{}?watch=1&allowWatchBookmarks=true&resourceVersion={after}{query}", collection(namespace));
            self.events = world.server().try_watch(&path).await;
        }
        let expected = world.expected(self.selection, self.from);
        self.drain(Some(expected.len())).await;
        if !self.expired {
            assert_eq!(self.seen, expected, "{self}");
        }
        if self.reconnects {
            self.events = None;
        }
    }

    /// Reads up to so many events in all, or the rest of a watch that ends.
    async fn drain(&mut self, count: Option<usize>) {
        let Some(events) = &mut self.events else {
            self.expired |= count.is_some();
            return;
        };
        while count.is_none_or(|count| self.seen.len() < count) {
            let patience = if count.is_some() { Duration::from_secs(300) } else { Duration::from_millis(1) };
            let Ok(event) = tokio::time::timeout(patience, events.next()).await else {
                assert!(count.is_none(), "{:?} and then nothing", self.seen);
                break;
            };
            let (word, object) = match event {
                Some(WatchEvent::Added(object)) => ("ADDED", object),
                Some(WatchEvent::Modified(object)) => ("MODIFIED", object),
                Some(WatchEvent::Deleted(object)) => ("DELETED", object),
                Some(WatchEvent::Bookmark { revision, .. }) => {
                    assert!(revision >= self.marked, "bookmarks never go back");
                    self.marked = revision;
                    continue;
                }
                Some(WatchEvent::Error(status)) => {
                    assert_eq!(status.code, 410);
                    self.expired = true;
                    return;
                }
                None => break,
            };
            assert!(object.revision > self.marked, "what a bookmark has passed does not come any more");
            if !is_ours(&object.header.name) {
                continue;
            }
            self.seen.push((word, format!("{}/{}", object.header.namespace, object.header.name), object.revision));
        }
        if count.is_none() {
            self.events = None;
        }
    }
}

impl std::fmt::Display for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "selection {:?} from {}", SELECTIONS[self.selection].1, self.from)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn readers_see_one_history(steps in prop::collection::vec(step(), 10..60)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::begin().await;
            for step in &steps {
                world.take(step).await;
            }
            // Without compaction, no watch whose start was in the window got 410.
            if !steps.iter().any(|step| matches!(step, Step::Compact)) {
                prop_assert!(world.followers.iter().all(|follower| !follower.expired));
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_watch_list_is_the_state_and_then_the_history() {
    let server = TestServer::start().await;
    let maps = collection("default");
    let body = |name: &str| json!({ "metadata": { "name": name, "labels": { "color": "red" } } });
    for name in ["m1", "m2", "m3"] {
        server.post(&maps, body(name)).await.expect(201);
    }
    let list = server.get(&format!("{maps}?labelSelector=color%3Dred")).await.expect(200);
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
                 &labelSelector=color%3Dred";
    let mut events = server.watch(&format!("{maps}?{query}")).await;
    let mut state = State::new();
    let marked = loop {
        match events.next().await.unwrap() {
            WatchEvent::Added(object) => {
                state.insert(object.key().to_string(), ("red".to_owned(), object.revision));
            }
            WatchEvent::Bookmark { revision, initial_events_end } => {
                assert!(initial_events_end);
                break revision;
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(state, state_of(&list));
    assert_eq!(marked, revision_of(&list));
    server.delete(&format!("{maps}/m2"), None).await.expect(200);
    assert_eq!(crate::server::next(&mut events).await, "DELETED m2");
}

#[tokio::test]
async fn what_is_compacted_is_410() {
    let server = TestServer::start().await;
    let maps = collection("default");
    for name in ["a", "b", "c"] {
        server.post(&maps, json!({ "metadata": { "name": name } })).await.expect(201);
    }
    let first = server.get(&format!("{maps}?limit=1")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let written = server.post(&maps, json!({ "metadata": { "name": "d" } })).await.expect(201);
    server.compact(revision_of(&written)).await.unwrap();
    let page = server.get(&format!("{maps}?limit=1&continue={token}")).await;
    assert_eq!((page.code, page.body["reason"].as_str()), (410, Some("Expired")));
    let fresh = page.body["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{maps}?limit=2&continue={fresh}")).await.expect(200);
    let names = rest["items"].as_array().unwrap().iter().map(|i| i["metadata"]["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["b", "c"], "goes on in the newest state");
    assert_eq!((revision_of(&rest), &rest["metadata"]["remainingItemCount"]), (revision_of(&written), &json!(1)));
    let last = rest["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{maps}?limit=2&continue={last}")).await.expect(200);
    assert_eq!(last["items"][0]["metadata"]["name"], "d", "in pages of one state again");
    let old = format!("{maps}?resourceVersionMatch=Exact&resourceVersion={}", revision_of(&first));
    assert_eq!(server.get(&old).await.code, 410);
}
