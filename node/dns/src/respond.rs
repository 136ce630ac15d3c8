//! The response to a query.
//!
//! Names of the cluster are answered at once; an answer that needs a resolver is returned as a [`Step::Ask`], so that
//! the socket's loop never waits for one.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::cache::Question;
use crate::forward::Forwarder;
use crate::metrics::{Answered, Metrics, Transport};
use crate::zone::{Answer, Zone};

/// The largest datagram that passes unfragmented nearly everywhere; larger ones are truncated, and the client queries
/// again by TCP.
const LARGEST_DATAGRAM: usize = 1232;
const PLAIN_DATAGRAM: usize = 512;
/// The most aliases that lead to aliases.
const MAXIMUM_ALIASES: usize = 8;

/// Answers queries. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Responder {
    pub zone: Arc<RwLock<Zone>>,
    pub forwarder: Forwarder,
    /// Stub domains with their forwarders, the most specific first.
    pub stubs: Arc<Vec<(Name, Forwarder)>>,
    /// The number of answers, to begin each with another record: many clients take the first.
    pub rotation: Arc<AtomicUsize>,
    pub metrics: Arc<Metrics>,
}

/// The result of a query without waiting.
pub(crate) enum Step {
    Done(Reply),
    /// A resolver must be queried; the reply so far waits for its answer.
    Ask(Box<Waiting>),
    /// Not a query: no answer.
    Ignore,
}

/// A response, and the largest datagram that its client takes.
pub(crate) struct Reply {
    response: Message,
    room: usize,
}

/// A reply that lacks the answer to an external query.
pub(crate) struct Waiting {
    reply: Reply,
    question: Question,
}

impl Waiting {
    /// Returns the reply to a client with too many concurrent queries.
    pub fn refused(self) -> Reply {
        self.reply.completed(None)
    }
}

impl Responder {
    /// Returns the response to a datagram or a message of a stream.
    pub fn respond(&self, bytes: &[u8]) -> Step {
        let request = match Message::from_vec(bytes) {
            Ok(request) => request,
            Err(_) => return malformed(bytes),
        };
        if request.metadata.message_type != MessageType::Query {
            return Step::Ignore;
        }
        let reply = Reply::to(&request);
        let query = match acceptable(&request) {
            Ok(query) => query,
            Err(code) => return reply.failed(code),
        };
        let dnssec = request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok);
        self.answer(reply, query.name().clone(), query.query_type(), dnssec)
    }

    /// Answers from the zone, following aliases as far as they stay in it.
    fn answer(&self, mut reply: Reply, mut name: Name, record_type: RecordType, dnssec: bool) -> Step {
        for _ in 0..MAXIMUM_ALIASES {
            let (answer, soa) = {
                let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
                (zone.lookup(&name, record_type), zone.soa())
            };
            reply.response.metadata.authoritative = !matches!(answer, Answer::Foreign | Answer::NotReady);
            match answer {
                Answer::Foreign => return self.foreign(reply, name, record_type, dnssec),
                Answer::Alias(target) => {
                    let alias = RData::CNAME(CNAME(target.clone()));
                    reply.response.add_answer(Record::from_rdata(name, soa.ttl, alias));
                    if record_type == RecordType::CNAME {
                        return Step::Done(reply);
                    }
                    name = target;
                }
                Answer::Records { mut answers, additionals } => {
                    let rotation = self.rotation.fetch_add(1, Ordering::Relaxed) % answers.len().max(1);
                    answers.rotate_left(rotation);
                    reply.response.add_answers(answers).add_additionals(additionals);
                    return Step::Done(reply);
                }
                Answer::NoData => return reply.denied(ResponseCode::NoError, soa),
                Answer::NoSuchName => return reply.denied(ResponseCode::NXDomain, soa),
                Answer::NotReady => return reply.failed(ResponseCode::ServFail),
            }
        }
        reply.failed(ResponseCode::ServFail)
    }

    fn foreign(&self, reply: Reply, name: Name, record_type: RecordType, dnssec: bool) -> Step {
        let question = Question { name: name.to_lowercase(), record_type, dnssec };
        let forwarder = self.forwarder_of(&question.name);
        if !forwarder.has_upstreams() {
            return reply.failed(ResponseCode::Refused);
        }
        let known = forwarder.cached(&question);
        self.metrics.cached(known.is_some());
        match known {
            Some(known) => Step::Done(reply.completed(Some(known))),
            None => Step::Ask(Box::new(Waiting { reply, question })),
        }
    }

    /// Returns the forwarder of a name.
    fn forwarder_of(&self, name: &Name) -> &Forwarder {
        let stub = self.stubs.iter().find(|(domain, _)| domain.zone_of(name));
        stub.map_or(&self.forwarder, |(_, forwarder)| forwarder)
    }

    /// Counts a reply that is about to be sent.
    pub fn count(&self, reply: &Reply, transport: Transport, client: IpAddr, started: Instant) {
        let metadata = &reply.response.metadata;
        self.metrics.count(&Answered {
            own: metadata.authoritative,
            record_type: reply.response.queries.first().map(Query::query_type),
            code: metadata.response_code,
            transport,
            client,
            took: started.elapsed(),
        });
    }

    /// Queries the resolvers for the missing answer.
    pub async fn complete(&self, waiting: Waiting) -> Reply {
        let known = self.forwarder_of(&waiting.question.name).resolve(waiting.question.clone()).await;
        waiting.reply.completed(known)
    }
}

