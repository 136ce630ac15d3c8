//! Manifests: the properties of a backed-up volume, and the ids of its chunks in order.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::{CHUNK_BYTES, chunk_count};
use crate::sealed::ChunkId;

/// The largest volume that is backed up: its manifest is held in memory.
pub const MOST_BYTES: u64 = 8 << 40;
/// The most bytes of a manifest's header.
const MOST_HEADER: usize = 64 << 10;
/// The most bytes of a manifest.
pub const MOST_MANIFEST: usize = MOST_HEADER + 4 + (MOST_BYTES / CHUNK_BYTES) as usize * size_of::<ChunkId>();

/// The properties of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Header {
    /// The time of the backup, RFC 3339.
    pub created: String,
    /// The namespace and the name of the claim.
    pub namespace: String,
    pub claim: String,
    /// The size of the volume.
    pub bytes: u64,
    /// Whether the volume is a block device for pods.
    pub block: bool,
    /// The file system on it; none on a block device, or on a volume that was never used.
    pub file_system: Option<String>,
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub header: Header,
    /// The chunks in order; none is a chunk of zeros.
    pub chunks: Vec<Option<ChunkId>>,
}

/// Reports whether a string can be the id of a backup: a part of a name, and never a way out.
pub fn is_backup_id(id: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&id.len()) && id.bytes().all(allowed)
}

impl Manifest {
    pub fn encode(&self) -> Result<Vec<u8>> {
        let header = serde_json::to_vec(&self.header).map_err(|error| Error::Invalid(error.to_string()))?;
        let length = u32::try_from(header.len()).ok().filter(|length| *length as usize <= MOST_HEADER);
        let length = length.ok_or_else(|| Error::Invalid("the names of the backup are too long".to_owned()))?;
        let mut bytes = Vec::with_capacity(4 + header.len() + self.chunks.len() * size_of::<ChunkId>());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&header);
        for chunk in &self.chunks {
            bytes.extend_from_slice(&chunk.unwrap_or_default());
        }
        Ok(bytes)
    }

    /// Decodes a manifest. `name` is for errors.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Manifest> {
        let damaged = |reason: &str| Error::damaged(name, reason);
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("it is cut off"))?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > MOST_HEADER {
            return Err(damaged("its header is too long"));
        }
        let (header, ids) = rest.split_at_checked(length).ok_or_else(|| damaged("it is cut off"))?;
        let header: Header = serde_json::from_slice(header).map_err(|error| damaged(&error.to_string()))?;
        let (ids, left) = ids.as_chunks::<{ size_of::<ChunkId>() }>();
        if !left.is_empty() || header.bytes > MOST_BYTES || ids.len() as u64 != chunk_count(header.bytes) {
            return Err(damaged("it does not name a chunk for each part of the volume"));
        }
        let chunk = |id: &ChunkId| Some(*id).filter(|id| *id != ChunkId::default());
        Ok(Manifest { header, chunks: ids.iter().map(chunk).collect() })
    }
}
