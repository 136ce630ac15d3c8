//! The headers of objects that are being written: the writer of an object has parsed its header already, and the feed,
//! which gets the object back from the store, need not parse it again.
//!
//! A header is found by the address of its object's bytes. It is kept together with these bytes, so that no other
//! object can have that address. A missing header is parsed again: nothing depends on its presence.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use corten_meta::Header;

#[derive(Default)]
pub struct WrittenHeaders(Mutex<HashMap<usize, (Bytes, Header)>>);

impl WrittenHeaders {
    /// Adds the header of an object that is about to be written. It is removed again unless the write is committed.
    pub fn insert(&self, bytes: &Bytes, header: &Header) -> PendingHeader<'_> {
        self.lock().insert(address(bytes), (bytes.clone(), header.clone()));
        PendingHeader { headers: self, address: Some(address(bytes)) }
    }

    /// Takes the header of the object with these very bytes, if there is one.
    pub fn take(&self, bytes: &Bytes) -> Option<Header> {
        let (kept, header) = self.lock().remove(&address(bytes))?;
        (kept.len() == bytes.len()).then_some(header)
    }

    /// Removes all headers: the feed starts over and will not take them.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, (Bytes, Header)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(bytes: &Bytes) -> usize {
    bytes.as_ptr() as usize
}

/// A header whose object is not yet written.
pub struct PendingHeader<'a> {
    headers: &'a WrittenHeaders,
    address: Option<usize>,
}

impl PendingHeader<'_> {
    /// Keeps the header after the commit: the feed will take it.
    pub fn keep(mut self) {
        self.address = None;
    }
}

impl Drop for PendingHeader<'_> {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            self.headers.lock().remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_taken_once_and_only_with_its_own_bytes() {
        let headers = WrittenHeaders::default();
        let bytes = Bytes::from("{\"a\":1}".to_owned());
        let same = Bytes::from("{\"a\":1}".to_owned());
        let header = Header { name: "x".to_owned(), ..Header::default() };
        headers.insert(&bytes, &header).keep();
        assert_eq!(headers.take(&same), None);
        assert_eq!(headers.take(&bytes), Some(header.clone()));
        assert_eq!(headers.take(&bytes), None);
        drop(headers.insert(&bytes, &header));
        assert_eq!(headers.take(&bytes), None, "a header of a failed write is removed");
        headers.insert(&bytes, &header).keep();
        assert_eq!(headers.take(&bytes.slice(..3)), None, "a part is not the object");
    }
}
