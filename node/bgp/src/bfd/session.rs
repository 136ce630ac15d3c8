//! A session with one peer: sends packets in time, and reports the machine's transitions.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::listener::PORT;
use super::machine::{Machine, Transition};
use super::packet::Packet;
use super::{Settings, random};

/// The first of the source ports that RFC 5881 permits.
const FIRST_SOURCE_PORT: u16 = 49152;
/// The number of source ports that are tried: others may be in use.
const ATTEMPTS: usize = 32;
/// The wait after a failure to make the socket: the address may not be there yet.
const RETRY: Duration = Duration::from_secs(1);
const NEIGHBOR_TTL: i32 = 255;

/// A change of a session.
pub type Change = Transition;

/// A session with one peer.
pub struct Session {
    pub peer: IpAddr,
    /// The local address; the kernel chooses one otherwise.
    pub source: Option<IpAddr>,
    pub settings: Settings,
    pub received: mpsc::Receiver<Packet>,
    pub changes: mpsc::Sender<Change>,
}

impl Session {
    /// Keeps the session until it is stopped; the peer then hears that this is on purpose.
    pub async fn run(mut self, stop: CancellationToken) {
        let Some(socket) = self.socket(&stop).await else { return };
        let mut machine = Machine::new(self.settings.clone(), random() as u32 | 1);
        let mut sent = Instant::now();
        let mut share = jitter(self.settings.multiplier);
        send(&socket, &machine.packet()).await;
        loop {
            let due = machine.interval().map(|interval| sent + interval.mul_f64(share));
            tokio::select! {
                () = stop.cancelled() => return send(&socket, &machine.turn_off()).await,
                () = until(due) => {
                    send(&socket, &machine.packet()).await;
                    sent = Instant::now();
                    share = jitter(self.settings.multiplier);
                }
                () = until(machine.deadline()) => {
                    let transition = machine.tick(Instant::now());
                    self.report(transition).await;
                }
                Some(packet) = self.received.recv() => {
                    let reaction = machine.receive(&packet, Instant::now());
                    if let Some(answer) = reaction.answer {
                        send(&socket, &answer).await;
                    }
                    self.report(reaction.transition).await;
                }
            }
        }
    }

    /// Makes the socket, again and again; `None` if the session is stopped before.
    async fn socket(&self, stop: &CancellationToken) -> Option<UdpSocket> {
        let mut last = String::new();
        loop {
            match connect(self.peer, self.source).and_then(UdpSocket::from_std) {
                Ok(socket) => return Some(socket),
                Err(error) if error.to_string() != last => {
                    last = error.to_string();
                    warn!(peer = %self.peer, "BFD cannot send: {last}");
                }
                Err(_) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn report(&self, transition: Option<Transition>) {
        if let Some(transition) = transition {
            // The receiver is gone only when the speaker stops.
            let _ = self.changes.send(transition).await;
        }
    }
}

/// Returns a socket that sends to the peer with the TTL of a neighbour.
fn connect(peer: IpAddr, source: Option<IpAddr>) -> io::Result<StdSocket> {
    let unspecified = match peer {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = bind(source.unwrap_or(unspecified))?;
    match peer {
        IpAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4Ttl, &NEIGHBOR_TTL)?,
        IpAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6Ttl, &NEIGHBOR_TTL)?,
    }
    socket.connect(SocketAddr::new(peer, PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind(source: IpAddr) -> io::Result<StdSocket> {
    let mut last = io::ErrorKind::AddrInUse.into();
    for _ in 0..ATTEMPTS {
        let port = FIRST_SOURCE_PORT | random() as u16;
        match StdSocket::bind(SocketAddr::new(source, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            other => return other,
        }
    }
    Err(last)
}

/// Sends a packet. One that is lost is like one that the network lost.
async fn send(socket: &UdpSocket, packet: &Packet) {
    let _ = socket.send(&packet.encode()).await;
}

/// Returns the share of the interval after which the next packet is sent (RFC 5880, section 6.8.7).
fn jitter(multiplier: u8) -> f64 {
    let longest = if multiplier == 1 { 0.9 } else { 1.0 };
    let random = (random() % 1000) as f64 / 1000.0;
    0.75 + random * (longest - 0.75)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
