//! A session with one peer: carries out the effects of the state machine over TCP, and keeps the peer's table of routes
//! equal to the wanted one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};

use crate::bfd;
use crate::machine::{Input, Machine, Negotiated, Output, Settings};
use crate::message::{AsWidth, HEADER, Message, Notification};
use crate::prefix::Family;
use crate::rib::{self, Routes, Terms};
use crate::socket::{self, Endpoint};

/// The time limit of a write: a peer that does not read is lost.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes that are read at once.
const READ_LIMIT: usize = 16 * 1024;

/// One peer, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub settings: Settings,
    pub endpoint: Endpoint,
    /// The node's addresses, for next hops of the family that the connection does not have.
    pub node_addresses: Vec<IpAddr>,
    /// BFD, if it is wanted.
    pub bfd: Option<bfd::Settings>,
}

/// The state of a session, for events and conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    Established,
    /// There is no session; the sentence is the reason.
    Down(String),
    /// Whether packets of BFD arrive.
    Liveness(bool),
}

/// How a session ends when its speaker stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The session goes on.
    None,
    /// The process restarts: the connection is closed without a notification, so that the peer keeps the routes.
    Restart,
    /// The node leaves, or the peer is no longer configured: the routes are withdrawn, then the session ceases.
    Withdraw,
}

/// The channels of a session.
pub struct Channels {
    pub routes: watch::Receiver<Routes>,
    pub ending: watch::Receiver<Ending>,
    pub status: mpsc::Sender<Status>,
    /// The sentences of BFD that the peer is lost.
    pub lost: mpsc::Receiver<String>,
}

/// Keeps a session with the peer until its ending.
pub async fn run(peer: Peer, channels: Channels) {
    let machine = Machine::new(peer.settings.clone(), Instant::now());
    let mut session = Session { peer, machine, connection: None, announced: Routes::new(), terms: None, channels };
    loop {
        let ending = *session.channels.ending.borrow_and_update();
        if ending != Ending::None {
            return session.end(ending).await;
        }
        let input = session.next().await;
        if let Some(input) = input {
            session.handle(input).await;
        } else {
            session.announce().await;
        }
    }
}

/// A connection and the bytes of messages that have not arrived whole.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    width: AsWidth,
}

struct Session {
    peer: Peer,
    machine: Machine,
    connection: Option<Connection>,
    /// The routes that the peer has been sent in this session.
    announced: Routes,
    /// The terms of the session while it is established.
    terms: Option<Terms>,
    channels: Channels,
}

impl Session {
    /// Waits for the next input; `None` if the wanted routes or the ending changed.
    async fn next(&mut self) -> Option<Input> {
        if let Some(input) = self.connection.as_mut().and_then(Connection::take) {
            return Some(input);
        }
        let deadline = self.machine.deadline();
        let tick = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let Channels { routes, ending, lost, .. } = &mut self.channels;
        tokio::select! {
            () = tick => Some(Input::Tick),
            input = read(&mut self.connection) => input,
            _ = routes.changed() => None,
            _ = ending.changed() => None,
            Some(sentence) = lost.recv() => Some(Input::Closed(sentence)),
        }
    }

