//! The state of the member, its alarms, its hashes and its snapshots.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use corten_etcd::etcdserverpb::alarm_request::AlarmAction;
use corten_etcd::etcdserverpb::maintenance_server::Maintenance;
use corten_etcd::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, HashKvRequest,
    HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse,
};
use corten_store::{Error, Health, Revision, Store, snapshot};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{Server, TERM, VERSION, signed, status};

/// The bytes of a snapshot in one message, as etcd sends them.
const SNAPSHOT_PART: usize = 32 << 10;
/// The time that an alarm stops writes for, unless it is raised again.
pub const FREEZE: Duration = Duration::from_secs(30);
/// The parts of a snapshot that may wait for a slow client.
const PARTS_AHEAD: usize = 8;

#[tonic::async_trait]
impl Maintenance for Server {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let revision = self.store.revision();
        let size = signed(self.store.size());
        let errors = match self.store.health() {
            Health::Writable => Vec::new(),
            Health::Failing { reason } | Health::Broken { reason } => vec![reason.to_string()],
        };
        Ok(Response::new(StatusResponse {
            header: self.header(revision),
            version: VERSION.to_owned(),
            db_size: size,
            leader: self.member.id,
            // There is no raft; the revision counts the same changes.
            raft_index: revision,
            raft_term: TERM,
            raft_applied_index: revision,
            errors,
            db_size_in_use: size,
            is_learner: false,
            storage_version: "3.5.0".to_owned(),
            db_size_quota: 0,
        }))
    }

    async fn alarm(&self, request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        let request = request.into_inner();
        match (request.action(), request.alarm()) {
            (AlarmAction::Get, _) | (_, AlarmType::None) => {}
            (_, AlarmType::Corrupt) => {
                let reason = "etcdserver: not capable: the embedded store finds damage itself, when it opens";
                return Err(Status::failed_precondition(reason));
            }
            // An operator that froze the store and went away must not leave it so.
            (AlarmAction::Activate, AlarmType::Nospace) => drop(self.store.freeze(FREEZE).await.map_err(status::of)?),
            // An alarm of the disk ends with its cause.
            (AlarmAction::Deactivate, AlarmType::Nospace) => {
                self.store.freeze(Duration::ZERO).await.map_err(status::of)?;
            }
        }
        let is_failing = self.store.is_frozen() || !matches!(self.store.health(), Health::Writable);
        let alarm = AlarmMember { member_id: self.member.id, alarm: AlarmType::Nospace.into() };
        let is_wanted = matches!(request.alarm(), AlarmType::None | AlarmType::Nospace);
        let alarms = Vec::from_iter((is_failing && is_wanted).then_some(alarm));
        Ok(Response::new(AlarmResponse { header: self.header_now(), alarms }))
    }

    /// Does nothing: the store is in memory, and its checkpoints are written without gaps.
    async fn defragment(&self, _: Request<DefragmentRequest>) -> Result<Response<DefragmentResponse>, Status> {
        Ok(Response::new(DefragmentResponse { header: self.header_now() }))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        let hashed = self.hash_until(None).await?;
        Ok(Response::new(HashResponse { header: self.header(hashed.current), hash: hashed.hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        let until = u64::try_from(request.into_inner().revision).ok().filter(|revision| *revision > 0);
        let hashed = self.hash_until(until).await?;
        Ok(Response::new(HashKvResponse {
            header: self.header(hashed.current),
            hash: hashed.hash,
            compact_revision: signed(hashed.compacted),
            hash_revision: signed(hashed.revision),
        }))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        let (parts, stream) = mpsc::channel(PARTS_AHEAD);
        let server = self.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(status) = server.send_snapshot(&parts) {
                tracing::warn!(%status, "a snapshot cannot be sent");
                // The client may have gone.
                let _ = parts.blocking_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn move_leader(&self, _: Request<MoveLeaderRequest>) -> Result<Response<MoveLeaderResponse>, Status> {
        Err(Status::failed_precondition("etcdserver: bad leader transferee"))
    }
}

/// A hash and the revisions that it is of.
struct Hashed {
    hash: u32,
    /// The revision of the last hashed change.
    revision: Revision,
    compacted: Revision,
    /// The store's revision.
    current: Revision,
}

impl Server {
    async fn hash_until(&self, until: Option<Revision>) -> Result<Hashed, Status> {
        let store = self.store.clone();
        let hashed = tokio::task::spawn_blocking(move || {
            let contents = store.contents();
            let revision = until.unwrap_or(contents.revision);
            if revision > contents.revision {
                return Err(Error::Future { requested: revision, current: contents.revision });
            }
            if revision < contents.compacted {
                return Err(Error::Compacted { compacted: contents.compacted });
            }
            let hash = snapshot::hash(&contents, revision);
            Ok(Hashed { hash, revision, compacted: contents.compacted, current: contents.revision })
        });
        hashed.await.map_err(|_| status::stopped())?.map_err(status::of)
    }

    /// Writes a snapshot to a file that has no name, and sends it.
    fn send_snapshot(&self, parts: &mpsc::Sender<Result<SnapshotResponse, Status>>) -> Result<(), Status> {
        let contents = self.store.contents();
        let revision = contents.revision;
        let member = snapshot::Member {
            id: self.member.id,
            name: self.member.name.clone(),
            peer_urls: Vec::new(),
            client_urls: self.member.client_urls.clone(),
            applied: revision,
        };
        let failed = |error: std::io::Error| Status::internal(format!("etcdserver: no snapshot: {error}"));
        let mut file = self.store.scratch_file().map_err(status::of)?;
        let length = snapshot::save(&contents, &member, &file).map_err(failed)?;
        drop(contents);
        std::io::Seek::rewind(&mut file).map_err(failed)?;
        let mut left = length;
        while left > 0 {
            let part = Server::read_part(&mut file, left).map_err(failed)?;
            left -= part.len() as u64;
            let response = SnapshotResponse {
                header: self.header(revision),
                remaining_bytes: left,
                blob: part,
                version: VERSION.to_owned(),
            };
            if parts.blocking_send(Ok(response)).is_err() {
                // The client has gone.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads the next part. The digest is a part of its own, as clients expect.
    fn read_part(file: &mut File, left: u64) -> std::io::Result<Bytes> {
        let database = left.saturating_sub(snapshot::DIGEST_BYTES);
        let size = if database > 0 { database.min(SNAPSHOT_PART as u64) } else { left };
        let mut part = vec![0; usize::try_from(size).unwrap_or(SNAPSHOT_PART)];
        file.read_exact(&mut part)?;
        Ok(part.into())
    }
}
