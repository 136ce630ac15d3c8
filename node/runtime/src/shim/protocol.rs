//! What the daemon and a shim say to each other on the shim's socket.
//!
//! A connection carries one request; its frames are a length and JSON. Streams are never copied
//! through a shim: the daemon sends the descriptors that a process shall use, or gets the near end of
//! its terminal. Closing the connection of an exec kills its process; closing an attach ends it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::executor::Identity;

const MAX_FRAME: usize = 4 << 20;
const MAX_DESCRIPTORS: usize = 3;

/// From the daemon.
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

/// From the shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Done; for exec and attach the session begins. A terminal or an input may come along.
    Ok,
    /// Refused, with the reason.
    Failed(String),
    /// The process of this session, or the container's first one, has ended.
    Exited(Exit),
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub code: i32,
    /// Nanoseconds since 1970.
    pub finished_at: i64,
    /// The kernel killed in this container for want of memory.
    pub oom_killed: bool,
}

/// What a shim says on its standard output when it has tried to start its container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Started { pid: i32, started_at: i64, identity: Identity },
    Failed(String),
}

/// Writes a frame, and descriptors with its first byte.
pub(crate) fn send(stream: &UnixStream, message: &impl Serialize, fds: &[RawFd]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    let control = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &control[..0] } else { &control[..] };
    let sent = sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&frame)], control, MsgFlags::MSG_NOSIGNAL, None)?;
    let mut stream = stream;
    stream.write_all(&frame[sent..])
}

/// Reads a frame and the descriptors that came with it; `None` when the other side is gone.
pub(crate) fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut fds = Vec::new();
    let mut filled = 0;
    while filled < length.len() {
        let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
        let mut buffers = [IoSliceMut::new(&mut length[filled..])];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received = match recvmsg::<()>(stream.as_raw_fd(), &mut buffers, Some(&mut control), flags) {
            Err(nix::errno::Errno::EINTR) => continue,
            result => result?,
        };
        for message in received.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just put these descriptors into our table for us.
                fds.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
            }
        }
        match received.bytes {
            0 if filled == 0 => return Ok(None),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => filled += bytes,
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame larger than any request"));
    }
    let mut body = vec![0; length];
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
