//! NOTIFICATION: the error with which a speaker ends a session, and its sentence for people.

use std::fmt;

use crate::reader::Reader;

/// An error code, its subcode and data. It ends the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub code: u8,
    pub subcode: u8,
    pub data: Vec<u8>,
}

impl Notification {
    pub const HEADER_ERROR: u8 = 1;
    pub const OPEN_ERROR: u8 = 2;
    pub const UPDATE_ERROR: u8 = 3;
    pub const HOLD_TIMER_EXPIRED: u8 = 4;
    pub const STATE_ERROR: u8 = 5;
    pub const CEASE: u8 = 6;

    pub const UNSUPPORTED_VERSION: u8 = 1;
    pub const BAD_PEER_AS: u8 = 2;
    pub const BAD_IDENTIFIER: u8 = 3;
    pub const BAD_HOLD_TIME: u8 = 6;
    pub const ADMINISTRATIVE_SHUTDOWN: u8 = 2;
    pub const PEER_DECONFIGURED: u8 = 3;

    pub fn new(code: u8, subcode: u8, data: Vec<u8>) -> Notification {
        Notification { code, subcode, data }
    }

    /// Returns the notification that ends a session on purpose.
    pub fn cease(subcode: u8) -> Notification {
        Notification::new(Notification::CEASE, subcode, Vec::new())
    }

    /// Returns the error of a message whose length does not fit its type.
    pub(super) fn bad_length(length: usize) -> Notification {
        let length = u16::try_from(length).unwrap_or(u16::MAX);
        Notification::new(Notification::HEADER_ERROR, 2, length.to_be_bytes().to_vec())
    }

    /// Returns the error of an OPEN that is cut or has a malformed parameter.
    pub(super) fn malformed_open() -> Notification {
        Notification::new(Notification::OPEN_ERROR, 0, Vec::new())
    }

    /// Returns the error of an UPDATE whose attributes are malformed.
    pub(super) fn malformed_attributes() -> Notification {
        Notification::new(Notification::UPDATE_ERROR, 1, Vec::new())
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.code, self.subcode]);
        out.extend_from_slice(&self.data);
    }

    pub(super) fn decode(body: &[u8]) -> Result<Notification, Notification> {
        let mut reader = Reader(body);
        let (Some(code), Some(subcode)) = (reader.u8(), reader.u8()) else {
            return Err(Notification::bad_length(super::HEADER + body.len()));
        };
        Ok(Notification { code, subcode, data: reader.0.to_vec() })
    }

    /// Returns the shutdown message that an operator wrote (RFC 9003), without control characters.
    fn operator_message(&self) -> Option<String> {
        let is_shutdown = self.code == Notification::CEASE && [2, 4].contains(&self.subcode);
        let (length, text) = self.data.split_first().filter(|_| is_shutdown)?;
        let text = std::str::from_utf8(text.get(..usize::from(*length))?).ok()?;
        let clean: String = text.chars().filter(|character| !character.is_control()).collect();
        (!clean.is_empty()).then_some(clean)
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = match (self.code, self.subcode) {
            (1, 1) => "the connection is not synchronized",
            (1, 2) => "a message has a bad length",
            (1, 3) => "a message has a bad type",
            (1, _) => "a message has a bad header",
            (2, 1) => "the BGP version is not supported",
            (2, 2) => "the AS number is not the one that the peer expects",
            (2, 3) => "the router ID is bad",
            (2, 4) => "an optional parameter is not supported",
            (2, 6) => "the hold time is not acceptable",
            (2, 7) => "a capability is not supported",
            (2, _) => "the OPEN message is bad",
            (3, _) => "an UPDATE message is bad",
            (4, _) => "the hold timer expired",
            (5, _) => "a message came at the wrong time",
            (6, 1) => "the maximum number of prefixes is reached",
            (6, 2) => "the session was shut down by the administrator",
            (6, 3) => "the peer is no longer configured",
            (6, 4) => "the session was reset by the administrator",
            (6, 5) => "the connection was rejected: the peer does not expect one from this address",
            (6, 6) => "the peer's configuration changed",
            (6, 7) => "another connection of the two speakers was kept",
            (6, 8) => "the peer is out of resources",
            (6, _) => "the session was ceased",
            _ => "an unknown error",
        };
        write!(f, "{sentence} (code {}, subcode {})", self.code, self.subcode)?;
        match self.operator_message() {
            Some(text) => write!(f, ": {text}"),
            None => Ok(()),
        }
    }
}
