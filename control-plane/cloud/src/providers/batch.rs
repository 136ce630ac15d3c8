//! Batches: questions about single objects that are asked of the cloud together.
//!
//! An answer is never older than its asker permits: by default a fetch answers only the keys that were there when it began.
//! While one fetch is under way the next batch gathers, so that many questions cost few calls, and a single one does not
//! wait. An asker that names an earlier moment is answered by any fetch that began since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Duration, Instant};

use crate::provider::Error;

/// The time for which answers are usually held. A process that begins to lead forgets them.
pub const HELD: Duration = Duration::from_secs(60);

/// The answers of one fetch. A key without a value is an object that does not exist.
pub type Fetched<V> = Result<BTreeMap<String, V>, Error>;

/// Gathers questions about objects with string keys.
pub struct Batch<V> {
    /// The most keys of one fetch.
    most: usize,
    /// The time for which answers are held.
    hold: Duration,
    questions: Mutex<Vec<Question<V>>>,
    /// Held by the asker that fetches.
    turn: tokio::sync::Mutex<()>,
    /// The objects that fetches found, by their keys.
    held: Mutex<BTreeMap<String, Held<V>>>,
}

/// An object, and the moment at which the fetch that found it began.
struct Held<V> {
    began: Instant,
    value: V,
}

struct Question<V> {
    key: String,
    answer: oneshot::Sender<Answer<V>>,
}

type Answer<V> = Result<Option<V>, Error>;

impl<V: Clone> Batch<V> {
    /// Returns a batch that fetches at most so many keys at once.
    pub fn new(most: usize) -> Batch<V> {
        Batch::held_for(HELD, most)
    }

    /// Returns a batch whose answers are held for this time.
    pub fn held_for(hold: Duration, most: usize) -> Batch<V> {
        let held = Mutex::new(BTreeMap::new());
        Batch { most, hold, questions: Mutex::new(Vec::new()), turn: tokio::sync::Mutex::new(()), held }
    }

    /// Forgets the answers.
    pub fn forget(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns the object of a key as a fetch found it that began at this moment or later. No such fetch is older than
    /// the time for which answers are held. That an object does not exist is always asked.
    pub async fn get_since<'a>(
        &self,
        key: &str,
        since: Instant,
        fetch: impl Fn(Vec<String>) -> BoxFuture<'a, Fetched<V>>,
    ) -> Answer<V> {
        if let Some(found) = self.held_since(key, since) {
            return Ok(Some(found));
        }
        let answer = self.ask(key);
        // Others that are about to ask do so before the fetch.
        tokio::task::yield_now().await;
        let _turn = self.turn.lock().await;
        // The fetch that was waited for may have found it.
        if let Some(found) = self.held_since(key, since) {
            drop(answer);
            self.lock().retain(|question| !question.answer.is_closed());
            return Ok(Some(found));
        }
        self.answered(key, answer, fetch).await
    }

    /// Reports whether a fetch that began at this moment or later has found an object.
    pub fn has(&self, key: &str, since: Instant) -> bool {
        self.held_since(key, since).is_some()
    }

