//! WireGuard: tunnels between nodes that nobody on the way can read, where the kernel has it.
//!
//! A node's key is made here, given to the kernel and kept nowhere else; its public half stands on the Node object, which
//! no other node may write. Reading order: `message` is what is said, this file to whom.

mod message;

use std::io::{self, Read};

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

pub use message::Key;
pub(crate) use message::{Device, Tunnel};

use crate::error::Error;

/// Where a node publishes its public key.
pub const ANNOTATION: &str = "corten/wireguard-public-key";
/// The bytes that WireGuard puts around a packet at most: IPv6, UDP and its own headers and tag.
pub(crate) const OVERHEAD: u32 = 80;

/// The family that knows the others, its question, and two of its attributes.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;

/// A conversation with the kernel's WireGuard, in the network namespace of the thread that opened it.
pub(crate) struct Wireguard {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Wireguard {
    pub fn open() -> Result<Wireguard, Error> {
        let mut socket = Socket::new(NETLINK_GENERIC).map_err(Error::Netlink)?;
        socket.bind_auto().map_err(Error::Netlink)?;
        let mut wireguard = Wireguard { socket, family: CONTROL, sequence: 0 };
        let mut question = Vec::new();
        message::put(&mut question, FAMILY_NAME, b"wireguard\0");
        let answers = wireguard.ask(GET_FAMILY, ACKNOWLEDGE, &question).map_err(Error::NoWireguard)?;
        let id = answers.iter().flat_map(|answer| message::attributes(answer)).find(|(kind, _)| *kind == FAMILY_ID);
        let id = id.and_then(|(_, bytes)| bytes.try_into().ok()).map(u16::from_ne_bytes);
        wireguard.family = id.ok_or_else(|| Error::NoWireguard(io::ErrorKind::NotFound.into()))?;
        Ok(wireguard)
    }

    /// What the device of a link is.
    pub fn device(&mut self, link: u32) -> Result<Device, Error> {
        let mut device = Device::default();
        for part in self.ask(GET_DEVICE, DUMP, &message::about(link)).map_err(Error::Wireguard)? {
            message::read(&part, &mut device);
        }
        Ok(device)
    }

    /// The public key of a device; one that has none yet is given a key.
    pub fn ensure_key(&mut self, link: u32) -> Result<Key, Error> {
        if let Some(key) = self.device(link)?.public_key {
            return Ok(key);
        }
        let mut private = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut private))
            .map_err(Error::Wireguard)?;
        self.ask(SET_DEVICE, ACKNOWLEDGE, &message::own(link, &Key(private))).map_err(Error::Wireguard)?;
        self.device(link)?.public_key.ok_or_else(|| Error::Wireguard(io::ErrorKind::InvalidData.into()))
    }

    pub fn set_tunnel(&mut self, link: u32, tunnel: &Tunnel, stands: bool) -> Result<(), Error> {
        let change = message::tunnel(link, tunnel, stands);
        self.ask(SET_DEVICE, ACKNOWLEDGE, &change).map(drop).map_err(Error::Wireguard)
    }

    /// Sends one command, and returns the attributes of every answer up to the last.
    fn ask(&mut self, command: u8, flags: u16, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let length = (HEADER + GENERIC_HEADER + attributes.len()) as u32;
        let mut request = length.to_ne_bytes().to_vec();
        request.extend(self.family.to_ne_bytes());
        request.extend((REQUEST | flags).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([command, 1, 0, 0]);
        request.extend(attributes);
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

/// Takes the messages of one datagram; says whether the last of the answer was among them.
fn take(mut rest: &[u8], sequence: u32, answers: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    while let Some(length) = word(rest, 0).map(u32::from_ne_bytes) {
        let Some(whole) = rest.get(..length as usize).filter(|whole| whole.len() >= HEADER) else { break };
        let kind = u16::from_ne_bytes([whole[4], whole[5]]);
        let ours = word(whole, 8).map(u32::from_ne_bytes) == Some(sequence);
        match kind {
            _ if !ours => {}
            ERROR => {
                return match word(whole, HEADER).map(i32::from_ne_bytes) {
                    Some(0) => Ok(true),
                    Some(code) => Err(io::Error::from_raw_os_error(-code)),
                    None => Err(io::ErrorKind::InvalidData.into()),
                };
            }
            DONE => return Ok(true),
            _ => answers.push(whole.get(HEADER + GENERIC_HEADER..).unwrap_or_default().to_vec()),
        }
        rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Whether this kernel has WireGuard; the error says so if not.
pub fn supported() -> Result<(), Error> {
    Wireguard::open().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers_what_it_has() {
        // With WireGuard or without: the family that knows the others always answers in one of two ways.
        match supported() {
            Ok(()) => {}
            Err(Error::NoWireguard(reason)) => assert_eq!(reason.raw_os_error(), Some(nix::libc::ENOENT)),
            Err(other) => panic!("{other}"),
        }
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
        let told = [message(0x20, 1, &[0, 1, 0, 0, 9, 9, 9, 9]), message(DONE, 1, &[0; 4])].concat();
        let mut answers = Vec::new();
        assert!(take(&told, 1, &mut answers).unwrap());
        assert_eq!(answers, [vec![9; 4]]);
        assert!(!take(&told, 2, &mut answers).unwrap(), "another's answer is passed over");
        assert!(take(&message(ERROR, 1, &0i32.to_ne_bytes()), 1, &mut answers).unwrap());
        let refused = take(&message(ERROR, 1, &(-2i32).to_ne_bytes()), 1, &mut answers).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(2));
        assert!(!take(&told[..7], 1, &mut answers).unwrap());
    }
}
