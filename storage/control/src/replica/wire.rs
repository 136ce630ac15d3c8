//! The messages between the nodes of a volume: frames with a length and a limit, each within a deadline.
//!
//! ```text
//! standby  Hello          the volume, its epoch, and the increment that the copy has
//! primary  Answer         refused, unchanged, or an increment
//! primary  entries        up to 64 chunks with their digests   ┐ until a frame
//! standby  wanted         those of them that the copy lacks    │ of entries
//! primary  chunks         one frame each                       ┘ is empty
//! standby  KEPT           the increment is durable
//! ```

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The time in which a frame must arrive, or be taken.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most bytes of a message.
const MOST_MESSAGE: usize = 64 << 10;
/// The chunks of one frame of entries.
pub const BATCH: usize = 64;
const ENTRY: usize = 8 + 32;
/// The frame by which a standby says that an increment is durable.
pub const KEPT: &[u8] = b"kept";

/// The first message of a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hello {
    /// The name of the VolumeReplica.
    pub replica: String,
    pub epoch: u64,
    /// The increment that the copy has; empty if it has none.
    pub base: String,
}

/// The answer of a primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    Refused(String),
    /// The volume has the content of the copy still.
    Unchanged,
    Increment(Header),
}

/// The description of an increment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    pub generation: String,
    /// The driver's record of the volume.
    pub record: String,
    /// The most bytes that the increment changes.
    pub changed: u64,
    /// Whether chunks that are not sent are zero, and not as they were.
    pub is_whole: bool,
}

/// A chunk of an increment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub index: u64,
    /// The digest of its content; none of a chunk of zeros.
    pub digest: Option<[u8; 32]>,
}

/// Returns the digest of a chunk.
pub fn digest(chunk: &[u8]) -> [u8; 32] {
    Sha256::digest(chunk).into()
}

/// Sends a message.
pub async fn send<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &T) -> Result<(), String> {
    let bytes = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    write(stream, &bytes).await
}

/// Receives a message.
pub async fn receive<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, String> {
    let bytes = read(stream, MOST_MESSAGE).await?;
    serde_json::from_slice(&bytes).map_err(|error| format!("the peer's message is not valid: {error}"))
}

/// Writes a frame.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), String> {
    let length = u32::try_from(bytes.len()).map_err(|_| "the frame is too long".to_owned())?;
    let written = async {
        stream.write_all(&length.to_be_bytes()).await?;
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    within(written).await
}

/// Reads a frame of limited length.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), most: usize) -> Result<Vec<u8>, String> {
    let mut length = [0; 4];
    within(stream.read_exact(&mut length)).await?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > most {
        return Err(format!("the peer's frame has {length} bytes, and at most {most} are allowed"));
    }
    let mut bytes = vec![0; length];
    within(stream.read_exact(&mut bytes)).await?;
    Ok(bytes)
}

async fn within<T>(work: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done.map_err(|error| format!("the connection failed: {error}")),
        Err(_) => Err(format!("the peer was silent for {} s", PATIENCE.as_secs())),
    }
}

/// Encodes entries.
pub fn encode_entries(entries: &[Entry]) -> Vec<u8> {
    let bytes = entries.iter().flat_map(|entry| {
        let digest = entry.digest.unwrap_or_default();
        entry.index.to_be_bytes().into_iter().chain(digest)
    });
    bytes.collect()
}

/// Decodes entries of a volume with a number of chunks: their indexes grow, from `next` on.
pub fn decode_entries(bytes: &[u8], next: u64, chunks: u64) -> Result<Vec<Entry>, String> {
    let refused = || "the peer's list of chunks is not valid".to_owned();
    if !bytes.len().is_multiple_of(ENTRY) || bytes.len() > ENTRY * BATCH {
        return Err(refused());
    }
    let mut entries: Vec<Entry> = Vec::new();
    for entry in bytes.chunks_exact(ENTRY) {
        let (index, digest) = entry.split_at(8);
        let index = u64::from_be_bytes(index.try_into().map_err(|_| refused())?);
        let digest: [u8; 32] = digest.try_into().map_err(|_| refused())?;
        let least = entries.last().map_or(next, |last| last.index + 1);
        if index < least || index >= chunks {
            return Err(refused());
        }
        entries.push(Entry { index, digest: Some(digest).filter(|digest| *digest != [0; 32]) });
    }
    Ok(entries)
}

/// Receives entries.
pub async fn read_entries(stream: &mut (impl AsyncRead + Unpin), next: u64, chunks: u64) -> Result<Vec<Entry>, String> {
    decode_entries(&read(stream, ENTRY * BATCH).await?, next, chunks)
}

/// Encodes the indexes of wanted chunks.
pub fn encode_wanted(wanted: &[u64]) -> Vec<u8> {
    wanted.iter().flat_map(|index| index.to_be_bytes()).collect()
}

/// Receives the indexes of wanted chunks, which are some of those that were offered.
pub async fn read_wanted(stream: &mut (impl AsyncRead + Unpin), offered: &[Entry]) -> Result<Vec<u64>, String> {
    let bytes = read(stream, 8 * BATCH).await?;
    let refused = || "the peer wants chunks that it was not offered".to_owned();
    let (numbers, rest) = bytes.as_chunks::<8>();
    let wanted: Vec<u64> = numbers.iter().map(|index| u64::from_be_bytes(*index)).collect();
    let is_offered = |index: &u64| offered.iter().any(|entry| entry.index == *index && entry.digest.is_some());
    match rest.is_empty() && wanted.is_sorted_by(|a, b| a < b) && wanted.iter().all(is_offered) {
        true => Ok(wanted),
        false => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_decoded_as_they_were_encoded_and_checked() {
        let entry = |index, byte| Entry { index, digest: Some([byte; 32]).filter(|_| byte > 0) };
        let entries = [entry(3, 1), entry(4, 0), entry(9, 2)];
        let bytes = encode_entries(&entries);
        assert_eq!(decode_entries(&bytes, 3, 10).unwrap(), entries);
        for (bytes, next, chunks) in [
            (&bytes[..], 4, 10),
            (&bytes[..], 0, 9),
            (&bytes[1..], 0, 10),
            (&encode_entries(&[entry(5, 1), entry(5, 1)])[..], 0, 10),
            (&encode_entries(&[entry(0, 1); BATCH + 1])[..], 0, 10),
            (&encode_entries(&[entry(u64::MAX, 1)])[..], 0, 10),
        ] {
            assert!(decode_entries(bytes, next, chunks).is_err(), "{} {next} {chunks}", bytes.len());
        }
        assert_eq!(decode_entries(&[], 0, 0).unwrap(), []);
    }

    #[tokio::test]
    async fn frames_have_limits() {
        let mut stream: &[u8] = &[0, 0, 0, 9, 1];
        assert!(read(&mut stream, 8).await.unwrap_err().contains("at most 8"));
        let mut short: &[u8] = &[0, 0, 0, 4, 1];
        assert!(read(&mut short, 8).await.is_err());
        let offered = [Entry { index: 1, digest: Some([1; 32]) }, Entry { index: 2, digest: None }];
        for (wanted, is_good) in [(&[1][..], true), (&[], true), (&[2], false), (&[3], false), (&[1, 1], false)] {
            let mut frame = Vec::new();
            write(&mut frame, &encode_wanted(wanted)).await.unwrap();
            assert_eq!(read_wanted(&mut frame.as_slice(), &offered).await.is_ok(), is_good, "{wanted:?}");
        }
        let mut hello: &[u8] = b"\0\0\0\x02{}";
        assert!(receive::<Hello>(&mut hello).await.unwrap_err().contains("is not valid"));
    }
}
