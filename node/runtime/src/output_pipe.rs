//! The pipes by which the daemon reads the output of processes.

use std::os::fd::OwnedFd;

use tokio::net::unix::pipe;

use crate::Error;

/// Makes a pipe whose near end is read by the daemon.
pub(crate) fn output_pipe() -> Result<(pipe::Receiver, OwnedFd), Error> {
    let (near, far) = std::io::pipe().map_err(Error::system("make a pipe"))?;
    rustix::io::ioctl_fionbio(&near, true).map_err(Error::system("prepare a pipe"))?;
    let near = pipe::Receiver::from_owned_fd(near.into()).map_err(Error::system("read a pipe"))?;
    Ok((near, far.into()))
}
