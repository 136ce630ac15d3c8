//! Audit: a record of the requests, their users and their results, as the audit policy defines.
//!
//! The pipeline passes each stage of a request to this module; the policy decides its level; a task of its own writes
//! the events. A request waits for space in the task's queue, never for a disk or a network. As upstream, the policy
//! has to exclude Secrets.

mod event;
pub(crate) mod policy;
mod sink;

use std::sync::atomic::{AtomicU64, Ordering};

use corten_meta::Value;
use futures::StreamExt;
use tokio::sync::mpsc;

use crate::body::{Body, Reply};
use crate::config;
use crate::context::{Context, Level};
use crate::error::Error;
use crate::tasks::Tasks;
use policy::Policy;

/// The maximum number of events that wait to be written.
const QUEUE: usize = 4096;

/// The policy and the queue of the writers; empty if no policy is configured.
pub struct Audit {
    policy: Option<Policy>,
    sender: mpsc::Sender<String>,
    events: AtomicU64,
}

impl Audit {
    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Reads the policy and starts the writers.
    pub fn start(config: Option<&config::Audit>, tasks: &Tasks) -> Result<Audit, Error> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let policy = match config {
            None => None,
            Some(config) => {
                let policy = Policy::parse(&config.policy).map_err(|e| Error::Config(format!("audit policy: {e}")))?;
                sink::start(config, receiver, tasks)?;
                Some(policy)
            }
        };
        Ok(Audit { policy, sender, events: AtomicU64::new(0) })
    }

    /// Sets the audit level of a request whose user is known, and writes its first stage.
    pub async fn begin(&self, context: &mut Context) {
        let Some(policy) = &self.policy else { return };
        let wanted = policy.level(&context.user, &context.info);
        context.audit.level = wanted.level;
        context.audit.omit_stages = wanted.omit_stages;
        context.audit.omit_managed_fields = wanted.omit_managed_fields;
        let event = self.event(context, "RequestReceived", None);
        self.send(event).await;
    }

    /// Writes the stage of a complete response. The response of a stream has only started: its ResponseComplete is
    /// written when the stream ends, without its contents.
    pub async fn responded(&self, context: &Context, reply: &mut Reply, panicked: bool) {
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
                let inner = std::mem::replace(stream, futures::stream::empty().boxed());
                *stream = inner.inspect(move |_| _ = &end).boxed();
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

    /// Sends an event to the writers, which end after the last request.
    async fn send(&self, event: Option<Value>) {
        if let Some(event) = event {
            let _ = self.sender.send(event.to_string()).await;
        }
    }
}

/// The guard of a stream: when dropped, it writes that the stream ended.
pub struct End {
    event: Value,
    sender: mpsc::Sender<String>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.event["stageTimestamp"] = corten_meta::time::rfc3339_micro(jiff::Timestamp::now()).into();
        // A drop cannot wait: when thousands of streams end at once, the queue may be full.
        if self.sender.try_send(self.event.to_string()).is_err() {
            tracing::warn!("the audit log is behind; the end of a stream was not written");
        }
    }
}
