//! The protocol of the daemon and a shim on the shim's socket.
//!
//! A connection carries one request; its frames are a length and JSON. Streams are never copied through a shim: the
//! daemon sends the descriptors that a process shall use, or gets the near end of its terminal. Closing the connection
//! of an exec kills its process; closing an attach ends it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::spec::Identity;

const MAX_FRAME: usize = 4 << 20;
const MAX_DESCRIPTORS: usize = 3;
/// The number of bytes of a frame that hold the length of its body.
pub(crate) const LENGTH: usize = 4;

/// A request of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Answer `Exited` when the container's first process has ended.
    Wait,
    /// Send a signal to the container's first process.
    Signal { signal: i32 },
    /// Run another process. Descriptors follow for the streams that are true, in this order.
    Exec { args: Vec<String>, terminal: bool, stdin: bool, stdout: bool, stderr: bool },
    /// Copy output to the descriptors that follow, and hand over the input.
    Attach { stdin: bool, stdout: bool, stderr: bool },
    /// The log was rotated: open it again by its name.
    ReopenLog,
}

/// A reply of the shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Done; for exec and attach the session begins. A terminal or an input may come along.
    Ok,
    /// Refused, with the reason.
    Failed(String),
    /// The process of this session, or the container's first one, has ended.
    Exited(Exit),
}

/// The exit of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub code: i32,
    /// The time of the exit in nanoseconds since 1970.
    pub finished_at: i64,
    /// Whether the kernel's OOM killer killed a process of this container.
    pub oom_killed: bool,
}

/// The report of a shim on its standard output after the start of its container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Started { pid: i32, started_at: i64, identity: Identity },
    Failed(String),
}

/// Encodes a message: a length and JSON.
pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message larger than any request"));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Decodes the length of a body.
pub(crate) fn body_length(length: [u8; LENGTH]) -> io::Result<usize> {
    match u32::from_le_bytes(length) as usize {
        length if length > MAX_FRAME => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a frame larger than any request"))
        }
        length => Ok(length),
    }
}

/// Writes as much as the socket takes, and descriptors with the first byte.
pub(crate) fn send_part(stream: &impl AsRawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    let control = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &control[..0] } else { &control[..] };
    Ok(sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?)
}

/// Reads once, and takes the descriptors that come along.
pub(crate) fn receive_part(stream: &impl AsRawFd, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut buffers = [IoSliceMut::new(into)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut buffers, Some(&mut control), flags)?;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = message {
            // SAFETY: the kernel has just put these descriptors into our table for us.
            fds.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    Ok(received.bytes)
}

/// Writes a frame, and descriptors with its first byte.
pub(crate) fn send(stream: &UnixStream, message: &impl Serialize, fds: &[RawFd]) -> io::Result<()> {
    let frame = frame(message)?;
    let sent = send_part(stream, &frame, fds)?;
    let mut stream = stream;
    stream.write_all(&frame[sent..])
}

/// Reads a frame and its descriptors; returns `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; LENGTH];
    let mut fds = Vec::new();
    let mut filled = 0;
    while filled < length.len() {
        match receive_part(stream, &mut length[filled..], &mut fds) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => filled += bytes,
        }
    }
    let mut body = vec![0; body_length(length)?];
    let mut stream = stream;
    stream.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_travel_with_their_descriptors() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let (reader, writer) = io::pipe().expect("a pipe");
        let args = vec!["x".repeat(100_000)];
        let request = Request::Exec { args, terminal: false, stdin: false, stdout: true, stderr: false };
        let sender = std::thread::spawn(move || send(&near, &request, &[writer.as_raw_fd()]).expect("send"));
        let (received, fds) = receive::<Request>(&far).expect("receive").expect("a request");
        sender.join().expect("the sender");
        assert!(matches!(received, Request::Exec { stdout: true, .. }));
        let mut output = std::fs::File::from(fds.into_iter().next().expect("a descriptor"));
        output.write_all(b"through").expect("write");
        drop(output);
        assert_eq!(io::read_to_string(reader).expect("read"), "through");
        assert!(receive::<Request>(&far).expect("the end").is_none());
    }
}