    async fn handle(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.machine.handle(input, Instant::now()) {
                match output {
                    Output::Connect => inputs.push(self.connect().await),
                    Output::Send(message) => inputs.extend(self.send(&[message]).await),
                    Output::Close => self.close(),
                    Output::Up(negotiated) => inputs.extend(self.up(negotiated).await),
                    Output::Refresh(family) => {
                        self.announced.retain(|prefix, _| prefix.family() != family);
                        inputs.extend(self.announce_all(Some(family)).await);
                    }
                    Output::Down(reason) => self.report(Status::Down(self.sentence(reason.to_string()))).await,
                }
            }
        }
    }

    /// Adds the likely cause to a failed connection with a password: the kernel does not name it.
    fn sentence(&self, reason: String) -> String {
        let address = self.peer.endpoint.address;
        match (&self.peer.endpoint.password, reason.starts_with("no answer")) {
            (Some(_), true) => format!("{address}: {reason}: the passwords may differ, or the peer is unreachable"),
            (None, true) => format!("{address}: {reason}: the peer is unreachable, or wants a password"),
            (_, false) => format!("{address}: {reason}"),
        }
    }

    async fn connect(&mut self) -> Input {
        let ending = self.channels.ending.changed();
        let connected = tokio::select! {
            connected = socket::connect(&self.peer.endpoint) => connected,
            _ = ending => {
                self.channels.ending.mark_changed();
                return Input::Failed("the speaker stops".to_owned());
            }
        };
        match connected {
            Ok(stream) => {
                self.connection = Some(Connection { stream, buffer: Vec::new(), width: AsWidth::Four });
                Input::Connected
            }
            Err(error) => Input::Failed(error.to_string()),
        }
    }

    fn close(&mut self) {
        self.connection = None;
        self.terms = None;
        self.announced.clear();
    }

    /// Sends messages; returns the input of a failure.
    async fn send(&mut self, messages: &[Message]) -> Option<Input> {
        let connection = self.connection.as_mut()?;
        let bytes: Vec<u8> = messages.iter().flat_map(|message| message.encode(connection.width)).collect();
        match tokio::time::timeout(WRITE_LIMIT, connection.stream.write_all(&bytes)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(Input::Closed(error.to_string())),
            Err(_) => Some(Input::Closed("the peer does not read".to_owned())),
        }
    }

    async fn up(&mut self, negotiated: Negotiated) -> Option<Input> {
        let connection = self.connection.as_mut()?;
        connection.width = negotiated.width;
        let local = match connection.stream.local_addr() {
            Ok(address) => address.ip(),
            Err(error) => return Some(Input::Closed(error.to_string())),
        };
        let (next_hop_v4, next_hop_v6) = rib::next_hops(local, &self.peer.node_addresses);
        let settings = &self.peer.settings;
        self.terms = Some(Terms {
            local_as: settings.local_as,
            is_internal: settings.local_as == settings.peer_as,
            width: negotiated.width,
            next_hop_v4: next_hop_v4.filter(|_| negotiated.takes_v4),
            next_hop_v6: next_hop_v6.filter(|_| negotiated.takes_v6),
        });
        self.announced.clear();
        self.report(Status::Established).await;
        self.announce_all(None).await
    }

    /// Announces all routes, of one family or of both, and marks their end.
    async fn announce_all(&mut self, family: Option<Family>) -> Option<Input> {
        let failed = self.announce_changes().await;
        let mut ends = self.terms.as_ref().map(rib::end_of_rib).unwrap_or_default();
        if let Some(family) = family {
            let end = Message::Update(crate::message::Update::end_of_rib(family));
            ends.retain(|message| *message == end);
        }
        match failed {
            Some(failed) => Some(failed),
            None => self.send(&ends).await,
        }
    }

    /// Announces changed routes, if the session is established.
    async fn announce(&mut self) {
        if let Some(failed) = self.announce_changes().await {
            self.handle(failed).await;
        }
    }

    async fn announce_changes(&mut self) -> Option<Input> {
        let wanted = self.channels.routes.borrow_and_update().clone();
        let messages = rib::updates(&self.announced, &wanted, self.terms.as_ref()?);
        let failed = self.send(&messages).await;
        self.announced = wanted;
        failed
    }

    async fn end(&mut self, ending: Ending) {
        if ending == Ending::Restart || self.terms.is_none() {
            return;
        }
        let terms = self.terms.clone().into_iter();
        let mut messages: Vec<Message> =
            terms.flat_map(|terms| rib::updates(&self.announced, &BTreeMap::new(), &terms)).collect();
        messages.push(Message::Notification(Notification::cease(Notification::PEER_DECONFIGURED)));
        self.send(&messages).await;
        if let Some(connection) = &mut self.connection {
            // Without it, unread bytes of the peer would make the kernel drop what was just sent.
            let _ = tokio::time::timeout(WRITE_LIMIT, connection.stream.shutdown()).await;
        }
    }

    async fn report(&self, status: Status) {
        // The receiver is gone only when the speaker stops.
        let _ = self.channels.status.send(status).await;
    }
}

impl Connection {
    /// Takes the next whole message off the buffer.
    fn take(&mut self) -> Option<Input> {
        if self.buffer.len() < HEADER {
            return None;
        }
        match Message::take(&mut self.buffer, self.width) {
            Ok(message) => message.map(Input::Message),
            Err(notification) => Some(Input::Malformed(notification)),
        }
    }
}

/// Reads until a whole message is there; pending without a connection. A cancelled read loses nothing.
async fn read(connection: &mut Option<Connection>) -> Option<Input> {
    let Some(connection) = connection else { return std::future::pending().await };
    loop {
        if let Some(input) = connection.take() {
            return Some(input);
        }
        let mut bytes = [0; READ_LIMIT];
        match connection.stream.read(&mut bytes).await {
            Ok(0) => return Some(Input::Closed("the peer closed it".to_owned())),
            Ok(count) => connection.buffer.extend_from_slice(&bytes[..count]),
            Err(error) => return Some(Input::Closed(error.to_string())),
        }
    }
}
