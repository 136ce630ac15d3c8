//! Repositories in memory and in directories: killed at every step, used in every order, damaged, and opened with the
//! wrong key.

mod memory;
mod model;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use corten_backup::Secret;
use jiff::{SignedDuration, Timestamp};

use crate::image::CHUNK_BYTES;
use crate::session::SESSIONS;
use crate::{Clock, Directory, Error, Header, Objects, Owner, Repository, Sent};
use memory::Memory;

/// A clock that a test moves.
#[derive(Clone)]
struct TestClock(Arc<Mutex<Timestamp>>);

impl TestClock {
    fn new() -> TestClock {
        TestClock(Arc::new(Mutex::new("2026-11-18T00:00:00Z".parse().unwrap())))
    }

    fn advance(&self, hours: i64) {
        let mut now = self.0.lock().unwrap();
        *now = now.checked_add(SignedDuration::from_hours(hours)).unwrap();
    }

    fn clock(&self) -> Clock {
        let now = self.0.clone();
        Arc::new(move || *now.lock().unwrap())
    }
}

fn secret(byte: u8) -> Secret {
    Secret::key_file(vec![byte; 32]).unwrap()
}

async fn open(objects: Arc<dyn Objects>) -> Repository {
    Repository::open(objects, &secret(1), TestClock::new().clock(), Owner::default()).await.unwrap()
}

/// Makes an image of chunks that begin with these bytes; 0 is a hole. The last chunk is half a chunk.
fn image(chunks: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes(chunks)).unwrap();
    for (index, byte) in (0..).zip(chunks).filter(|(_, byte)| **byte != 0) {
        file.write_all_at(&[*byte; 4096], index * CHUNK_BYTES).unwrap();
    }
    file
}

fn bytes(chunks: &[u8]) -> u64 {
    (chunks.len() as u64 * CHUNK_BYTES).saturating_sub(CHUNK_BYTES / 2)
}

fn header(chunks: &[u8]) -> Header {
    Header {
        created: "2026-11-18T00:00:00Z".to_owned(),
        namespace: "shop".to_owned(),
        claim: "data".to_owned(),
        bytes: bytes(chunks),
        block: false,
        file_system: Some("ext4".to_owned()),
    }
}

async fn back_up(repository: &Repository, id: &str, chunks: &[u8]) -> Result<Sent, Error> {
    repository.back_up(id, header(chunks), image(chunks), &[]).await
}

fn content(mut file: &File) -> Vec<u8> {
    use std::io::Seek;
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

/// Asserts that a backup restores to the content of an image.
async fn assert_restores(repository: &Repository, id: &str, chunks: &[u8]) {
    let target = tempfile::tempfile().unwrap();
    target.set_len(bytes(chunks)).unwrap();
    let found = repository.restore(id, target.try_clone().unwrap()).await.unwrap();
    assert_eq!(found, header(chunks));
    assert!(content(&target) == content(&image(chunks)), "{id} differs");
}

#[tokio::test]
async fn a_backup_is_restored_and_the_next_one_sends_only_changes() {
    let folder = tempfile::tempdir().unwrap();
    let repository = open(Arc::new(Directory::open(folder.path()).unwrap())).await;
    let first = back_up(&repository, "a", &[1, 0, 2, 3]).await.unwrap();
    assert_eq!(first.data, 3 * CHUNK_BYTES - CHUNK_BYTES / 2);
    // The same chunks at other offsets, and one that is new.
    let second = back_up(&repository, "b", &[3, 2, 1, 4]).await.unwrap();
    assert!(second.sent > 0 && second.sent < first.sent, "{second:?} after {first:?}");
    assert_restores(&repository, "a", &[1, 0, 2, 3]).await;
    assert_restores(&repository, "b", &[3, 2, 1, 4]).await;
    // Another node opens it, and a backup of an id that exists is not made twice.
    let again = open(Arc::new(Directory::open(folder.path()).unwrap())).await;
    assert_eq!(again.list().await.unwrap(), ["a", "b"]);
    assert_eq!(back_up(&again, "a", &[9]).await.unwrap(), Sent::default());
    assert_restores(&again, "a", &[1, 0, 2, 3]).await;
    assert_eq!(again.verify().await.unwrap().problems, Vec::<String>::new());
}

#[tokio::test]
async fn one_percent_of_changes_sends_at_most_three_percent() {
    let objects = Memory::new();
    let repository = open(objects.clone()).await;
    let bytes = 100 * CHUNK_BYTES;
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    // Data that cannot be compressed, so that the count is honest: a part of each chunk, for the sake of time.
    let mut state = 1_u64;
    let mut block = vec![0; 64 << 10];
    let mut fill = |file: &File, from: u64, to: u64| {
        for index in from..to {
            for word in block.as_chunks_mut::<8>().0 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *word = (state ^ (state >> 29)).to_le_bytes();
            }
            file.write_all_at(&block, index << 20).unwrap();
        }
    };
    fill(&file, 0, 100);
    let header = Header { bytes, ..header(&[]) };
    let back_up = async |id: &str, parents: &[String]| {
        repository.back_up(id, header.clone(), file.try_clone().unwrap(), parents).await.unwrap()
    };
    let first = back_up("a", &[]).await;
    assert!(first.sent >= 100 * (64 << 10));
    fill(&file, 40, 41);
    objects.put.store(0, Ordering::SeqCst);
    let second = back_up("b", &["a".to_owned()]).await;
    let put = objects.put.load(Ordering::SeqCst) as u64;
    assert!(put * 100 <= 3 * first.sent && second.sent <= put, "{put} bytes were put");
}

