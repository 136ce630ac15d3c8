//! Entry points for the fuzz targets: queries of pods and answers of upstream resolvers, without sockets. Nothing else
//! may use this.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, RwLock};

use hickory_proto::op::Message;

use crate::Zone;
use crate::forward::{Forwarder, accept};
use crate::metrics::Metrics;
use crate::respond::{Responder, Step};

/// Responds to a query from a zone, with no resolvers behind it; returns the datagram and the stream's message.
pub fn query(zone: &Zone, bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let responder = Responder {
        zone: Arc::new(RwLock::new(zone.clone())),
        forwarder: Forwarder::new(Vec::new(), 0),
        stubs: Arc::default(),
        rotation: Arc::new(AtomicUsize::new(0)),
        metrics: Arc::new(Metrics::default()),
    };
    let reply = |step: Step| match step {
        Step::Done(reply) => Some(reply),
        Step::Ask(_) | Step::Ignore => None,
    };
    let datagram = reply(responder.respond(bytes))?.datagram()?;
    let stream = reply(responder.respond(bytes))?.stream()?;
    Some((datagram, stream))
}

/// Reads the answer of a resolver to a request.
pub fn answer(request: &Message, bytes: &[u8]) -> Option<Message> {
    accept(request, bytes)
}
