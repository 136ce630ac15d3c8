//! A place in memory that can be killed after any number of writes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::{Error, Result};
use crate::objects::Objects;

#[derive(Default)]
pub struct Memory {
    pub objects: Mutex<BTreeMap<String, Bytes>>,
    /// The writes and deletions that succeed before everything fails, as after a kill.
    left: AtomicUsize,
    /// The bytes that were put.
    pub put: AtomicUsize,
}

impl Memory {
    pub fn new() -> Arc<Memory> {
        Arc::new(Memory { left: AtomicUsize::new(usize::MAX), ..Memory::default() })
    }

    /// Lets everything fail after `writes` more writes.
    pub fn kill_after(&self, writes: usize) {
        self.left.store(writes, Ordering::SeqCst);
    }

    pub fn revive(&self) {
        self.kill_after(usize::MAX);
    }

    /// Reports whether the limit was reached.
    pub fn is_killed(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    pub fn names(&self, prefix: &str) -> Vec<String> {
        self.objects.lock().unwrap().keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    fn alive(&self) -> Result<()> {
        match self.is_killed() {
            true => Err(Error::Place("no space left".to_owned())),
            false => Ok(()),
        }
    }

    /// Counts a write.
    fn write(&self) -> Result<()> {
        let spend = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        let spent = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
        spent.map(drop).map_err(|_| Error::Place("no space left".to_owned()))
    }
}

impl Objects for Memory {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> BoxFuture<'a, Result<()>> {
        async move {
            self.write()?;
            self.put.fetch_add(bytes.len(), Ordering::SeqCst);
            self.objects.lock().unwrap().insert(name.to_owned(), bytes);
            Ok(())
        }
        .boxed()
    }

    fn get<'a>(&'a self, name: &'a str, most: usize) -> BoxFuture<'a, Result<Option<Bytes>>> {
        async move {
            self.alive()?;
            let found = self.objects.lock().unwrap().get(name).cloned();
            assert!(found.as_ref().is_none_or(|bytes| bytes.len() <= most), "{name} is larger than {most}");
            Ok(found)
        }
        .boxed()
    }

    fn exists<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<bool>> {
        async move {
            self.alive()?;
            Ok(self.objects.lock().unwrap().contains_key(name))
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str, most: usize) -> BoxFuture<'a, Result<Vec<String>>> {
        async move {
            self.alive()?;
            Ok(self.names(prefix).into_iter().take(most).collect())
        }
        .boxed()
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            self.write()?;
            self.objects.lock().unwrap().remove(name);
            Ok(())
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async move { self.alive() }.boxed()
    }
}
