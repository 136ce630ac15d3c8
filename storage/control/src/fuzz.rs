//! The door of the fuzz target to the messages between the nodes of a volume.

use crate::replica::wire::{Answer, Entry, Hello, decode_entries, encode_entries};

/// Returns a frame of entries.
pub fn sample() -> Vec<u8> {
    encode_entries(&[Entry { index: 1, digest: Some([7; 32]) }, Entry { index: 4, digest: None }])
}

/// Decodes entries and messages; what is decoded is decoded again from its encoding.
pub fn messages(input: &[u8]) {
    const CHUNKS: u64 = 1 << 20;
    if let Ok(entries) = decode_entries(input, 0, CHUNKS) {
        let again = decode_entries(&encode_entries(&entries), 0, CHUNKS);
        assert_eq!(again, Ok(entries), "entries survive their encoding");
    }
    let _ = serde_json::from_slice::<Hello>(input);
    let _ = serde_json::from_slice::<Answer>(input);
}