#[tokio::test]
async fn a_backup_that_is_killed_at_any_step_is_never_seen_and_harms_no_other() {
    let chunks = [5, 1, 6, 0, 7];
    for step in 0.. {
        let objects = Memory::new();
        let clock = TestClock::new();
        let repository = Repository::open(objects.clone(), &secret(1), clock.clock(), Owner::default()).await.unwrap();
        back_up(&repository, "old", &[1, 2]).await.unwrap();
        objects.kill_after(step);
        let done = back_up(&repository, "new", &chunks).await;
        let was_killed = objects.is_killed();
        objects.revive();
        match repository.list().await.unwrap().contains(&"new".to_owned()) {
            true => assert_restores(&repository, "new", &chunks).await,
            false => assert!(done.is_err(), "step {step} was confirmed"),
        }
        // The same backup is made again, and everything that the killed one left is pruned.
        back_up(&repository, "new", &chunks).await.unwrap();
        repository.delete("old").await.unwrap();
        clock.advance(2);
        repository.prune().await.unwrap();
        assert_eq!(objects.names("chunks/").len(), 4);
        assert_eq!(objects.names(SESSIONS), Vec::<String>::new());
        assert_restores(&repository, "new", &chunks).await;
        if !was_killed {
            assert!(step > 6, "a backup has more steps than {step}");
            return;
        }
    }
}

#[tokio::test]
async fn a_prune_that_is_killed_at_any_step_deletes_nothing_that_is_named() {
    for step in 0.. {
        let objects = Memory::new();
        let clock = TestClock::new();
        let repository = Repository::open(objects.clone(), &secret(1), clock.clock(), Owner::default()).await.unwrap();
        back_up(&repository, "kept", &[1, 2, 3]).await.unwrap();
        back_up(&repository, "gone", &[3, 4, 5, 6]).await.unwrap();
        repository.delete("gone").await.unwrap();
        objects.kill_after(step);
        let pruned = repository.prune().await;
        let was_killed = objects.is_killed();
        objects.revive();
        assert_restores(&repository, "kept", &[1, 2, 3]).await;
        if !was_killed {
            assert_eq!(pruned.unwrap().kept, 3);
            assert!(step > 4, "a prune has more steps than {step}");
            return;
        }
    }
}