/// Returns the only query of a request that we can answer, else the reason why not.
fn acceptable(request: &Message) -> Result<&Query, ResponseCode> {
    if request.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    if request.version() != 0 {
        return Err(ResponseCode::BADVERS);
    }
    let [query] = request.queries.as_slice() else { return Err(ResponseCode::FormErr) };
    match (query.query_class(), query.query_type()) {
        (DNSClass::IN, RecordType::ANY | RecordType::AXFR | RecordType::IXFR) => Err(ResponseCode::NotImp),
        (DNSClass::IN, _) => Ok(query),
        _ => Err(ResponseCode::Refused),
    }
}

fn malformed(bytes: &[u8]) -> Step {
    match bytes {
        // A message with the header of a query gets an answer.
        [high, low, flags, ..] if bytes.len() >= 12 && flags & 0x80 == 0 => {
            let id = u16::from_be_bytes([*high, *low]);
            let response = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
            Step::Done(Reply { response, room: PLAIN_DATAGRAM })
        }
        _ => Step::Ignore,
    }
}

impl Reply {
    /// Makes an empty response to the request.
    fn to(request: &Message) -> Reply {
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.checking_disabled = request.metadata.checking_disabled;
        response.metadata.recursion_available = true;
        response.add_queries(request.queries.iter().cloned());
        if let Some(edns_request) = &request.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGEST_DATAGRAM as u16);
            edns.set_dnssec_ok(edns_request.flags().dnssec_ok);
            response.set_edns(edns);
        }
        Reply { response, room: usize::from(request.max_payload()).clamp(PLAIN_DATAGRAM, LARGEST_DATAGRAM) }
    }

    fn denied(mut self, code: ResponseCode, soa: Record) -> Step {
        self.response.metadata.response_code = code;
        self.response.add_authority(soa);
        Step::Done(self)
    }

    fn failed(mut self, code: ResponseCode) -> Step {
        self.response.metadata.response_code = code;
        Step::Done(self)
    }

    /// Completes the reply with the answer of a resolver. An alias of ours before it stays.
    fn completed(mut self, known: Option<Message>) -> Reply {
        let response = &mut self.response;
        match known {
            Some(known) => {
                response.metadata.response_code = known.metadata.response_code;
                response.metadata.authentic_data = known.metadata.authentic_data;
                response.add_answers(known.answers);
                response.add_authorities(known.authorities);
                response.add_additionals(known.additionals);
            }
            None => response.metadata.response_code = ResponseCode::ServFail,
        }
        self
    }

    /// Encodes the response for a stream; returns `None` if it cannot be encoded.
    pub fn stream(self) -> Option<Vec<u8>> {
        self.response.to_vec().ok()
    }

    /// Encodes the response for a datagram: truncated to the client's size, with the truncation bit.
    pub fn datagram(self) -> Option<Vec<u8>> {
        let Reply { mut response, room } = self;
        let mut bytes = response.to_vec().ok()?;
        if bytes.len() > room && !response.additionals.is_empty() {
            // Additional records are optional, and no reason for the client to query again.
            response.additionals.clear();
            bytes = response.to_vec().ok()?;
        }
        while bytes.len() > room {
            response.metadata.truncation = true;
            if response.answers.is_empty() && response.authorities.is_empty() {
                return None;
            }
            response.authorities.clear();
            response.answers.truncate(response.answers.len() / 2);
            bytes = response.to_vec().ok()?;
        }
        Some(bytes)
    }
}