    fn held_since(&self, key: &str, since: Instant) -> Option<V> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(key).filter(|one| one.began >= since).map(|one| one.value.clone())
    }

    /// Holds the objects of a fetch, and forgets those of old ones.
    fn hold(&self, began: Instant, found: &BTreeMap<String, V>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, one| one.began.elapsed() < self.hold);
        held.extend(found.iter().map(|(key, value)| (key.clone(), Held { began, value: value.clone() })));
    }

    /// Returns the object of a key; `fetch` asks the cloud about several.
    pub async fn get<'a>(&self, key: &str, fetch: impl Fn(Vec<String>) -> BoxFuture<'a, Fetched<V>>) -> Answer<V> {
        let answer = self.ask(key);
        // Others that are about to ask do so before the fetch.
        tokio::task::yield_now().await;
        let _turn = self.turn.lock().await;
        self.answered(key, answer, fetch).await
    }

    /// Fetches until a question is answered. The caller has the turn.
    async fn answered<'a>(
        &self,
        key: &str,
        mut answer: oneshot::Receiver<Answer<V>>,
        fetch: impl Fn(Vec<String>) -> BoxFuture<'a, Fetched<V>>,
    ) -> Answer<V> {
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                // The asker that took the question went away.
                Err(TryRecvError::Closed) => answer = self.ask(key),
                Err(TryRecvError::Empty) => {}
            }
            self.answer_oldest(&fetch).await;
        }
    }

    fn ask(&self, key: &str) -> oneshot::Receiver<Answer<V>> {
        let (answer, answered) = oneshot::channel();
        self.lock().push(Question { key: key.to_owned(), answer });
        answered
    }

    async fn answer_oldest<'a>(&self, fetch: impl Fn(Vec<String>) -> BoxFuture<'a, Fetched<V>>) {
        let (keys, questions) = self.take_oldest();
        let began = Instant::now();
        let fetched = fetch(keys).await;
        if let Ok(found) = &fetched {
            self.hold(began, found);
        }
        for question in questions {
            let found = fetched.as_ref().map(|found| found.get(&question.key).cloned()).map_err(Clone::clone);
            // An asker that went away needs no answer.
            let _ = question.answer.send(found);
        }
    }

    /// Takes the oldest keys, with all questions about them.
    fn take_oldest(&self) -> (Vec<String>, Vec<Question<V>>) {
        let mut waiting = self.lock();
        let mut keys = BTreeSet::new();
        let mut is_taken = |question: &mut Question<V>| {
            let has_room = keys.len() < self.most;
            keys.contains(&question.key) || (has_room && keys.insert(question.key.clone()))
        };
        let taken: Vec<Question<V>> = waiting.extract_if(.., &mut is_taken).collect();
        (keys.into_iter().collect(), taken)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Question<V>>> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A cloud that counts its calls; keys that begin with `no` have no object.
    #[derive(Clone, Default)]
    struct Cloud(Arc<Mutex<Vec<Vec<String>>>>);

    impl Cloud {
        fn fetch(&self, keys: Vec<String>) -> BoxFuture<'static, Fetched<String>> {
            self.0.lock().unwrap().push(keys.clone());
            Box::pin(async move {
                tokio::task::yield_now().await;
                match keys.iter().any(|key| key == "bad") {
                    true => Err(Error::Failed("no".to_owned())),
                    false => Ok(keys
                        .into_iter()
                        .filter(|key| !key.starts_with("no"))
                        .map(|key| (key.clone(), key))
                        .collect()),
                }
            })
        }
    }

    #[tokio::test]
    async fn questions_that_wait_share_a_fetch() {
        let cloud = Cloud::default();
        let batch = Batch::new(3);
        let keys = ["a", "b", "none", "c", "d", "b"];
        let asked = keys.map(|key| batch.get(key, |keys| cloud.fetch(keys)));
        let answers = futures::future::join_all(asked).await;
        let answers: Vec<Option<String>> = answers.into_iter().map(Result::unwrap).collect();
        let found = |key: &str| Some(key.to_owned());
        assert_eq!(answers, [found("a"), found("b"), None, found("c"), found("d"), found("b")]);
        assert_eq!(*cloud.0.lock().unwrap(), [vec!["a", "b", "none"], vec!["c", "d"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_asker_may_permit_an_older_answer() {
        let cloud = Cloud::default();
        let batch = Batch::new(3);
        let start = Instant::now();
        let ask =
            async |key: &str, since: Instant| batch.get_since(key, since, |keys| cloud.fetch(keys)).await.unwrap();
        assert_eq!(ask("a", start).await.as_deref(), Some("a"));
        tokio::time::advance(Duration::from_secs(5)).await;
        let now = Instant::now();
        assert_eq!(ask("a", start).await.as_deref(), Some("a"));
        assert_eq!(cloud.0.lock().unwrap().len(), 1, "the fetch of the first question is recent enough");
        assert_eq!(ask("a", now).await.as_deref(), Some("a"));
        assert_eq!(cloud.0.lock().unwrap().len(), 2, "it is older than the asker permits");
        for _ in 0..2 {
            assert_eq!(ask("none", start).await, None);
        }
        assert_eq!(cloud.0.lock().unwrap().len(), 4, "an absent object may have been made");
        let several = futures::future::join_all((0..3).map(|_| ask("b", start))).await;
        assert!(several.iter().all(Option::is_some));
        assert_eq!(cloud.0.lock().unwrap().len(), 5, "those that waited take the answer of the first");
    }

    #[tokio::test]
    async fn a_failed_fetch_fails_its_questions_and_an_asker_that_goes_away_none() {
        let cloud = Cloud::default();
        let batch = Batch::new(10);
        batch.get("bad", |keys| cloud.fetch(keys)).await.unwrap_err();
        let fetch = |keys| cloud.fetch(keys);
        let mut first = Box::pin(batch.get("a", fetch));
        let mut second = Box::pin(batch.get("b", fetch));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        assert_eq!(second.await.unwrap(), Some("b".to_owned()));
    }
}
