//! OPEN: the first message of a speaker, with its AS number, its hold time and its capabilities.

use std::net::Ipv4Addr;

use super::Notification;
use crate::prefix::Family;
use crate::reader::Reader;

const VERSION: u8 = 4;
/// The AS number in the two-byte field of a speaker whose own needs four (RFC 6793).
const AS_TRANS: u16 = 23456;
/// The type of the optional parameter that holds capabilities.
const CAPABILITIES: u8 = 2;

const MULTIPROTOCOL: u8 = 1;
const ROUTE_REFRESH: u8 = 2;
const GRACEFUL_RESTART: u8 = 64;
const FOUR_OCTET_AS: u8 = 65;

/// The bits of a graceful restart capability.
const RESTARTED: u16 = 0x8000;
const RESTART_TIME: u16 = 0x0fff;
const FORWARDING_PRESERVED: u8 = 0x80;

/// The content of an OPEN message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The two-byte AS number; [`Open::asn`] prefers that of the capability.
    pub as_field: u16,
    pub hold_time: u16,
    pub router_id: Ipv4Addr,
    pub capabilities: Vec<Capability>,
}

/// A capability of a speaker (RFC 5492).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Routes of a family; `None` for families that are not unicast IP, which decode as `Other`.
    Multiprotocol(Family),
    RouteRefresh,
    FourOctetAs(u32),
    /// Graceful restart (RFC 4724).
    GracefulRestart {
        /// Whether the speaker has just restarted.
        restarted: bool,
        /// The seconds for which the peer keeps the speaker's routes after the session was lost.
        restart_time: u16,
        families: Vec<RestartFamily>,
    },
    Other {
        code: u8,
        value: Vec<u8>,
    },
}

/// A family whose routes survive a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartFamily {
    pub family: Family,
    /// Whether packets were forwarded during the restart.
    pub forwarding_preserved: bool,
}

impl Open {
    /// Returns an OPEN of this AS number; the capability with all four bytes is among the capabilities.
    pub fn new(asn: u32, hold_time: u16, router_id: Ipv4Addr, mut capabilities: Vec<Capability>) -> Open {
        capabilities.push(Capability::FourOctetAs(asn));
        Open { as_field: u16::try_from(asn).unwrap_or(AS_TRANS), hold_time, router_id, capabilities }
    }

    /// Returns the speaker's AS number.
    pub fn asn(&self) -> u32 {
        self.four_octet_as().unwrap_or(u32::from(self.as_field))
    }

    /// Returns the AS number of the four-byte capability.
    pub fn four_octet_as(&self) -> Option<u32> {
        self.capabilities.iter().find_map(|one| match one {
            Capability::FourOctetAs(asn) => Some(*asn),
            _ => None,
        })
    }

    /// Reports whether the speaker takes routes of a family. One without any multiprotocol capability takes IPv4.
    pub fn takes(&self, family: Family) -> bool {
        let families = || self.capabilities.iter().filter(|one| matches!(one, Capability::Multiprotocol(_)));
        let has_none = families().next().is_none();
        (has_none && family == Family::Ipv4) || families().any(|one| *one == Capability::Multiprotocol(family))
    }

    /// Reports whether the speaker keeps the routes of a peer that restarts.
    pub fn keeps_routes(&self) -> bool {
        self.capabilities.iter().any(|one| matches!(one, Capability::GracefulRestart { .. }))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend_from_slice(&self.as_field.to_be_bytes());
        out.extend_from_slice(&self.hold_time.to_be_bytes());
        out.extend_from_slice(&self.router_id.octets());
        let capabilities: Vec<u8> = self.capabilities.iter().flat_map(Capability::encode).collect();
        match u8::try_from(capabilities.len()) {
            Ok(0) => out.push(0),
            // The parameter's own header has two bytes, and the length 255 means the extended form.
            Ok(length) if length <= 252 => out.extend_from_slice(&[length + 2, CAPABILITIES, length]),
            _ => {
                let length = capabilities.len() as u16;
                out.extend_from_slice(&[255, 255]);
                out.extend_from_slice(&(length + 3).to_be_bytes());
                out.push(CAPABILITIES);
                out.extend_from_slice(&length.to_be_bytes());
            }
        }
        out.extend_from_slice(&capabilities);
    }

