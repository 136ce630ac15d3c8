//! The netlink socket: sends a batch and reads the kernel's verdict, or dumps the kernel's objects.
//!
//! A socket belongs to the network namespace of the thread that opened it. Calls block, but only for
//! as long as the kernel works: nf_tables handles a batch inside the system call that sends it, so
//! when `send` returns the answers are already in the receive queue.

use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::{Socket as NetlinkSocket, SocketAddr, protocols::NETLINK_NETFILTER};

use crate::attributes::find;
use crate::batch::{Batch, write_message};
use crate::error::Error;
use crate::uapi;

/// The size of the largest batch: 64 MiB are about half a million map elements.
const SEND_BUFFER: libc::c_int = 64 * 1024 * 1024;
const RECEIVE_BUFFER: libc::c_int = 4 * 1024 * 1024;
/// The number of attempts of a dump that another writer interrupts.
const DUMP_ATTEMPTS: usize = 16;

/// A netfilter netlink socket.
pub struct Socket {
    socket: NetlinkSocket,
    sequence: u32,
}

/// A received message without its netlink header.
pub(crate) struct Received {
    pub family: u8,
    pub attributes: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open() -> Result<Socket, Error> {
        let mut socket = NetlinkSocket::new(NETLINK_NETFILTER).map_err(Error::Open)?;
        socket.bind_auto().map_err(Error::Open)?;
        socket.set_cap_ack(true).map_err(Error::Open)?;
        socket.set_ext_ack(true).map_err(Error::Open)?;
        set_buffer(socket.as_raw_fd(), libc::SO_SNDBUFFORCE, SEND_BUFFER)?;
        set_buffer(socket.as_raw_fd(), libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)?;
        Ok(Socket { socket, sequence: 0 })
    }

    /// Sends the batch. Afterwards all of it is applied, or nothing changed.
    pub fn apply(&mut self, mut batch: Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        batch.acknowledge_last();
        self.send(&framed(&batch))?;
        self.read_answers(&batch)
    }

    /// Returns the generation of the ruleset; every batch of any writer increments it.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let kind = uapi::SUBSYS_NFTABLES << 8 | uapi::MSG_GETGEN;
        self.request(kind, uapi::NLM_F_REQUEST, uapi::NFPROTO_UNSPEC, &[])?;
        let answer = self.receive(0)?;
        let message = messages(&answer).next().ok_or(Error::Malformed("empty answer"))?;
        let attributes = message.payload.get(4..).ok_or(Error::Malformed("short answer"))?;
        find(attributes, uapi::GEN_ID).and_then(|id| id.u32()).ok_or(Error::Malformed("no generation"))
    }

    /// Returns every message of a dump; repeats it when a writer interrupts it, so that the answer is one state.
    pub(crate) fn dump(&mut self, kind: u16, family: u8, attributes: &[u8]) -> Result<Vec<Received>, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            self.request(kind, uapi::NLM_F_REQUEST | uapi::NLM_F_DUMP, family, attributes)?;
            if let Some(received) = self.read_dump()? {
                return Ok(received);
            }
        }
        Err(Error::Stale)
    }

    /// Sends one request that is no batch and wants an acknowledgement.
    pub(crate) fn command(&mut self, kind: u16, family: u8, attributes: &[u8], operation: &str) -> Result<(), Error> {
        self.request(kind, uapi::NLM_F_REQUEST | uapi::NLM_F_ACK, family, attributes)?;
        let answer = self.receive(0)?;
        let message = messages(&answer).next().ok_or(Error::Unacknowledged)?;
        refusal(&message, operation).map_or(Ok(()), Err)
    }

    fn request(&mut self, kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        write_message(&mut bytes, kind, flags, self.sequence, family, 0, attributes);
        self.send(&bytes)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let kernel = SocketAddr::new(0, 0);
        let sent = self.socket.send_to(bytes, &kernel, 0);
        sent.map(drop).map_err(|source| Error::Send { bytes: bytes.len(), source })
    }

    fn receive(&self, flags: libc::c_int) -> Result<Vec<u8>, Error> {
        let mut buffer = Vec::with_capacity(64 * 1024);
        self.socket.recv(&mut buffer, flags).map_err(Error::Receive)?;
        Ok(buffer)
    }

    fn read_answers(&self, batch: &Batch) -> Result<(), Error> {
        let mut acknowledged = false;
        let mut refused = None;
        loop {
            let answer = match self.receive(libc::MSG_DONTWAIT) {
                Ok(answer) => answer,
                Err(Error::Receive(error)) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            for message in messages(&answer) {
                let index = (message.sequence as usize).checked_sub(1);
                let operation = index.and_then(|index| batch.operations.get(index));
                match refusal(&message, operation.map_or("begin the batch", String::as_str)) {
                    Some(error) => refused = refused.or(Some(error)),
                    None => acknowledged |= message.sequence as usize == batch.operations.len(),
                }
            }
        }
        match refused {
            Some(Error::Refused { errno, .. }) if errno == libc::ERESTART => Err(Error::Stale),
            Some(error) => Err(error),
            None if acknowledged => Ok(()),
            None => Err(Error::Unacknowledged),
        }
    }

    fn read_dump(&self) -> Result<Option<Vec<Received>>, Error> {
        let mut received = Vec::new();
        let mut consistent = true;
        loop {
            let answer = self.receive(0)?;
            for message in messages(&answer) {
                if message.sequence != self.sequence {
                    continue;
                }
                consistent &= message.flags & uapi::NLM_F_DUMP_INTR == 0;
                match message.kind {
                    uapi::NLMSG_DONE => return Ok(consistent.then_some(received)),
                    uapi::NLMSG_ERROR => {
                        let error = refusal(&message, "list");
                        return Err(error.unwrap_or(Error::Malformed("an acknowledgement within a dump")));
                    }
                    _ => {
                        let (header, attributes) =
                            message.payload.split_at_checked(4).ok_or(Error::Malformed("short message"))?;
                        received.push(Received { family: header[0], attributes: attributes.to_vec() });
                    }
                }
            }
        }
    }
}

