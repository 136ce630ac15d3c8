//! The service SnapshotMetadata: the blocks that a snapshot has, and those in which two snapshots of a volume differ.
//!
//! A backup program reads only these. Parts are never left out that have data or differ; some may be named that do not.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

use corten_plugins::csi;
use corten_storage_plugin::error::{During, Error, Result};
use corten_storage_plugin::requests::required;
use csi::snapshot_metadata_server::SnapshotMetadata;
use csi::{BlockMetadata, BlockMetadataType};
use futures::stream::{self, BoxStream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::extents::{Part, WINDOW, allocated_parts, changed_parts};
use crate::record::Snapshot;
use crate::service::{Answer, Driver};
use crate::storage::Storage;

/// The most parts of one message, if the caller does not want fewer.
const MOST_PARTS: usize = 1024;

/// The files whose parts are asked for.
enum Files {
    Allocated(File),
    Changed { base: File, target: File },
}

impl Files {
    fn parts(&self, start: u64, end: u64) -> Result<Vec<Part>> {
        let parts = match self {
            Files::Allocated(file) => allocated_parts(file, start, end)?,
            Files::Changed { base, target } => changed_parts(base, target, start, end)?,
        };
        parts.ok_or_else(|| Error::Precondition("the file system of the pool has no maps of blocks".to_owned()))
    }
}

/// The parts that are still to be sent.
struct Rest {
    files: Arc<Files>,
    bytes: u64,
    position: u64,
    found: VecDeque<Part>,
    most: usize,
    is_first: bool,
}

impl Rest {
    fn new(files: Files, bytes: u64, starting_offset: i64, max_results: i32) -> Result<Rest> {
        let position = u64::try_from(starting_offset).ok().filter(|offset| *offset < bytes);
        let position = position
            .ok_or_else(|| Error::OutOfRange(format!("the offset {starting_offset} is not below {bytes} bytes")))?;
        let wanted = usize::try_from(max_results)
            .map_err(|_| Error::Invalid(format!("max_results is {max_results}, less than zero")))?;
        let most = if wanted == 0 { MOST_PARTS } else { wanted.min(MOST_PARTS) };
        Ok(Rest { files: Arc::new(files), bytes, position, found: VecDeque::new(), most, is_first: true })
    }

    /// Returns the parts of the next message; none after the last. The first message comes in any case: it has the size.
    fn next(&mut self) -> Result<Option<Vec<Part>>> {
        while self.found.len() < self.most && self.position < self.bytes {
            let end = self.bytes.min(self.position.saturating_add(WINDOW));
            self.found.extend(self.files.parts(self.position, end)?);
            self.position = end;
        }
        let count = self.found.len().min(self.most);
        let is_over = count == 0 && !std::mem::take(&mut self.is_first);
        self.is_first = false;
        Ok((!is_over).then(|| self.found.drain(..count).collect()))
    }
}

/// The parts of one message, and the size of the snapshot.
struct Message {
    bytes: u64,
    parts: Vec<Part>,
}

impl Message {
    fn block_metadata(&self) -> Vec<BlockMetadata> {
        let entry =
            |part: &Part| BlockMetadata { byte_offset: signed(part.start), size_bytes: signed(part.end - part.start) };
        self.parts.iter().map(entry).collect()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the messages, each read on a thread that may block when the caller has taken the one before.
fn messages(rest: Rest) -> BoxStream<'static, std::result::Result<Message, Status>> {
    let step = async |mut rest: Rest| {
        let read = tokio::task::spawn_blocking(move || (rest.next(), rest)).await;
        let (parts, rest) = read.map_err(|error| Status::internal(format!("the call failed: {error}")))?;
        Ok(parts.map_err(Status::from)?.map(|parts| (Message { bytes: rest.bytes, parts }, rest)))
    };
    stream::try_unfold(rest, step).boxed()
}

impl Storage {
    fn open_snapshot(&self, id: &str) -> Result<(Snapshot, File)> {
        let snapshot = self.snapshot(id)?;
        let data = self.data(id, &snapshot.content);
        let file = File::open(&data).during(|| format!("open snapshot {id}"))?;
        Ok((snapshot, file))
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Driver {
    type GetMetadataAllocatedStream =
        BoxStream<'static, std::result::Result<csi::GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = BoxStream<'static, std::result::Result<csi::GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Answer<Self::GetMetadataAllocatedStream> {
        let request = request.into_inner();
        let id = required("snapshot_id", &request.snapshot_id)?.to_owned();
        let opened = self.call(move |storage| {
            let (snapshot, file) = storage.open_snapshot(&id)?;
            Rest::new(Files::Allocated(file), snapshot.bytes, request.starting_offset, request.max_results)
        });
        let answer = |message: Message| csi::GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength as i32,
            volume_capacity_bytes: signed(message.bytes),
            block_metadata: message.block_metadata(),
        };
        Ok(Response::new(messages(opened.await?).map(move |message| message.map(answer)).boxed()))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Answer<Self::GetMetadataDeltaStream> {
        let request = request.into_inner();
        let base = required("base_snapshot_id", &request.base_snapshot_id)?.to_owned();
        let target = required("target_snapshot_id", &request.target_snapshot_id)?.to_owned();
        let opened = self.call(move |storage| {
            let (of_base, base) = storage.open_snapshot(&base)?;
            let (of_target, target) = storage.open_snapshot(&target)?;
            if of_base.source != of_target.source {
                return Err(Error::Invalid("the snapshots are of different volumes".to_owned()));
            }
            let files = Files::Changed { base, target };
            Rest::new(files, of_target.bytes, request.starting_offset, request.max_results)
        });
        let answer = |message: Message| csi::GetMetadataDeltaResponse {
            block_metadata_type: BlockMetadataType::VariableLength as i32,
            volume_capacity_bytes: signed(message.bytes),
            block_metadata: message.block_metadata(),
        };
        Ok(Response::new(messages(opened.await?).map(move |message| message.map(answer)).boxed()))
    }
}
