//! WireGuard: tunnels between nodes that nobody on the way can read, where the kernel has it.
//!
//! A node's key is made here, given to the kernel and kept nowhere else; its public half stands on the Node object, which
//! no other node may write. Reading order: `message` is what is said, this file to whom.

pub(crate) mod message;

use std::io::{self, Read};

use corten_nftables::{GenericFamily, asking};

pub(crate) use message::{Device, Tunnel};
pub use message::{Key, PORT};

use crate::error::Error;

/// Where a node publishes its public key.
pub const ANNOTATION: &str = "corten/wireguard-public-key";
/// The bytes that WireGuard puts around a packet at most: IPv6, UDP and its own headers and tag.
pub(crate) const OVERHEAD: u32 = 80;

const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

/// A conversation with the kernel's WireGuard, in the network namespace of the thread that opened it.
pub(crate) struct Wireguard(GenericFamily);

impl Wireguard {
    pub fn open() -> Result<Wireguard, Error> {
        GenericFamily::open("wireguard").map(Wireguard).map_err(Error::NoWireguard)
    }

    /// What the device of a link is.
    pub fn device(&mut self, link: u32) -> Result<Device, Error> {
        let mut device = Device::default();
        for part in self.0.ask(GET_DEVICE, asking::DUMP, &message::about(link)).map_err(Error::Wireguard)? {
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
        self.0.ask(SET_DEVICE, asking::ACKNOWLEDGE, &message::own(link, &Key(private))).map_err(Error::Wireguard)?;
        self.device(link)?.public_key.ok_or_else(|| Error::Wireguard(io::ErrorKind::InvalidData.into()))
    }

    pub fn set_tunnel(&mut self, link: u32, tunnel: &Tunnel, stands: bool) -> Result<(), Error> {
        let change = message::tunnel(link, tunnel, stands);
        self.0.ask(SET_DEVICE, asking::ACKNOWLEDGE, &change).map(drop).map_err(Error::Wireguard)
    }
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
}
