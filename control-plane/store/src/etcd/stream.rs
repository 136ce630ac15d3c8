//! One watch stream of gRPC with one watch on it.
//!
//! Invariant: a stream carries one watch, so that its progress notifications can only mean that watch.

use bytes::Bytes;
use corten_etcd::etcdserverpb::watch_client::WatchClient;
use corten_etcd::etcdserverpb::watch_request::RequestUnion;
use corten_etcd::etcdserverpb::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use corten_etcd::mvccpb;
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;

use super::MAX_ANSWER_BYTES;
use super::failure::Failure;
use super::members::{ATTEMPT, Member, Members};
use super::messages::{signed, unsigned};
use crate::Revision;

/// The keys of a watch, and the first revision that it delivers.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub key: Bytes,
    /// The end, exclusive; empty for one key.
    pub range_end: Bytes,
    pub from: Revision,
}

/// A message of the stream, with the fragments of a message put together.
#[derive(Debug)]
pub(super) enum Message {
    /// The watch exists; its events follow.
    Created,
    /// Events in order of revision. All events of a revision come in one message.
    Events(Vec<mvccpb::Event>),
    /// All events up to this revision were delivered.
    Progress(Revision),
    /// The watch ended, because its start was compacted; the oldest revision that can be watched follows this one.
    Compacted(Revision),
}

/// The stream of one watch.
pub(super) struct Stream {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
    fragments: Vec<mvccpb::Event>,
}

impl Stream {
    /// Opens a stream through a member and requests the watch. The stream ends when the member has no leader.
    pub async fn open(member: &Member, selection: &Selection) -> Result<Stream, Failure> {
        let (requests, receiver) = mpsc::channel(16);
        let create = RequestUnion::CreateRequest(WatchCreateRequest {
            key: selection.key.clone(),
            range_end: selection.range_end.clone(),
            start_revision: signed(selection.from),
            progress_notify: true,
            prev_kv: true,
            fragment: true,
            ..WatchCreateRequest::default()
        });
        // The channel is new and has room.
        let _ = requests.try_send(WatchRequest { request_union: Some(create) });
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(member.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES);
        match tokio::time::timeout(ATTEMPT, client.watch(request)).await {
            Err(_) => Err(Failure::timed_out()),
            Ok(Err(status)) => Err(Failure::of(&status)),
            Ok(Ok(answer)) => Ok(Stream { requests, answers: answer.into_inner(), fragments: Vec::new() }),
        }
    }

    /// Requests a progress notification; etcd sends it once the watch has all events.
    pub fn request_progress(&self) {
        let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
        // A full channel holds requests for the same.
        let _ = self.requests.try_send(WatchRequest { request_union: Some(progress) });
    }

    /// Returns the next message. It is cancel safe.
    pub async fn next(&mut self, members: &Members) -> Result<Message, Failure> {
        loop {
            let answer = match self.answers.message().await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(Failure::Lost("the member ended the watch".to_owned())),
                Err(status) => return Err(Failure::of(&status)),
            };
            members.note(answer.header.as_ref());
            if answer.canceled && answer.compact_revision > 0 {
                return Ok(Message::Compacted(unsigned(answer.compact_revision)));
            }
            if answer.canceled {
                return Err(Failure::Lost(answer.cancel_reason));
            }
            if answer.created {
                return Ok(Message::Created);
            }
            let is_fragment = answer.fragment;
            self.fragments.extend(answer.events);
            if is_fragment {
                continue;
            }
            let events = std::mem::take(&mut self.fragments);
            if !events.is_empty() {
                return Ok(Message::Events(events));
            }
            return Ok(Message::Progress(super::messages::revision(answer.header.as_ref())));
        }
    }
}
