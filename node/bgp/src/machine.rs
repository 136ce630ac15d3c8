//! The state machine of one session (RFC 4271, section 8), as a pure function of inputs and time.
//!
//! The speaker dials; it never listens. So there is no collision of two connections, and of upstream's six states the
//! state Active is absent. No route is imported: a malformed UPDATE is ignored, where other speakers treat its routes
//! as withdrawn (RFC 7606), because there is nothing to withdraw.
//!
//! Invariant: outputs depend on inputs and their times alone. After `Close` no message is sent until `Connect`.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::message::{AsWidth, Capability, Message, Notification, Open, RestartFamily};
use crate::prefix::Family;

/// The wait before the first repeated connection, which doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The hold time until the peer's OPEN has arrived.
const OPENING: Duration = Duration::from_secs(20);
/// The duration of a session from which the next failure is the first again.
const STABLE: Duration = Duration::from_secs(60);

/// The speaker's side of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub local_as: u32,
    pub peer_as: u32,
    pub router_id: Ipv4Addr,
    /// The proposed hold time in seconds, at least 3.
    pub hold_time: u16,
    /// The seconds for which the peer keeps routes while the speaker restarts; 0 turns graceful restart off.
    pub restart_time: u16,
}

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The connection that was asked for is there.
    Connected,
    /// The connection could not be made.
    Failed(String),
    Message(Message),
    /// Bytes arrived that are no message.
    Malformed(Notification),
    /// The peer closed the connection, or it broke.
    Closed(String),
    /// A deadline may have passed.
    Tick,
}

/// An effect that the owner of the machine carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Connect,
    Send(Message),
    Close,
    /// The session is established: routes may be announced.
    Up(Negotiated),
    /// The peer asks for all routes of a family again.
    Refresh(Family),
    /// The session ended, or could not begin.
    Down(Reason),
}

/// The common capabilities of both speakers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub width: AsWidth,
    pub takes_v4: bool,
    pub takes_v6: bool,
    /// Whether the peer keeps routes while this speaker restarts.
    pub keeps_routes: bool,
}

/// The reason why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    Unreachable(String),
    /// The peer ended the session with a notification.
    Notified(Notification),
    /// This speaker ended the session with a notification.
    Refused(Notification),
    /// The peer's AS number is not the configured one.
    WrongAs {
        expected: u32,
        found: u32,
    },
    Closed(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unreachable(why) => write!(f, "{why}"),
            Reason::Notified(notification) => write!(f, "the peer ended the session: {notification}"),
            Reason::Refused(notification) => write!(f, "this node ended the session: {notification}"),
            Reason::WrongAs { expected, found } => {
                write!(f, "the peer has the AS number {found}, and spec.peerASN is {expected}")
            }
            Reason::Closed(why) => write!(f, "the connection was lost: {why}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Idle { until: Instant },
    Connecting,
    OpenSent { expires: Instant },
    OpenConfirm { open: Box<Open>, timers: Timers },
    Established { since: Instant, timers: Timers },
}

/// The timers of a session. A hold time of zero turns both off.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Timers {
    hold: Duration,
    expires: Option<Instant>,
    keepalive: Option<Instant>,
}

impl Timers {
    fn start(hold: Duration, now: Instant) -> Timers {
        let mut timers = Timers { hold, expires: None, keepalive: None };
        timers.heard(now);
        timers.sent(now);
        timers
    }

    /// Restarts the hold timer: the peer sent a message.
    fn heard(&mut self, now: Instant) {
        self.expires = (!self.hold.is_zero()).then(|| now + self.hold);
    }

    /// Restarts the keepalive timer.
    fn sent(&mut self, now: Instant) {
        self.keepalive = (!self.hold.is_zero()).then(|| now + self.hold / 3);
    }
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    wait: Duration,
    /// Whether this speaker may have announced routes before it started: the first OPEN says that it restarted.
    restarted: bool,
}

impl Machine {
    /// Returns a machine that connects at its first tick.
    pub fn new(settings: Settings, now: Instant) -> Machine {
        Machine { settings, state: State::Idle { until: now }, wait: FIRST_WAIT, restarted: true }
    }

