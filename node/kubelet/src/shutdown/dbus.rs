//! The part of D-Bus that the calls to logind need: connect as this user, call with strings and numbers, read numbers
//! and descriptors, receive signals. Blocking: it has a thread of its own.
//!
//! All input is bounded and checked; an invalid message closes the connection.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

const MAX_MESSAGE: usize = 1 << 20;
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

/// The method to call.
#[derive(Clone, Copy)]
pub struct Method<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
}

/// An argument of a call.
pub enum Argument<'a> {
    Text(&'a str),
    Number(i32),
}

/// A received message.
#[derive(Debug, Default)]
pub struct Message {
    kind: u8,
    reply_to: u32,
    pub interface: String,
    pub member: String,
    error: String,
    signature: String,
    body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Message {
    /// Returns the first number of the body: a boolean, or an index.
    pub fn number(&self) -> Option<u32> {
        Reader { bytes: &self.body, at: 0 }.number()
    }

    /// Returns the number in a variant, the form of properties.
    pub fn property(&self) -> Option<u64> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        match reader.signature()?.as_str() {
            "t" => reader.long(),
            "u" => reader.number().map(u64::from),
            _ => None,
        }
    }
}

pub struct Bus {
    stream: UnixStream,
    serial: u32,
    received: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    signals: VecDeque<Message>,
}

impl Bus {
    pub fn connect(socket: &Path) -> io::Result<Bus> {
        let stream = UnixStream::connect(socket)?;
        let mut bus =
            Bus { stream, serial: 0, received: Vec::new(), descriptors: Vec::new(), signals: VecDeque::new() };
        bus.authenticate()?;
        let daemon = "org.freedesktop.DBus";
        let hello = Method { destination: daemon, path: "/org/freedesktop/DBus", interface: daemon, member: "Hello" };
        bus.call(hello, &[])?;
        Ok(bus)
    }

    /// Returns a handle with which another thread may shut the connection down.
    pub fn handle(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    fn authenticate(&mut self) -> io::Result<()> {
        let uid: String = nix::unistd::geteuid().to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
        self.stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes())?;
        self.expect_line("OK")?;
        self.stream.write_all(b"NEGOTIATE_UNIX_FD\r\n")?;
        self.expect_line("AGREE_UNIX_FD")?;
        self.stream.write_all(b"BEGIN\r\n")
    }

    fn expect_line(&mut self, wanted: &str) -> io::Result<()> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line).into_owned();
                return match line.starts_with(wanted) {
                    true => Ok(()),
                    false => Err(invalid(&format!("the bus said {:?}", line.trim()))),
                };
            }
            self.receive()?;
        }
    }

    /// Calls a method and waits for the answer. Signals that arrive before it are kept.
    pub fn call(&mut self, method: Method<'_>, arguments: &[Argument<'_>]) -> io::Result<Message> {
        self.serial += 1;
        let serial = self.serial;
        self.stream.write_all(&encode(method, arguments, serial))?;
        loop {
            let message = self.next()?;
            match message.kind {
                SIGNAL => self.signals.push_back(message),
                METHOD_RETURN if message.reply_to == serial => return Ok(message),
                ERROR if message.reply_to == serial => {
                    let why = Reader { bytes: &message.body, at: 0 };
                    let why = if message.signature.starts_with('s') { why.clone().text() } else { None };
                    return Err(invalid(&format!("{}: {}", message.error, why.unwrap_or_default())));
                }
                _ => {}
            }
        }
    }

    pub fn next_signal(&mut self) -> io::Result<Message> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let message = self.next()?;
            if message.kind == SIGNAL {
                return Ok(message);
            }
        }
    }

    fn next(&mut self) -> io::Result<Message> {
        loop {
            if let Some(length) = message_length(&self.received)?.filter(|length| self.received.len() >= *length) {
                let bytes: Vec<u8> = self.received.drain(..length).collect();
                let (mut message, count) = decode(&bytes).ok_or_else(|| invalid("a message cannot be read"))?;
                message.descriptors = self.descriptors.drain(..count.min(self.descriptors.len())).collect();
                return Ok(message);
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 8192];
        let mut control = nix::cmsg_space!([RawFd; 16]);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = loop {
            match recvmsg::<()>(self.stream.as_raw_fd(), &mut buffers, Some(&mut control), flags) {
                Err(nix::errno::Errno::EINTR) => {}
                received => break received?,
            }
        };
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just put these descriptors into our table for us.
                self.descriptors.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
            }
        }
        let length = received.bytes;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received.extend_from_slice(&bytes[..length]);
        Ok(())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Writes values at their alignments.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(0));
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(0));
        self.0.extend_from_slice(signature.as_bytes());
        self.0.push(0);
    }

    fn field(&mut self, code: u8, kind: &str, value: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        if kind == "g" { self.signature(value) } else { self.text(value) }
    }
}

