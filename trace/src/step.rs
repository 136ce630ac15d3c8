//! A step of a trace.

use std::fmt;

use jiff::Timestamp;

/// The component that took a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Actor {
    Client,
    Controllers,
    Scheduler,
    Kubelet,
}

impl Actor {
    pub const ALL: [Actor; 4] = [Actor::Client, Actor::Controllers, Actor::Scheduler, Actor::Kubelet];

    /// Returns the actor that a field manager, or the source of an Event, stands for.
    pub fn of(manager: &str) -> Actor {
        match manager {
            "kubelet" => Actor::Kubelet,
            name if name.contains("scheduler") => Actor::Scheduler,
            name if name.contains("controller") => Actor::Controllers,
            _ => Actor::Client,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Actor::Client => "client",
            Actor::Controllers => "controllers",
            Actor::Scheduler => "scheduler",
            Actor::Kubelet => "kubelet",
        }
    }
}

/// One step: an actor changed an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Timestamp,
    pub actor: Actor,
    /// The kind and name of the object, such as `Pod/web-1`.
    pub object: String,
    pub text: String,
}

impl Step {
    /// Returns the time since the first step, in milliseconds.
    pub fn milliseconds_since(&self, first: Timestamp) -> i64 {
        self.at.as_millisecond().saturating_sub(first.as_millisecond())
    }

    /// Prints a line of the table.
    pub fn line(&self, first: Timestamp) -> String {
        let milliseconds = self.milliseconds_since(first);
        let seconds = format!("{}.{:03}", milliseconds / 1000, milliseconds % 1000);
        format!("{seconds:>9}  {:<11}  {:<40}  {}", self.actor.name(), self.object, self.text)
    }
}

/// Returns the header of the table.
pub fn table_header() -> String {
    format!("{:>9}  {:<11}  {:<40}  {}", "SECONDS", "COMPONENT", "OBJECT", "STEP")
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.at, self.actor.name(), self.object, self.text)
    }
}
