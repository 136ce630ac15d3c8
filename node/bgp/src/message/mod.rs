//! The messages of BGP-4 (RFC 4271) as a pure codec: bytes in, a message or the notification of its error out.
//!
//! Invariant: no input panics, a message is at most [`MOST`] bytes, and an encoded message decodes to itself.

mod attribute;
mod notification;
mod open;

pub use attribute::{Attribute, LargeCommunity, Segment, Update};
pub use notification::Notification;
pub use open::{Capability, Open, RestartFamily};

use crate::prefix::Family;

/// The length of a message's header.
pub const HEADER: usize = 19;
/// The length of the longest message.
pub const MOST: usize = 4096;

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;
const ROUTE_REFRESH: u8 = 5;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Open(Open),
    Update(Update),
    Notification(Notification),
    Keepalive,
    /// The request to announce all routes of a family again (RFC 2918); `None` for a family that is not ours.
    RouteRefresh(Option<Family>),
}

/// The width of AS numbers in the AS path of an UPDATE: four bytes if both speakers can (RFC 6793).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsWidth {
    Two,
    Four,
}

impl Message {
    /// Encodes the message with its header.
    pub fn encode(&self, width: AsWidth) -> Vec<u8> {
        let mut out = vec![0xff; 16];
        out.extend_from_slice(&[0, 0]);
        match self {
            Message::Open(open) => {
                out.push(OPEN);
                open.encode(&mut out);
            }
            Message::Update(update) => {
                out.push(UPDATE);
                update.encode(&mut out, width);
            }
            Message::Notification(notification) => {
                out.push(NOTIFICATION);
                notification.encode(&mut out);
            }
            Message::Keepalive => out.push(KEEPALIVE),
            Message::RouteRefresh(family) => {
                out.push(ROUTE_REFRESH);
                let afi = family.map_or(0, Family::afi);
                out.extend_from_slice(&afi.to_be_bytes());
                out.extend_from_slice(&[0, 1]);
            }
        }
        let length = out.len() as u16;
        out[16..18].copy_from_slice(&length.to_be_bytes());
        out
    }

    /// Takes the first whole message off the bytes; `None` until all of it has arrived.
    pub fn take(bytes: &mut Vec<u8>, width: AsWidth) -> Result<Option<Message>, Notification> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = length(header)?;
        if bytes.len() < length {
            return Ok(None);
        }
        let whole: Vec<u8> = bytes.drain(..length).collect();
        Message::decode(&whole, width).map(Some)
    }

    /// Decodes one whole message.
    pub fn decode(bytes: &[u8], width: AsWidth) -> Result<Message, Notification> {
        let header = bytes.first_chunk::<HEADER>().ok_or_else(|| Notification::bad_length(bytes.len()))?;
        let length = length(header)?;
        if length != bytes.len() {
            return Err(Notification::bad_length(bytes.len()));
        }
        let body = &bytes[HEADER..];
        match header[18] {
            OPEN => Open::decode(body).map(Message::Open),
            UPDATE => Update::decode(body, width).map(Message::Update),
            NOTIFICATION => Notification::decode(body).map(Message::Notification),
            KEEPALIVE if body.is_empty() => Ok(Message::Keepalive),
            ROUTE_REFRESH => match body {
                [high, low, _, safi] => {
                    let family = Family::by_number(u16::from_be_bytes([*high, *low]), *safi);
                    Ok(Message::RouteRefresh(family))
                }
                _ => Err(Notification::bad_length(bytes.len())),
            },
            KEEPALIVE => Err(Notification::bad_length(bytes.len())),
            other => Err(Notification::new(Notification::HEADER_ERROR, 3, vec![other])),
        }
    }
}

/// Returns the length of the message with this header.
fn length(header: &[u8; HEADER]) -> Result<usize, Notification> {
    if header[..16] != [0xff; 16] {
        return Err(Notification::new(Notification::HEADER_ERROR, 1, Vec::new()));
    }
    let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
    match (HEADER..=MOST).contains(&length) {
        true => Ok(length),
        false => Err(Notification::bad_length(length)),
    }
}

#[cfg(test)]
mod tests;
