//! The near end of a terminal, or of a container's input, as an asynchronous file.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use super::session::TerminalSize;

/// A descriptor that the runtime reads and writes without blocking.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // SAFETY: the descriptor is owned by the registration, and nothing takes it out or closes it before.
        Ok(Self(unsafe { AsyncFd::register(fd)? }))
    }

    /// Reads; returns zero at the end. A terminal without a program reports its end as an error.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            match ready.try_io(|fd| rustix::io::read(fd.get_ref(), &mut *buffer).map_err(Into::into)) {
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Ok(0),
                Ok(result) => return result,
                Err(_) => {}
            }
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.0.writable().await?;
            if let Ok(written) = ready.try_io(|fd| rustix::io::write(fd.get_ref(), bytes).map_err(Into::into)) {
                bytes = &bytes[written?..];
            }
        }
        Ok(())
    }

    pub fn resize(&self, size: TerminalSize) {
        let size = rustix::termios::Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
        // A terminal that has just closed has no size to set.
        let _ = rustix::termios::tcsetwinsize(self.0.get_ref().as_fd(), size);
    }
}
