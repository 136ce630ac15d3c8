//! The control packet of BFD (RFC 5880, section 4.1).

use std::time::Duration;

use crate::reader::Reader;

/// The length of a packet without authentication.
pub const LENGTH: usize = 24;
const VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const AUTHENTICATED: u8 = 0x04;
const MULTIPOINT: u8 = 0x01;

/// The state of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    AdminDown,
    Down,
    Init,
    Up,
}

/// The cause of the last change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnostic {
    None = 0,
    DetectionTimeExpired = 1,
    NeighborSignaledDown = 3,
    AdministrativelyDown = 7,
}

/// A control packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The diagnostic code of the sender.
    pub diagnostic: u8,
    pub state: State,
    /// Whether the sender wants an answer with the final bit.
    pub poll: bool,
    /// Whether the packet answers one with the poll bit.
    pub is_final: bool,
    pub multiplier: u8,
    /// The sender's number of the session.
    pub mine: u32,
    /// The receiver's number of the session; 0 while the sender does not know it.
    pub yours: u32,
    pub min_transmit: Duration,
    pub min_receive: Duration,
}

impl Packet {
    pub fn encode(&self) -> [u8; LENGTH] {
        let state = match self.state {
            State::AdminDown => 0,
            State::Down => 1,
            State::Init => 2,
            State::Up => 3_u8,
        };
        let poll = if self.poll { POLL } else { 0 };
        let is_final = if self.is_final { FINAL } else { 0 };
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION << 5 | self.diagnostic & 0x1f;
        bytes[1] = state << 6 | poll | is_final;
        bytes[2] = self.multiplier;
        bytes[3] = LENGTH as u8;
        bytes[4..8].copy_from_slice(&self.mine.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.yours.to_be_bytes());
        bytes[12..16].copy_from_slice(&microseconds(self.min_transmit).to_be_bytes());
        bytes[16..20].copy_from_slice(&microseconds(self.min_receive).to_be_bytes());
        bytes
    }

    /// Reads a packet; `None` if it must be discarded (RFC 5880, section 6.8.6).
    pub fn decode(bytes: &[u8]) -> Option<Packet> {
        let mut reader = Reader(bytes);
        let first = reader.u8()?;
        let flags = reader.u8()?;
        let multiplier = reader.u8()?;
        let length = usize::from(reader.u8()?);
        let mine = reader.u32()?;
        let yours = reader.u32()?;
        let min_transmit = Duration::from_micros(reader.u32()?.into());
        let min_receive = Duration::from_micros(reader.u32()?.into());
        let _min_echo = reader.u32()?;
        let state = match flags >> 6 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        };
        let is_whole = first >> 5 == VERSION && (LENGTH..=bytes.len()).contains(&length);
        let is_plain = flags & (AUTHENTICATED | MULTIPOINT) == 0;
        let is_addressed = yours != 0 || matches!(state, State::AdminDown | State::Down);
        if !is_whole || !is_plain || !is_addressed || multiplier == 0 || mine == 0 {
            return None;
        }
        Some(Packet {
            diagnostic: first & 0x1f,
            state,
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            multiplier,
            mine,
            yours,
            min_transmit,
            min_receive,
        })
    }
}

fn microseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packet_has_the_layout_of_the_rfc() {
        let packet = Packet {
            diagnostic: Diagnostic::NeighborSignaledDown as u8,
            state: State::Init,
            poll: true,
            is_final: false,
            multiplier: 3,
            mine: 0x0102_0304,
            yours: 5,
            min_transmit: Duration::from_millis(300),
            min_receive: Duration::from_micros(1),
        };
        let bytes = packet.encode();
        let expected = [0x23, 0xa0, 3, 24, 1, 2, 3, 4, 0, 0, 0, 5, 0, 4, 0x93, 0xe0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(bytes, expected);
        assert_eq!(Packet::decode(&bytes), Some(packet));
    }

    #[test]
    fn packets_that_the_rfc_discards_are_no_packets() {
        let good = [0x20, 0xc0, 3, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        assert!(Packet::decode(&good).is_some());
        let with = |index: usize, value: u8| {
            let mut bytes = good;
            bytes[index] = value;
            Packet::decode(&bytes)
        };
        assert_eq!(Packet::decode(&good[..23]), None, "cut");
        assert_eq!(with(0, 0x40), None, "another version");
        assert_eq!(with(1, 0xc4), None, "authenticated");
        assert_eq!(with(1, 0xc1), None, "multipoint");
        assert_eq!(with(2, 0), None, "no multiplier");
        assert_eq!(with(3, 23), None, "a length below the least");
        assert_eq!(with(3, 25), None, "a length beyond the bytes");
        assert_eq!(with(7, 0), None, "no sender");
        assert_eq!(with(11, 0), None, "up without a receiver");
    }

    proptest! {
        #[test]
        fn bytes_never_panic_and_packets_survive_their_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
            }
        }
    }
}
