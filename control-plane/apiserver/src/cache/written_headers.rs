//! The headers of objects on their way through the store: whoever writes an object has read it already, and the feed,
//! which sees it come back, need not read it again.
//!
//! A header is found by where the bytes of its object lie. It is kept together with these bytes, so that nothing else
//! can lie there meanwhile. What is not found is read: nothing depends on a header being here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use corten_meta::Header;

#[derive(Default)]
pub struct Handover(Mutex<HashMap<usize, (Bytes, Header)>>);

impl Handover {
    /// Leaves the header of an object that is about to be written. It goes with the result, unless that is a commit.
    pub fn leave(&self, bytes: &Bytes, header: &Header) -> Left<'_> {
        self.lock().insert(place(bytes), (bytes.clone(), header.clone()));
        Left { handover: self, place: Some(place(bytes)) }
    }

    /// The header of the object with these very bytes, if it was left here.
    pub fn take(&self, bytes: &Bytes) -> Option<Header> {
        let (whole, header) = self.lock().remove(&place(bytes))?;
        (whole.len() == bytes.len()).then_some(header)
    }

    /// Forgets all: nobody will come for them.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, (Bytes, Header)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(bytes: &Bytes) -> usize {
    bytes.as_ptr() as usize
}

/// A header that was left, and whose object is not yet written.
pub struct Left<'a> {
    handover: &'a Handover,
    place: Option<usize>,
}

impl Left<'_> {
    /// The object is written, so the feed will come for its header.
    pub fn written(mut self) {
        self.place = None;
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.handover.lock().remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_taken_once_and_only_of_its_own_bytes() {
        let handover = Handover::default();
        let bytes = Bytes::from("{\"a\":1}".to_owned());
        let same = Bytes::from("{\"a\":1}".to_owned());
        let header = Header { name: "x".to_owned(), ..Header::default() };
        handover.leave(&bytes, &header).written();
        assert_eq!(handover.take(&same), None);
        assert_eq!(handover.take(&bytes), Some(header.clone()));
        assert_eq!(handover.take(&bytes), None);
        drop(handover.leave(&bytes, &header));
        assert_eq!(handover.take(&bytes), None, "what was not written is not there");
        handover.leave(&bytes, &header).written();
        assert_eq!(handover.take(&bytes.slice(..3)), None, "a part is not the whole");
    }
}