fn encode(method: Method<'_>, arguments: &[Argument<'_>], serial: u32) -> Vec<u8> {
    let mut body = Writer::default();
    let mut signature = String::new();
    for argument in arguments {
        match argument {
            Argument::Text(text) => (body.text(text), signature.push('s')),
            Argument::Number(number) => (body.number(number.cast_unsigned()), signature.push('i')),
        };
    }
    let mut fields = Writer::default();
    fields.field(1, "o", method.path);
    fields.field(2, "s", method.interface);
    fields.field(3, "s", method.member);
    fields.field(6, "s", method.destination);
    if !signature.is_empty() {
        fields.field(8, "g", &signature);
    }
    let mut message = Writer(vec![b'l', METHOD_CALL, 0, 1]);
    message.number(u32::try_from(body.0.len()).unwrap_or(0));
    message.number(serial);
    message.number(u32::try_from(fields.0.len()).unwrap_or(0));
    message.0.extend(fields.0);
    message.align(8);
    message.0.extend(body.0);
    message.0
}

/// Returns the length of the message that begins with these bytes, once enough of them are present.
pub(crate) fn message_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = bytes.get(..16) else { return Ok(None) };
    if head[0] != b'l' || head[3] != 1 {
        return Err(invalid("the bus speaks another dialect"));
    }
    let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let body = number(4);
    let fields = number(12);
    if body > MAX_MESSAGE || fields > MAX_MESSAGE {
        return Err(invalid("a message is too long"));
    }
    Ok(Some((16 + fields).next_multiple_of(8) + body))
}

/// Reads values at their alignments; `None` at the end.
#[derive(Clone)]
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self, alignment: usize) -> Option<[u8; N]> {
        let from = self.at.next_multiple_of(alignment);
        let bytes = self.bytes.get(from..from + N)?;
        self.at = from + N;
        bytes.try_into().ok()
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4).map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.take(8).map(u64::from_le_bytes)
    }

    fn rest(&mut self, length: usize) -> Option<String> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length + 1;
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn text(mut self) -> Option<String> {
        self.string()
    }

    fn string(&mut self) -> Option<String> {
        let length = self.number()? as usize;
        self.rest(length)
    }

    fn signature(&mut self) -> Option<String> {
        let [length] = self.take(1)?;
        self.rest(usize::from(length))
    }
}

/// Decodes the message and the number of its descriptors.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Message, usize)> {
    let mut reader = Reader { bytes, at: 12 };
    let end = 16 + reader.number()? as usize;
    let mut message = Message { kind: *bytes.get(1)?, ..Message::default() };
    let mut descriptors = 0;
    while reader.at < end {
        let [code] = reader.take(8)?;
        match (code, reader.signature()?.as_str()) {
            (2, "s") => message.interface = reader.string()?,
            (3, "s") => message.member = reader.string()?,
            (4, "s") => message.error = reader.string()?,
            (5, "u") => message.reply_to = reader.number()?,
            (8, "g") => message.signature = reader.signature()?,
            (9, "u") => descriptors = reader.number()? as usize,
            (_, "s" | "o") => drop(reader.string()?),
            (_, "u") => drop(reader.number()?),
            (_, "g") => drop(reader.signature()?),
            _ => return None,
        }
    }
    message.body = bytes.get(end.next_multiple_of(8)..)?.to_vec();
    Some((message, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_written_as_they_are_read() {
        let method = Method { destination: "a.b", path: "/a/b", interface: "a.B", member: "Do" };
        let bytes = encode(method, &[Argument::Text("shutdown"), Argument::Number(-1)], 7);
        assert_eq!(message_length(&bytes).unwrap(), Some(bytes.len()));
        assert_eq!(message_length(&bytes[..15]).unwrap(), None);
        let (message, descriptors) = decode(&bytes).unwrap();
        assert_eq!((message.kind, message.member.as_str(), message.interface.as_str()), (METHOD_CALL, "Do", "a.B"));
        assert_eq!((message.signature.as_str(), descriptors), ("si", 0));
        let mut reader = Reader { bytes: &message.body, at: 0 };
        assert_eq!((reader.string().as_deref(), reader.number()), (Some("shutdown"), Some(u32::MAX)));
    }

    #[test]
    fn nonsense_ends_the_connection_and_nothing_else() {
        let mut bytes = encode(Method { destination: "a", path: "/", interface: "b", member: "c" }, &[], 1);
        for length in 16..bytes.len() {
            let _ = decode(&bytes[..length]);
        }
        bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(message_length(&bytes).is_err());
        bytes[0] = b'B';
        assert!(message_length(&bytes).is_err());
    }
}
