//! Watches: several per stream, each with an id of its own.
//!
//! One task per stream owns its watches. It takes the client's requests and the store's batches in turn and sends the
//! answers through a bounded channel, so a slow client slows its own stream only; a watch that the store gave up
//! meanwhile resumes from its last revision. The promises are etcd's:
//!
//! - the events of a revision arrive together, unless the client asked for fragments;
//! - a progress notification of revision R arrives after all events up to R, of every watch of the stream if the
//!   client requested it, of its own watch otherwise;
//! - a watch whose history is compacted is cancelled, with the compacted revision.

mod create;
mod driver;
mod events;

use corten_etcd::etcdserverpb::watch_server::Watch;
use corten_etcd::etcdserverpb::{WatchRequest, WatchResponse};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::Server;

/// The answers that may wait for a slow client.
const ANSWERS_AHEAD: usize = 64;
/// The watch id of answers that concern no watch, or all.
const NO_WATCH: i64 = -1;

#[tonic::async_trait]
impl Watch for Server {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let (answers, stream) = mpsc::channel(ANSWERS_AHEAD);
        tokio::spawn(driver::run(self.clone(), request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
