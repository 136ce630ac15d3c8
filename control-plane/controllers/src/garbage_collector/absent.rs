//! Owners whose deletion was observed.
//!
//! A uid is never reused, so a deleted object stays deleted, also when its resource is no longer served and the server
//! cannot be asked: with a CustomResourceDefinition go its objects, and all that they own. Only observed deletions are
//! remembered, never conclusions.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

/// The most deletions that are remembered, the newest.
const MOST: usize = 10_000;

#[derive(Default)]
pub struct Absent(Mutex<(BTreeSet<String>, VecDeque<String>)>);

impl Absent {
    pub fn insert(&self, uid: &str) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, order) = &mut *held;
        if !known.insert(uid.to_owned()) {
            return;
        }
        order.push_back(uid.to_owned());
        if order.len() > MOST
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_remembered_once() {
        let absent = Absent::default();
        for number in 0..=MOST {
            absent.insert(&number.to_string());
            absent.insert(&number.to_string());
        }
        assert!(!absent.contains("0"));
        assert!((1..=MOST).all(|number| absent.contains(&number.to_string())));
    }
}
