//! The standby's side: gets an increment from the primary, and makes it the content of the copy.
//!
//! *Invariant: every chunk is compared with its digest before it is written, and the copy changes only by the commit of a
//! whole increment.*

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_snapshots::VolumeReplica;
use corten_storage_backup::{CHUNK_BYTES, chunk_count, read_chunk, write_chunk};
use rustix::fs::FallocateFlags;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::peer::PeerIdentity;
use super::wire::{self, Answer, Entry, Hello, KEPT};
use super::{ReplicaData, blocking};

/// The time in which a connection must be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Gets an increment over the network; returns the bytes that were sent.
pub async fn pull(
    identity: &PeerIdentity,
    data: &Arc<dyn ReplicaData>,
    replica: &VolumeReplica,
    address: &str,
) -> Result<u64, String> {
    let primary = &replica.spec.primary_node;
    let config = identity.client(primary)?;
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // The name says nothing: the certificate's subject is compared with the node.
        let name = ServerName::try_from("storage.corten.dev").map_err(std::io::Error::other)?;
        TlsConnector::from(config).connect(name, stream).await
    };
    let failed = |error: String| format!("node {primary} at {address}: {error}");
    let mut stream = match tokio::time::timeout(CONNECT_PATIENCE, connected).await {
        Ok(connected) => connected.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(failed("no connection in time".to_owned())),
    };
    let handle = replica.spec.volume_handle.clone();
    let part = blocking(data, move |data| data.part(&handle)).await?;
    let base = part.map(|part| part.generation).unwrap_or_default();
    let hello = Hello { replica: replica.name().to_owned(), epoch: replica.spec.epoch, base };
    receive(&mut stream, data, &hello, &replica.spec.volume_handle).await.map_err(failed)
}

/// Gets an increment over a connection; returns the bytes that were sent.
pub async fn receive(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    data: &Arc<dyn ReplicaData>,
    hello: &Hello,
    handle: &str,
) -> Result<u64, String> {
    wire::send(stream, hello).await?;
    let header = match wire::receive(stream).await? {
        Answer::Refused(message) => return Err(message.chars().take(500).collect()),
        Answer::Unchanged if hello.base.is_empty() => return Err("a copy of nothing cannot be unchanged".to_owned()),
        Answer::Unchanged => return Ok(0),
        Answer::Increment(header) => header,
    };
    let epoch = hello.epoch;
    let is_whole = header.is_whole;
    if !is_whole && hello.base.is_empty() {
        return Err("the first increment is not a whole one".to_owned());
    }
    let expected = handle.to_owned();
    let receiving = blocking(data, move |data| {
        check_handle(&header.record, &expected)?;
        data.receive(&header.record, epoch, &header.generation, header.changed)
    })
    .await?;
    let file = Arc::new(receiving.file);
    let chunks = chunk_count(receiving.bytes);
    let mut next = 0;
    let mut sent = 0;
    loop {
        let entries = wire::read_entries(stream, next, chunks).await?;
        let until = entries.last().map_or(chunks, |last| last.index + 1);
        let batch = Batch { file: file.clone(), bytes: receiving.bytes, next, until, entries, is_whole };
        let is_last = batch.entries.is_empty();
        next = until;
        let (batch, wanted) = blocking(data, move |_| batch.prepare().map(|wanted| (batch, wanted))).await?;
        if is_last {
            break;
        }
        wire::write(stream, &wire::encode_wanted(&wanted)).await?;
        for index in wanted {
            let chunk = wire::read(stream, CHUNK_BYTES as usize).await?;
            sent += chunk.len() as u64;
            let entry = batch.entry(index)?;
            let target = batch.file.clone();
            let bytes = batch.bytes;
            blocking(data, move |_| store(&target, bytes, entry, &chunk)).await?;
        }
    }
    drop(file);
    let commit = receiving.commit;
    blocking(data, move |_| commit()).await?;
    wire::write(stream, KEPT).await?;
    Ok(sent)
}

/// Checks that a record is that of the volume which was asked for.
fn check_handle(record: &str, expected: &str) -> Result<(), String> {
    let record: serde_json::Value = serde_json::from_str(record).map_err(|error| error.to_string())?;
    match record["id"] == expected {
        true => Ok(()),
        false => Err("the increment is of another volume".to_owned()),
    }
}

/// Some chunks of an increment, and the range of the volume that they speak for.
struct Batch {
    file: Arc<File>,
    bytes: u64,
    next: u64,
    until: u64,
    entries: Vec<Entry>,
    is_whole: bool,
}

impl Batch {
    fn entry(&self, index: u64) -> Result<Entry, String> {
        let found = self.entries.iter().find(|entry| entry.index == index);
        found.copied().ok_or_else(|| "the chunk was not offered".to_owned())
    }

    /// Empties the chunks that are zero, and returns those that the copy lacks.
    fn prepare(&self) -> Result<Vec<u64>, String> {
        let mut wanted = Vec::new();
        let mut entries = self.entries.iter().peekable();
        for index in self.next..self.until {
            let entry = entries.next_if(|entry| entry.index == index);
            if entry.is_none() && !self.is_whole {
                continue;
            }
            let own = read_chunk(&self.file, self.bytes, index).map_err(|error| error.to_string())?;
            let own = own.map(|chunk| wire::digest(&chunk));
            match entry.and_then(|entry| entry.digest) {
                digest if digest == own => {}
                Some(_) => wanted.push(index),
                None => empty(&self.file, self.bytes, index)?,
            }
        }
        Ok(wanted)
    }
}

/// Makes a hole of a chunk.
fn empty(file: &File, bytes: u64, index: u64) -> Result<(), String> {
    let start = index * CHUNK_BYTES;
    let length = CHUNK_BYTES.min(bytes.saturating_sub(start));
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file.as_fd(), flags, start, length).map_err(|error| format!("empty a chunk: {error}"))
}

/// Writes a chunk that has the expected length and digest.
fn store(file: &File, bytes: u64, entry: Entry, chunk: &[u8]) -> Result<(), String> {
    let length = CHUNK_BYTES.min(bytes.saturating_sub(entry.index * CHUNK_BYTES));
    if chunk.len() as u64 != length || entry.digest != Some(wire::digest(chunk)) {
        return Err("a chunk differs from its digest".to_owned());
    }
    write_chunk(file, entry.index, chunk).map_err(|error| error.to_string())
}
