//! WireGuard: encrypted tunnels between nodes, where the kernel has it.
//!
//! A node's key is made here, set in the kernel and kept nowhere else; its public half is on the Node object, which no
//! other node may write. Reading order: `message` is the format of messages, this file sends them.

pub(crate) mod message;

use std::io::{self, Read};

use corten_nftables::{GenericFamily, request_flags};

pub(crate) use message::{Device, Tunnel};
pub use message::{Key, PORT};

use crate::error::Error;

/// The annotation of a node's public key.
pub const ANNOTATION: &str = "corten/wireguard-public-key";
/// The most bytes that WireGuard adds to a packet: IPv6, UDP and its own headers and tag.
pub(crate) const OVERHEAD: u32 = 80;

const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;

/// A connection to the kernel's WireGuard, in the network namespace of the thread that opened it.
pub(crate) struct Wireguard(GenericFamily);

impl Wireguard {
    pub fn open() -> Result<Wireguard, Error> {
        GenericFamily::open("wireguard").map(Wireguard).map_err(Error::NoWireguard)
    }

    pub fn device(&mut self, link: u32) -> Result<Device, Error> {
        let mut device = Device::default();
        for part in
            self.0.request(GET_DEVICE, request_flags::DUMP, &message::for_device(link)).map_err(Error::Wireguard)?
        {
            message::read(&part, &mut device);
        }
        Ok(device)
    }

    /// Returns the public key of a device; makes a key for one that has none yet.
    pub fn ensure_key(&mut self, link: u32) -> Result<Key, Error> {
        if let Some(key) = self.device(link)?.public_key {
            return Ok(key);
        }
        let mut private = [0; 32];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut private))
            .map_err(Error::Wireguard)?;
        self.0
            .request(SET_DEVICE, request_flags::ACKNOWLEDGE, &message::own(link, &Key(private)))
            .map_err(Error::Wireguard)?;
        self.device(link)?.public_key.ok_or_else(|| Error::Wireguard(io::ErrorKind::InvalidData.into()))
    }

    pub fn set_tunnel(&mut self, link: u32, tunnel: &Tunnel, exists: bool) -> Result<(), Error> {
        let change = message::tunnel(link, tunnel, exists);
        self.0.request(SET_DEVICE, request_flags::ACKNOWLEDGE, &change).map(drop).map_err(Error::Wireguard)
    }
}

/// Checks that this kernel has WireGuard; returns an error if not.
pub fn supported() -> Result<(), Error> {
    Wireguard::open().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_reports_whether_it_has_wireguard() {
        // With WireGuard or without: the family of families always answers in one of two ways.
        match supported() {
            Ok(()) => {}
            Err(Error::NoWireguard(reason)) => assert_eq!(reason.raw_os_error(), Some(nix::libc::ENOENT)),
            Err(other) => panic!("{other}"),
        }
    }
}