    pub(super) fn decode(body: &[u8]) -> Result<Open, Notification> {
        let mut reader = Reader(body);
        match reader.u8() {
            Some(VERSION) => {}
            Some(_) => {
                let supported = u16::from(VERSION).to_be_bytes().to_vec();
                return Err(Notification::new(Notification::OPEN_ERROR, Notification::UNSUPPORTED_VERSION, supported));
            }
            None => return Err(Notification::bad_length(super::HEADER)),
        }
        Open::decode_versioned(&mut reader).ok_or_else(Notification::malformed_open)
    }

    fn decode_versioned(reader: &mut Reader<'_>) -> Option<Open> {
        let as_field = reader.u16()?;
        let hold_time = reader.u16()?;
        let router_id = Ipv4Addr::from(reader.u32()?);
        let mut length = usize::from(reader.u8()?);
        // RFC 9072: a length and a type of 255 announce longer parameters.
        let is_extended = length == 255 && reader.0.first() == Some(&255);
        if is_extended {
            reader.u8()?;
            length = usize::from(reader.u16()?);
        }
        let mut parameters = Reader(reader.take(length)?);
        if !reader.0.is_empty() {
            return None;
        }
        let mut capabilities = Vec::new();
        while !parameters.0.is_empty() {
            let kind = parameters.u8()?;
            let length = if is_extended { parameters.u16()? } else { u16::from(parameters.u8()?) };
            let mut value = Reader(parameters.take(usize::from(length))?);
            while kind == CAPABILITIES && !value.0.is_empty() {
                capabilities.push(Capability::decode(&mut value)?);
            }
        }
        Some(Open { as_field, hold_time, router_id, capabilities })
    }
}

impl Capability {
    /// Encodes code, length and value.
    fn encode(&self) -> Vec<u8> {
        let (code, value) = match self {
            Capability::Multiprotocol(family) => {
                let afi = family.afi().to_be_bytes();
                (MULTIPROTOCOL, vec![afi[0], afi[1], 0, 1])
            }
            Capability::RouteRefresh => (ROUTE_REFRESH, Vec::new()),
            Capability::FourOctetAs(asn) => (FOUR_OCTET_AS, asn.to_be_bytes().to_vec()),
            Capability::GracefulRestart { restarted, restart_time, families } => {
                let flags = if *restarted { RESTARTED } else { 0 };
                let mut value = (flags | (restart_time & RESTART_TIME)).to_be_bytes().to_vec();
                for one in families {
                    value.extend_from_slice(&one.family.afi().to_be_bytes());
                    let preserved = if one.forwarding_preserved { FORWARDING_PRESERVED } else { 0 };
                    value.extend_from_slice(&[1, preserved]);
                }
                (GRACEFUL_RESTART, value)
            }
            Capability::Other { code, value } => (*code, value.clone()),
        };
        let mut out = vec![code, value.len() as u8];
        out.extend_from_slice(&value);
        out
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Capability> {
        let code = reader.u8()?;
        let length = usize::from(reader.u8()?);
        let value = reader.take(length)?;
        let other = || Capability::Other { code, value: value.to_vec() };
        Some(match (code, value) {
            (MULTIPROTOCOL, [high, low, _, safi]) => {
                let family = Family::by_number(u16::from_be_bytes([*high, *low]), *safi);
                family.map_or_else(other, Capability::Multiprotocol)
            }
            (ROUTE_REFRESH, []) => Capability::RouteRefresh,
            (FOUR_OCTET_AS, &[a, b, c, d]) => Capability::FourOctetAs(u32::from_be_bytes([a, b, c, d])),
            (GRACEFUL_RESTART, [high, low, families @ ..]) => {
                let flags = u16::from_be_bytes([*high, *low]);
                Capability::GracefulRestart {
                    restarted: flags & RESTARTED != 0,
                    restart_time: flags & RESTART_TIME,
                    families: families.chunks_exact(4).filter_map(restart_family).collect(),
                }
            }
            _ => other(),
        })
    }
}

fn restart_family(bytes: &[u8]) -> Option<RestartFamily> {
    let family = Family::by_number(u16::from_be_bytes([bytes[0], bytes[1]]), bytes[2])?;
    Some(RestartFamily { family, forwarding_preserved: bytes[3] & FORWARDING_PRESERVED != 0 })
}
