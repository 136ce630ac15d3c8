//! The state machine of a session (RFC 5880, section 6.8), as a pure function of packets and time.
//!
//! Invariant: outputs depend on inputs and their times alone.

use std::time::{Duration, Instant};

use super::Settings;
use super::packet::{Diagnostic, Packet, State};

/// The least interval of packets while the session is not up.
const SLOW: Duration = Duration::from_secs(1);

/// The effects of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// The packet to send at once.
    pub answer: Option<Packet>,
    pub transition: Option<Transition>,
}

/// A change of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    Up,
    /// The peer, or the way to it, is gone.
    Lost(String),
    /// The peer turned its session off on purpose; the way to it may be fine.
    TurnedOff,
}

/// The peer's side, as its last packet described it.
#[derive(Clone, Debug)]
struct Remote {
    discriminator: u32,
    min_transmit: Duration,
    min_receive: Duration,
    multiplier: u8,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    remote: Option<Remote>,
    expires: Option<Instant>,
    /// Whether the peer has yet to acknowledge the interval of the state Up.
    polls: bool,
}

impl Machine {
    /// Returns a machine; its discriminator must not be zero.
    pub fn new(settings: Settings, discriminator: u32) -> Machine {
        Machine {
            settings,
            discriminator,
            state: State::Down,
            diagnostic: Diagnostic::None,
            remote: None,
            expires: None,
            polls: false,
        }
    }

    /// Returns the time at which the session expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.expires
    }

    /// Returns the interval of packets before jitter; `None` if the peer wants none.
    pub fn interval(&self) -> Option<Duration> {
        match &self.remote {
            Some(remote) if remote.min_receive.is_zero() => None,
            Some(remote) => Some(self.min_transmit().max(remote.min_receive)),
            None => Some(self.min_transmit()),
        }
    }

    /// Returns the packet that is due.
    pub fn packet(&self) -> Packet {
        Packet {
            diagnostic: self.diagnostic as u8,
            state: self.state,
            poll: self.polls,
            is_final: false,
            multiplier: self.settings.multiplier,
            mine: self.discriminator,
            yours: self.remote.as_ref().map_or(0, |remote| remote.discriminator),
            min_transmit: self.min_transmit(),
            min_receive: self.settings.receive_interval,
        }
    }

    /// Turns the session off and returns the packet that says so.
    pub fn turn_off(&mut self) -> Packet {
        self.state = State::AdminDown;
        self.diagnostic = Diagnostic::AdministrativelyDown;
        self.expires = None;
        self.polls = false;
        self.packet()
    }

    /// Takes a packet of the peer.
    pub fn receive(&mut self, packet: &Packet, now: Instant) -> Reaction {
        if self.state == State::AdminDown || (packet.yours != 0 && packet.yours != self.discriminator) {
            return Reaction::default();
        }
        let remote = Remote {
            discriminator: packet.mine,
            min_transmit: packet.min_transmit,
            min_receive: packet.min_receive,
            multiplier: packet.multiplier,
        };
        self.expires = Some(now + self.detection_time(&remote));
        self.remote = Some(remote);
        if packet.is_final {
            self.polls = false;
        }
        let transition = self.follow(packet.state);
        let answer = packet.poll.then(|| Packet { poll: false, is_final: true, ..self.packet() });
        Reaction { answer, transition }
    }

    /// Takes the passing of time.
    pub fn tick(&mut self, now: Instant) -> Option<Transition> {
        let remote = self.remote.as_ref()?;
        if self.expires.is_none_or(|expires| now < expires) {
            return None;
        }
        let limit = self.detection_time(remote);
        self.expires = None;
        self.remote = None;
        let was_up = self.state == State::Up;
        self.go(State::Down, Diagnostic::DetectionTimeExpired);
        was_up.then(|| Transition::Lost(format!("BFD received no packet for {} ms", limit.as_millis())))
    }

    /// Follows the state of the peer.
    fn follow(&mut self, theirs: State) -> Option<Transition> {
        match (self.state, theirs) {
            (State::Down, State::Down) => {
                self.go(State::Init, Diagnostic::None);
                None
            }
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.go(State::Up, Diagnostic::None);
                Some(Transition::Up)
            }
            (State::Up, State::Down) => {
                self.go(State::Down, Diagnostic::NeighborSignaledDown);
                Some(Transition::Lost("BFD: the peer no longer receives packets".to_owned()))
            }
            (State::Up, State::AdminDown) => {
                self.go(State::Down, Diagnostic::NeighborSignaledDown);
                Some(Transition::TurnedOff)
            }
            (State::Init, State::AdminDown) => {
                self.go(State::Down, Diagnostic::NeighborSignaledDown);
                None
            }
            _ => None,
        }
    }

    fn go(&mut self, state: State, diagnostic: Diagnostic) {
        self.state = state;
        self.diagnostic = diagnostic;
        // The shorter interval of the state Up is new to the peer.
        self.polls = state == State::Up;
    }

    fn min_transmit(&self) -> Duration {
        match self.state {
            State::Up => self.settings.transmit_interval,
            _ => self.settings.transmit_interval.max(SLOW),
        }
    }

    fn detection_time(&self, remote: &Remote) -> Duration {
        self.settings.receive_interval.max(remote.min_transmit) * remote.multiplier.into()
    }
}

#[cfg(test)]
mod tests;
