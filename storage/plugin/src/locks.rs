//! Locks by name: calls on one volume follow each other, calls on different volumes do not wait.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};

/// The time that a call waits for another one; its caller repeats it later.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    held: Mutex<BTreeSet<String>>,
    released: Condvar,
}

#[derive(Clone, Default)]
pub struct Locks(Arc<State>);

/// Held locks; they are released with it.
pub struct Held {
    state: Arc<State>,
    names: BTreeSet<String>,
}

impl Locks {
    /// Takes all locks at once, so that no two calls wait for each other in a circle.
    pub fn hold(&self, names: impl IntoIterator<Item = String>) -> Result<Held> {
        let names: BTreeSet<String> = names.into_iter().collect();
        let held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |held: &mut BTreeSet<String>| !held.is_disjoint(&names);
        let waited = self.0.released.wait_timeout_while(held, PATIENCE, busy);
        let (mut held, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let names: Vec<String> = names.into_iter().collect();
            return Err(Error::Aborted(format!("another call works on {}", names.join(", "))));
        }
        held.extend(names.iter().cloned());
        Ok(Held { state: Arc::clone(&self.0), names })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.state.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|name| !self.names.contains(name));
        self.state.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_free_again_when_its_holder_is_gone() {
        let locks = Locks::default();
        let first = locks.hold(["a".to_owned(), "b".to_owned()]).unwrap();
        let _other = locks.hold(["c".to_owned()]).unwrap();
        let waiting = {
            let locks = locks.clone();
            std::thread::spawn(move || locks.hold(["b".to_owned()]).map(drop))
        };
        drop(first);
        waiting.join().unwrap().unwrap();
    }
}
