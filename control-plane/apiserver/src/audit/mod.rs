//! Audit: what was asked of the server, by whom, and what came of it, as the policy says.
//!
//! The pipeline tells this module of the stages of a request; the policy decides whether and how much is written; a
//! task of its own writes. A request waits for room in the task's queue, never for a disk or a network, and what is
//! secret by kind is the policy's to leave out, as upstream.

mod event;
pub(crate) mod policy;
mod sink;

use std::sync::atomic::{AtomicU64, Ordering};

use corten_meta::Value;
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::body::{Body, Reply};
use crate::config;
use crate::context::{Context, Level};
use crate::error::Error;
use policy::Policy;

/// How many events may wait to be written.
const QUEUE: usize = 4096;

/// The policy and the way to the writers; nothing at all if no policy is configured.
pub struct Audit {
    policy: Option<Policy>,
    sender: mpsc::Sender<String>,
    events: AtomicU64,
}

impl Audit {
    /// How many events were made.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Reads the policy and starts the writers.
    pub fn start(config: Option<&config::Audit>, shutdown: CancellationToken) -> Result<Audit, Error> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let policy = match config {
            None => None,
            Some(config) => {
                let policy = Policy::parse(&config.policy).map_err(|e| Error::Config(format!("audit policy: {e}")))?;
                sink::start(config, receiver, shutdown)?;
                Some(policy)
            }
        };
        Ok(Audit { policy, sender, events: AtomicU64::new(0) })
    }

    /// The user is known: how much is to be written of this request. Also the first stage.
    pub async fn begin(&self, context: &mut Context) {
        let Some(policy) = &self.policy else { return };
        let wanted = policy.level(&context.user, &context.info);
        context.audit.level = wanted.level;
        context.audit.omit_stages = wanted.omit_stages;
        context.audit.omit_managed_fields = wanted.omit_managed_fields;
        let event = self.event(context, "RequestReceived", None);
        self.send(event).await;
    }

    /// Writes what there is to write when the answer is there. A stream has only begun: that it ended is written when
    /// it does; what it says is not.
    pub async fn ended(&self, context: &Context, reply: &mut Reply, panicked: bool) {
        if self.policy.is_none() || context.audit.level == Level::None {
            return;
        }
        let stream = matches!(reply.body(), Body::Watch(_) | Body::Stream(_));
        let stage = if panicked { "Panic" } else { "ResponseComplete" };
        let complete = self.event(context, stage, Some(reply));
        if !stream {
            return self.send(complete).await;
        }
        self.send(self.event(context, "ResponseStarted", Some(reply))).await;
        let Some(event) = complete else { return };
        let end = End { event, sender: self.sender.clone() };
        match reply.body_mut() {
            Body::Watch(watch) => watch.until_end.push(Box::new(end)),
            Body::Stream(stream) => {
                let whole = std::mem::replace(stream, futures::stream::empty().boxed());
                *stream = whole.inspect(move |_| _ = &end).boxed();
            }
            Body::Full(_) | Body::List(_) => {}
        }
    }

    fn event(&self, context: &Context, stage: &str, reply: Option<&Reply>) -> Option<Value> {
        let record = &context.audit;
        if record.level == Level::None || record.omit_stages.iter().any(|omitted| omitted == stage) {
            return None;
        }
        let request = record.request.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let mut event = event::event(context, stage, reply);
        if stage != "RequestReceived" {
            event::add_objects(&mut event, record.level, request.as_ref(), reply, record.omit_managed_fields);
        }
        self.events.fetch_add(1, Ordering::Relaxed);
        Some(event)
    }

    /// Hands an event to the writers, which are gone only when the server is going.
    async fn send(&self, event: Option<Value>) {
        if let Some(event) = event {
            let _ = self.sender.send(event.to_string()).await;
        }
    }
}

/// Writes that a stream ended, when it is dropped.
pub struct End {
    event: Value,
    sender: mpsc::Sender<String>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.event["stageTimestamp"] = corten_meta::time::rfc3339_micro(jiff::Timestamp::now()).into();
        // Nobody can wait here; with thousands of streams that end at once, the writers may have no room.
        if self.sender.try_send(self.event.to_string()).is_err() {
            tracing::warn!("the audit log is behind; the end of a stream was not written");
        }
    }
}