    /// Returns the time at which the machine wants a tick.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Idle { until } => Some(*until),
            State::Connecting => None,
            State::OpenSent { expires } => Some(*expires),
            State::OpenConfirm { timers, .. } | State::Established { timers, .. } => {
                timers.expires.into_iter().chain(timers.keepalive).min()
            }
        }
    }

    #[cfg(test)]
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established { .. })
    }

    /// Returns the effects of an input.
    pub fn handle(&mut self, input: Input, now: Instant) -> Vec<Output> {
        match input {
            Input::Tick => self.tick(now),
            Input::Connected => self.connected(now),
            Input::Failed(why) => match self.state {
                State::Connecting => self.down(Reason::Unreachable(why), now),
                _ => Vec::new(),
            },
            Input::Closed(why) => match self.state {
                State::Idle { .. } | State::Connecting => Vec::new(),
                _ => self.down(Reason::Closed(why), now),
            },
            Input::Malformed(notification) => self.malformed(notification, now),
            Input::Message(message) => self.message(message, now),
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Output> {
        match &mut self.state {
            State::Idle { until } if *until <= now => {
                self.state = State::Connecting;
                vec![Output::Connect]
            }
            State::OpenSent { expires } if *expires <= now => self.expired(now),
            State::OpenConfirm { timers, .. } | State::Established { timers, .. } => {
                if timers.expires.is_some_and(|expires| expires <= now) {
                    return self.expired(now);
                }
                match timers.keepalive.is_some_and(|due| due <= now) {
                    true => {
                        timers.sent(now);
                        vec![Output::Send(Message::Keepalive)]
                    }
                    false => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    fn expired(&mut self, now: Instant) -> Vec<Output> {
        self.refuse(Notification::new(Notification::HOLD_TIMER_EXPIRED, 0, Vec::new()), now)
    }

    fn connected(&mut self, now: Instant) -> Vec<Output> {
        if self.state != State::Connecting {
            return Vec::new();
        }
        self.state = State::OpenSent { expires: now + OPENING };
        vec![Output::Send(Message::Open(self.open()))]
    }

    fn open(&self) -> Open {
        let mut capabilities: Vec<Capability> = Family::ALL.map(Capability::Multiprotocol).into();
        capabilities.push(Capability::RouteRefresh);
        if self.settings.restart_time > 0 {
            // The kernel's rules forward packets whether or not this process runs.
            let families = Family::ALL.map(|family| RestartFamily { family, forwarding_preserved: true }).into();
            capabilities.push(Capability::GracefulRestart {
                restarted: self.restarted,
                restart_time: self.settings.restart_time,
                families,
            });
        }
        Open::new(self.settings.local_as, self.settings.hold_time, self.settings.router_id, capabilities)
    }

    fn malformed(&mut self, notification: Notification, now: Instant) -> Vec<Output> {
        match &mut self.state {
            State::Idle { .. } | State::Connecting => Vec::new(),
            State::Established { timers, .. } if notification.code == Notification::UPDATE_ERROR => {
                timers.heard(now);
                Vec::new()
            }
            _ => self.refuse(notification, now),
        }
    }

    fn message(&mut self, message: Message, now: Instant) -> Vec<Output> {
        if let State::Idle { .. } | State::Connecting = self.state {
            return Vec::new();
        }
        if let Message::Notification(notification) = message {
            return self.down(Reason::Notified(notification), now);
        }
        match (&mut self.state, message) {
            (State::OpenSent { .. }, Message::Open(open)) => self.opened(open, now),
            (State::OpenConfirm { open, timers }, Message::Keepalive) => {
                let negotiated = negotiated(open);
                let mut timers = timers.clone();
                timers.heard(now);
                self.restarted = false;
                self.state = State::Established { since: now, timers };
                vec![Output::Up(negotiated)]
            }
            (State::Established { timers, .. }, Message::Keepalive | Message::Update(_)) => {
                timers.heard(now);
                Vec::new()
            }
            (State::Established { timers, .. }, Message::RouteRefresh(family)) => {
                timers.heard(now);
                family.map(Output::Refresh).into_iter().collect()
            }
            _ => self.refuse(Notification::new(Notification::STATE_ERROR, 0, Vec::new()), now),
        }
    }

    fn opened(&mut self, open: Open, now: Instant) -> Vec<Output> {
        if open.asn() != self.settings.peer_as {
            let found = open.asn();
            let error = Notification::new(Notification::OPEN_ERROR, Notification::BAD_PEER_AS, Vec::new());
            let mut outputs = vec![Output::Send(Message::Notification(error))];
            outputs.extend(self.down(Reason::WrongAs { expected: self.settings.peer_as, found }, now));
            return outputs;
        }
        let is_internal = self.settings.local_as == self.settings.peer_as;
        let bad = match () {
            () if open.hold_time == 1 || open.hold_time == 2 => Some(Notification::BAD_HOLD_TIME),
            () if open.router_id.is_unspecified() => Some(Notification::BAD_IDENTIFIER),
            () if is_internal && open.router_id == self.settings.router_id => Some(Notification::BAD_IDENTIFIER),
            () => None,
        };
        if let Some(subcode) = bad {
            return self.refuse(Notification::new(Notification::OPEN_ERROR, subcode, Vec::new()), now);
        }
        let hold = Duration::from_secs(self.settings.hold_time.min(open.hold_time).into());
        self.state = State::OpenConfirm { open: Box::new(open), timers: Timers::start(hold, now) };
        vec![Output::Send(Message::Keepalive)]
    }

    /// Ends the session with a notification.
    fn refuse(&mut self, notification: Notification, now: Instant) -> Vec<Output> {
        let mut outputs = vec![Output::Send(Message::Notification(notification.clone()))];
        outputs.extend(self.down(Reason::Refused(notification), now));
        outputs
    }

    fn down(&mut self, reason: Reason, now: Instant) -> Vec<Output> {
        if let State::Established { since, .. } = self.state
            && now.saturating_duration_since(since) >= STABLE
        {
            self.wait = FIRST_WAIT;
        }
        self.state = State::Idle { until: now + self.wait };
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        vec![Output::Close, Output::Down(reason)]
    }
}

fn negotiated(open: &Open) -> Negotiated {
    Negotiated {
        width: if open.four_octet_as().is_some() { AsWidth::Four } else { AsWidth::Two },
        takes_v4: open.takes(Family::Ipv4),
        takes_v6: open.takes(Family::Ipv6),
        keeps_routes: open.keeps_routes(),
    }
}

#[cfg(test)]
mod tests;
