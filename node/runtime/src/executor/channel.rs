//! The messages between a shim and the child that it forked, until the child becomes the program.
//!
//! A packet socket keeps message boundaries. Exec closes it, by which the shim learns of success.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::spec::Identity;

const MAX_MESSAGE: usize = 16 << 10;

/// A message from the child to the shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Message {
    /// The near end of the terminal comes with this message.
    Terminal,
    /// The user that the process will run as.
    Identity(Identity),
    /// The child has forked the process that continues in its place.
    Born(i32),
    /// A step failed; the child exits.
    Failure(String),
}

/// One end of the channel.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(ours), Self(theirs)))
    }

    /// Lets the child continue; called by the shim.
    pub fn go(&self) -> io::Result<()> {
        rustix::io::write(&self.0, b"g")?;
        Ok(())
    }

    pub fn wait_for_go(&self) -> io::Result<()> {
        let mut word = [0; 1];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut word))? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    pub fn send(&self, message: &Message, fd: Option<RawFd>) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE {
            bytes = serde_json::to_vec(&Message::Failure("a failure too long to tell".into()))?;
        }
        let fds: Vec<RawFd> = fd.into_iter().collect();
        let control = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &control[..0] } else { &control[..] };
        sendmsg::<()>(self.0.as_raw_fd(), &[io::IoSlice::new(&bytes)], control, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Returns the next message; `None` when the other end is closed. The child works on files that a container wrote,
    /// which may take forever: a message that does not come by the deadline is an error.
    pub fn receive(&self, deadline: Instant) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        self.wait_until(deadline)?;
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut control = nix::cmsg_space!([RawFd; 1]);
        let (length, fd) = {
            let mut buffers = [io::IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let received = loop {
                match recvmsg::<()>(self.0.as_raw_fd(), &mut buffers, Some(&mut control), flags) {
                    Err(nix::errno::Errno::EINTR) => {}
                    result => break result?,
                }
            };
            let mut fd = None;
            for message in received.cmsgs()? {
                if let ControlMessageOwned::ScmRights(fds) = message {
                    // SAFETY: the kernel has just put this descriptor into our table for us.
                    fd = fds.first().map(|raw| unsafe { OwnedFd::from_raw_fd(*raw) });
                }
            }
            (received.bytes, fd)
        };
        if length == 0 {
            return Ok(None);
        }
        Ok(Some((serde_json::from_slice(&bytes[..length])?, fd)))
    }

    fn wait_until(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