#[tokio::test]
async fn a_prune_runs_alone_and_a_killed_session_does_not_stop_it_for_ever() {
    let objects = Memory::new();
    let clock = TestClock::new();
    let repository = Repository::open(objects.clone(), &secret(1), clock.clock(), Owner::default()).await.unwrap();
    back_up(&repository, "a", &[1, 2]).await.unwrap();
    // A backup that is killed after its session and a chunk.
    objects.kill_after(2);
    back_up(&repository, "b", &[8, 9]).await.unwrap_err();
    objects.revive();
    let refused = repository.prune().await.unwrap_err();
    assert!(matches!(refused, Error::Busy(_)), "{refused}");
    assert_eq!(objects.names("chunks/").len(), 3);
    clock.advance(2);
    assert_eq!(repository.prune().await.unwrap().deleted, 1);
    // A prune that was killed stops backups until it is taken for killed.
    objects.kill_after(1);
    repository.prune().await.unwrap_err();
    objects.revive();
    let refused = back_up(&repository, "c", &[1]).await.unwrap_err();
    assert!(refused.to_string().contains("a prune of the repository is under way"), "{refused}");
    // A restore goes on beside it.
    assert_restores(&repository, "a", &[1, 2]).await;
    // The next process of the same node knows at once that it was killed.
    let owner = Owner { process: "next".to_owned(), ..Owner::default() };
    let next = Repository::open(objects.clone(), &secret(1), clock.clock(), owner).await.unwrap();
    back_up(&next, "c", &[1]).await.unwrap();
}

#[tokio::test]
async fn wrong_keys_foreign_places_and_damage_are_named() {
    let objects = Memory::new();
    let repository = open(objects.clone()).await;
    back_up(&repository, "a", &[1, 2]).await.unwrap();
    let open_with = async |byte: u8| {
        Repository::open(objects.clone(), &secret(byte), TestClock::new().clock(), Owner::default()).await
    };
    assert!(matches!(open_with(2).await, Err(Error::WrongSecret)));
    let foreign = Memory::new();
    foreign.put("photos/cat", bytes::Bytes::from_static(b"x")).await.unwrap();
    let refused =
        Repository::open(foreign, &secret(1), TestClock::new().clock(), Owner::default()).await.err().unwrap();
    assert_eq!(refused.to_string(), "the place is neither empty nor a repository: it holds photos/cat");
    // Chunks that change places, and a chunk that is missing.
    let chunks = objects.names("chunks/");
    let other = objects.objects.lock().unwrap()[&chunks[1]].clone();
    objects.objects.lock().unwrap().insert(chunks[0].clone(), other);
    objects.objects.lock().unwrap().remove(&chunks[1]);
    let mut problems = repository.verify().await.unwrap().problems;
    problems.sort_by_key(|problem| problem.contains("missing"));
    assert_eq!(problems.len(), 2);
    assert!(problems[0].contains("it was changed, or belongs to another repository"), "{problems:?}");
    assert!(problems[1].contains("it is missing"), "{problems:?}");
    let target = image(&[0, 0]);
    assert!(matches!(repository.restore("a", target).await, Err(Error::Damaged { .. })));
    // A manifest that cannot be read keeps every chunk.
    objects.objects.lock().unwrap().insert("backups/a".to_owned(), bytes::Bytes::from_static(b"cvb1 nonsense"));
    assert!(matches!(repository.prune().await, Err(Error::Damaged { .. })));
    assert_eq!(objects.names("chunks/").len(), 1);
    for id in ["", "../a", "A", "a/b"] {
        assert!(matches!(repository.manifest(id).await, Err(Error::Invalid(_))), "{id}");
    }
    assert!(matches!(repository.manifest("none").await, Err(Error::NoBackup(_))));
}

#[tokio::test]
async fn a_full_place_loses_nothing() {
    let objects = Memory::new();
    let repository = open(objects.clone()).await;
    back_up(&repository, "a", &[1, 2]).await.unwrap();
    objects.kill_after(2);
    let full = back_up(&repository, "b", &[3, 4, 5]).await.unwrap_err();
    assert_eq!((full.to_string().as_str(), full.reason()), ("no space left", "RepositoryUnavailable"));
    objects.revive();
    assert_eq!(repository.list().await.unwrap(), ["a"]);
    assert_restores(&repository, "a", &[1, 2]).await;
}

#[tokio::test]
async fn a_smaller_volume_is_refused() {
    let repository = open(Memory::new()).await;
    back_up(&repository, "a", &[1, 2, 3]).await.unwrap();
    let refused = repository.restore("a", image(&[0])).await.unwrap_err();
    assert!(refused.to_string().contains("and the volume only"), "{refused}");
}