/// Returns the batch between its begin and end messages.
fn framed(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.messages.len() + 64);
    let generation = batch
        .generation
        .map(|generation| crate::attributes::Attributes::new().u32(uapi::BATCH_GENID, generation).as_bytes().to_vec());
    let mark = |bytes: &mut Vec<u8>, kind, sequence, attributes: &[u8]| {
        write_message(bytes, kind, uapi::NLM_F_REQUEST, sequence, 0, uapi::SUBSYS_NFTABLES, attributes);
    };
    mark(&mut bytes, uapi::MSG_BATCH_BEGIN, 0, generation.as_deref().unwrap_or_default());
    bytes.extend_from_slice(&batch.messages);
    mark(&mut bytes, uapi::MSG_BATCH_END, batch.operations.len() as u32 + 1, &[]);
    bytes
}

fn set_buffer(fd: RawFd, option: libc::c_int, size: libc::c_int) -> Result<(), Error> {
    let set = |option| {
        // SAFETY: the descriptor is open for the life of the caller's socket, and the pointer and
        // length describe a live c_int. There is no safe wrapper for the FORCE variants.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                std::ptr::from_ref(&size).cast(),
                std::mem::size_of_val(&size) as libc::socklen_t,
            )
        }
    };
    // Without CAP_NET_ADMIN over the initial namespace the kernel grants only its configured maximum.
    let fallback = if option == libc::SO_SNDBUFFORCE { libc::SO_SNDBUF } else { libc::SO_RCVBUF };
    if set(option) == 0 || set(fallback) == 0 {
        return Ok(());
    }
    Err(Error::Open(std::io::Error::last_os_error()))
}

pub(crate) struct Message<'a> {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub payload: &'a [u8],
}

pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header = rest.get(..16)?;
        let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let length = number(0)? as usize;
        let payload = rest.get(16..length)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: number(8)?,
            payload,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Returns the error of an answer, with the kernel's own message if it has one.
pub(crate) fn refusal(message: &Message<'_>, operation: &str) -> Option<Error> {
    if message.kind != uapi::NLMSG_ERROR {
        return None;
    }
    let errno = i32::from_ne_bytes(message.payload.get(..4)?.try_into().ok()?);
    if errno == 0 {
        return None;
    }
    let words = (message.flags & uapi::NLM_F_ACK_TLVS != 0).then(|| {
        // The header of the refused message follows the errno, and its body unless capped.
        let body = message.payload.get(4..8).and_then(|length| Some(u32::from_ne_bytes(length.try_into().ok()?)));
        let skip = if message.flags & uapi::NLM_F_CAPPED != 0 { 16 } else { body.unwrap_or(16) as usize };
        let attributes = message.payload.get(4 + skip.next_multiple_of(4)..).unwrap_or_default();
        find(attributes, uapi::NLMSGERR_ATTR_MSG).map(|message| message.string())
    });
    Some(Error::Refused { operation: operation.to_owned(), errno: errno.saturating_neg(), message: words.flatten() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_a_number_whatever_the_kernel_answers() {
        for (answered, expected) in [(-libc::ENOENT, libc::ENOENT), (i32::MIN, i32::MAX), (5, -5)] {
            let payload = answered.to_ne_bytes();
            let message = Message { kind: uapi::NLMSG_ERROR, flags: 0, sequence: 1, payload: &payload };
            let refused = refusal(&message, "add a table");
            assert!(matches!(refused, Some(Error::Refused { errno, .. }) if errno == expected), "{answered}");
        }
    }
}
