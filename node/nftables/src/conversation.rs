//! Requests to the kernel and their answers, one at a time, over any kind of netlink; and the families of generic
//! netlink, which are found by name.
//!
//! nf_tables has a socket of its own, because its batches are not requests of this kind.

use std::io;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// The control family, its request, and two of its attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const KIND: u16 = 0x3fff;

/// The flags of a request.
pub mod request_flags {
    /// Acknowledge the request after the last answer.
    pub const ACKNOWLEDGE: u16 = 4;
    /// Return all objects.
    pub const DUMP: u16 = 0x300;
    /// Replace an existing object.
    pub const REPLACE: u16 = 0x100;
    /// Create a missing object.
    pub const CREATE: u16 = 0x400;
}

/// The flag of attributes that hold attributes.
pub const NESTED: u16 = 0x8000;

/// A netlink connection to the kernel, in the network namespace of the thread that opened it.
pub struct Conversation {
    socket: Socket,
    sequence: u32,
}

impl Conversation {
    pub fn open(protocol: isize) -> io::Result<Conversation> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(Conversation { socket, sequence: 0 })
    }

    /// Sends one message, and returns the bodies of all answers. `flags` must contain an acknowledgement or a dump:
    /// otherwise no answer is known to be the last.
    pub fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        request.extend(kind.to_ne_bytes());
        request.extend((REQUEST | flags).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(body);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        let mut answers = Vec::new();
        loop {
            let (received, _) = self.socket.recv_from_full()?;
            if take(&received, self.sequence, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Takes the messages of one datagram; returns whether the last answer was among them.
pub(crate) fn take(mut rest: &[u8], sequence: u32, answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    while let Some(length) = word(rest, 0).map(u32::from_ne_bytes) {
        let Some(message) = rest.get(..length as usize).filter(|message| message.len() >= HEADER) else { break };
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let ours = word(message, 8).map(u32::from_ne_bytes) == Some(sequence);
        match kind {
            _ if !ours => {}
            ERROR => {
                return match word(message, HEADER).map(i32::from_ne_bytes) {
                    Some(0) => Ok(true),
                    Some(code) => Err(io::Error::from_raw_os_error(-code)),
                    None => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            DONE => return Ok(true),
            _ => answers.push(message.get(HEADER..).unwrap_or_default().to_vec()),
        }
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// A netlink connection to a family of generic netlink.
pub struct GenericFamily {
    conversation: Conversation,
    id: u16,
}

impl GenericFamily {
    /// Looks a family up, which loads its module where the kernel has one. `ENOENT` means that there is no such family.
    pub fn open(name: &str) -> io::Result<GenericFamily> {
        let mut family = GenericFamily { conversation: Conversation::open(NETLINK_GENERIC)?, id: CONTROL };
        let mut question = Vec::new();
        put(&mut question, FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        let answers = family.request(GET_FAMILY, request_flags::ACKNOWLEDGE, &question)?;
        let id = answers.iter().find_map(|answer| find(answer, FAMILY_ID)?.try_into().ok());
        family.id = id.map(u16::from_ne_bytes).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(family)
    }

    /// Sends one command, and returns the attributes of every answer.
    pub fn request(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let body = [&[command, 1, 0, 0], attributes].concat();
        let mut answers = self.conversation.request(self.id, flags, &body)?;
        for answer in &mut answers {
            answer.drain(..GENERIC_HEADER.min(answer.len()));
        }
        Ok(answers)
    }
}

/// Puts an attribute, padded for the next one.
pub fn put(out: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    out.extend((payload.len() as u16 + 4).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(payload);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Returns the attributes of a message; a truncated one ends them.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let number = |at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let length = usize::from(number(0)?);
        let kind = number(2)? & KIND;
        let payload = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}

/// Returns the first attribute of a kind.
pub fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, payload)| payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_of_families_is_found_and_another_is_not() {
        assert_eq!(GenericFamily::open("nlctrl").unwrap().id, CONTROL);
        let unknown = GenericFamily::open("corten-none").map(|family| family.id).unwrap_err();
        assert_eq!(unknown.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn answers_end_with_an_acknowledgement_an_error_or_the_end_of_a_list() {
        let message = |kind: u16, sequence: u32, body: &[u8]| {
            let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
            bytes.extend([kind.to_ne_bytes(), [0, 0]].concat());
            bytes.extend([sequence.to_ne_bytes(), [0; 4]].concat());
            bytes.extend(body);
            bytes
        };
        let datagram = [message(0x20, 1, &[9; 4]), message(DONE, 1, &[0; 4])].concat();
        let mut answers = Vec::new();
        assert!(take(&datagram, 1, &mut answers).unwrap());
        assert_eq!(answers, [vec![9; 4]]);
        assert!(!take(&datagram, 2, &mut answers).unwrap(), "the answer to another request is skipped");
        assert!(take(&message(ERROR, 1, &0i32.to_ne_bytes()), 1, &mut answers).unwrap());
        let refused = take(&message(ERROR, 1, &(-2i32).to_ne_bytes()), 1, &mut answers).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(2));
        assert!(!take(&datagram[..7], 1, &mut answers).unwrap());
    }
}
