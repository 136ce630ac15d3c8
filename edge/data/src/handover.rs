//! Hands the sockets of listeners to another process, so that an upgrade refuses no connection: the new process accepts
//! from the same sockets before the old one stops.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The descriptors of one message; the kernel takes 253.
const BATCH: usize = 64;
/// The most descriptors that are received.
const MAX_LISTENERS: usize = 16 * 1024;

/// Sends sockets over a Unix socket.
pub fn send_listeners(stream: &UnixStream, listeners: &[OwnedFd]) -> io::Result<()> {
    for batch in listeners.chunks(BATCH) {
        let descriptors: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("the descriptors do not fit into a message"));
        }
        sendmsg(stream, &[IoSlice::new(b"L")], &mut control, SendFlags::NOSIGNAL)?;
    }
    let mut none = SendAncillaryBuffer::default();
    sendmsg(stream, &[IoSlice::new(b"E")], &mut none, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives sockets that [`send_listeners`] sends. The caller sets the time limit of the stream.
pub fn receive_listeners(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut received = Vec::new();
    loop {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                received.extend(descriptors);
            }
        }
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.len() > MAX_LISTENERS {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many sockets"));
        }
        if byte == *b"E" {
            return Ok(received);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn all_sockets_arrive() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sent: Vec<TcpListener> = (0..150).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = sent.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let descriptors: Vec<OwnedFd> = sent.into_iter().map(OwnedFd::from).collect();
        let sending = std::thread::spawn(move || send_listeners(&ours, &descriptors));
        let received = receive_listeners(&theirs).unwrap();
        sending.join().unwrap().unwrap();
        let found: Vec<_> =
            received.into_iter().map(|socket| TcpListener::from(socket).local_addr().unwrap()).collect();
        assert_eq!(found, addresses);
    }

    #[test]
    fn a_sender_that_goes_away_is_an_error() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive_listeners(&theirs).is_err());
    }
}
