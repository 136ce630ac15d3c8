//! UPDATE: prefixes that are withdrawn or announced, and the attributes of their path.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{AsWidth, Notification};
use crate::prefix::{Family, Prefix};
use crate::reader::Reader;

const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const NEXT_HOP: u8 = 3;
const LOCAL_PREF: u8 = 5;
const COMMUNITIES: u8 = 8;
const MP_REACH: u8 = 14;
const MP_UNREACH: u8 = 15;
const AS4_PATH: u8 = 17;
const LARGE_COMMUNITIES: u8 = 32;

const OPTIONAL: u8 = 0x80;
const TRANSITIVE: u8 = 0x40;
const EXTENDED_LENGTH: u8 = 0x10;

/// The AS number of a path for a speaker that knows only two bytes.
const AS_TRANS: u32 = 23456;

/// The content of an UPDATE message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The IPv4 prefixes that are withdrawn; IPv6 ones are in [`Attribute::Unreach`].
    pub withdrawn: Vec<Prefix>,
    pub attributes: Vec<Attribute>,
    /// The IPv4 prefixes that are announced; IPv6 ones are in [`Attribute::Reach`].
    pub announced: Vec<Prefix>,
}

/// A segment of an AS path: an ordered sequence, or a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub is_sequence: bool,
    pub numbers: Vec<u32>,
}

/// A large community (RFC 8092).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LargeCommunity {
    pub global: u32,
    pub local_1: u32,
    pub local_2: u32,
}

/// A path attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    Origin(u8),
    AsPath(Vec<Segment>),
    NextHop(Ipv4Addr),
    LocalPref(u32),
    Communities(Vec<u32>),
    LargeCommunities(Vec<LargeCommunity>),
    /// IPv6 prefixes and their next hop (RFC 4760).
    Reach {
        next_hop: Ipv6Addr,
        prefixes: Vec<Prefix>,
    },
    /// IPv6 prefixes that are withdrawn.
    Unreach(Vec<Prefix>),
    /// The path in four-byte numbers, beside one for a speaker that knows two (RFC 6793).
    As4Path(Vec<Segment>),
    Other {
        flags: u8,
        code: u8,
        value: Vec<u8>,
    },
}

impl Update {
    /// Returns the marker that all routes of a family were announced (RFC 4724).
    pub fn end_of_rib(family: Family) -> Update {
        match family {
            Family::Ipv4 => Update::default(),
            Family::Ipv6 => Update { attributes: vec![Attribute::Unreach(Vec::new())], ..Update::default() },
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>, width: AsWidth) {
        sized(out, |out| self.withdrawn.iter().for_each(|prefix| prefix.encode(out)));
        sized(out, |out| self.attributes.iter().for_each(|attribute| attribute.encode(out, width)));
        self.announced.iter().for_each(|prefix| prefix.encode(out));
    }

    pub(super) fn decode(body: &[u8], width: AsWidth) -> Result<Update, Notification> {
        Update::read(body, width).ok_or_else(Notification::malformed_attributes)
    }

    fn read(body: &[u8], width: AsWidth) -> Option<Update> {
        let mut reader = Reader(body);
        let length = usize::from(reader.u16()?);
        let withdrawn = Prefix::decode_all(reader.take(length)?, Family::Ipv4)?;
        let length = usize::from(reader.u16()?);
        let mut bytes = Reader(reader.take(length)?);
        let mut attributes = Vec::new();
        while !bytes.0.is_empty() {
            attributes.push(Attribute::decode(&mut bytes, width)?);
        }
        let announced = Prefix::decode_all(reader.0, Family::Ipv4)?;
        Some(Update { withdrawn, attributes, announced })
    }
}

/// Appends a part with its length before it.
fn sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    write(out);
    let length = (out.len() - at - 2) as u16;
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

impl Attribute {
    fn encode(&self, out: &mut Vec<u8>, width: AsWidth) {
        let mut value = Vec::new();
        let (flags, code) = match self {
            Attribute::Origin(origin) => {
                value.push(*origin);
                (TRANSITIVE, ORIGIN)
            }
            Attribute::AsPath(segments) => {
                encode_path(segments, width, &mut value);
                (TRANSITIVE, AS_PATH)
            }
            Attribute::As4Path(segments) => {
                encode_path(segments, AsWidth::Four, &mut value);
                (OPTIONAL | TRANSITIVE, AS4_PATH)
            }
            Attribute::NextHop(address) => {
                value.extend_from_slice(&address.octets());
                (TRANSITIVE, NEXT_HOP)
            }
            Attribute::LocalPref(preference) => {
                value.extend_from_slice(&preference.to_be_bytes());
                (TRANSITIVE, LOCAL_PREF)
            }
            Attribute::Communities(all) => {
                all.iter().for_each(|one| value.extend_from_slice(&one.to_be_bytes()));
                (OPTIONAL | TRANSITIVE, COMMUNITIES)
            }
            Attribute::LargeCommunities(all) => {
                for number in all.iter().flat_map(|one| [one.global, one.local_1, one.local_2]) {
                    value.extend_from_slice(&number.to_be_bytes());
                }
                (OPTIONAL | TRANSITIVE, LARGE_COMMUNITIES)
            }
            Attribute::Reach { next_hop, prefixes } => {
                value.extend_from_slice(&[0, 2, 1, 16]);
                value.extend_from_slice(&next_hop.octets());
                value.push(0);
                prefixes.iter().for_each(|prefix| prefix.encode(&mut value));
                (OPTIONAL, MP_REACH)
            }
            Attribute::Unreach(prefixes) => {
                value.extend_from_slice(&[0, 2, 1]);
                prefixes.iter().for_each(|prefix| prefix.encode(&mut value));
                (OPTIONAL, MP_UNREACH)
            }
            Attribute::Other { flags, code, value: bytes } => {
                value.extend_from_slice(bytes);
                (flags & !EXTENDED_LENGTH, *code)
            }
        };
        match u8::try_from(value.len()) {
            Ok(length) => out.extend_from_slice(&[flags, code, length]),
            Err(_) => {
                out.extend_from_slice(&[flags | EXTENDED_LENGTH, code]);
                out.extend_from_slice(&(value.len() as u16).to_be_bytes());
            }
        }
        out.extend_from_slice(&value);
    }

    /// Reads one attribute. One that this speaker does not know, or whose value does not fit its code, is `Other`.
    fn decode(reader: &mut Reader<'_>, width: AsWidth) -> Option<Attribute> {
        let flags = reader.u8()?;
        let code = reader.u8()?;
        let length = match flags & EXTENDED_LENGTH {
            0 => usize::from(reader.u8()?),
            _ => usize::from(reader.u16()?),
        };
        let value = reader.take(length)?;
        let flags = flags & !EXTENDED_LENGTH;
        let known = Attribute::known(code, value, width).filter(|known| known.flags() == flags);
        Some(known.unwrap_or_else(|| Attribute::Other { flags, code, value: value.to_vec() }))
    }

    fn flags(&self) -> u8 {
        match self {
            Attribute::Origin(_) | Attribute::AsPath(_) | Attribute::NextHop(_) | Attribute::LocalPref(_) => TRANSITIVE,
            Attribute::Reach { .. } | Attribute::Unreach(_) => OPTIONAL,
            Attribute::Communities(_) | Attribute::LargeCommunities(_) | Attribute::As4Path(_) => OPTIONAL | TRANSITIVE,
            Attribute::Other { flags, .. } => *flags,
        }
    }

    fn known(code: u8, value: &[u8], width: AsWidth) -> Option<Attribute> {
        let mut reader = Reader(value);
        Some(match (code, value) {
            (ORIGIN, [origin]) => Attribute::Origin(*origin),
            (AS_PATH, _) => Attribute::AsPath(decode_path(value, width)?),
            (AS4_PATH, _) => Attribute::As4Path(decode_path(value, AsWidth::Four)?),
            (NEXT_HOP, [_, _, _, _]) => Attribute::NextHop(reader.u32()?.into()),
            (LOCAL_PREF, [_, _, _, _]) => Attribute::LocalPref(reader.u32()?),
            (COMMUNITIES, _) if value.len().is_multiple_of(4) => {
                Attribute::Communities(std::iter::from_fn(|| reader.u32()).collect())
            }
            (LARGE_COMMUNITIES, _) if value.len().is_multiple_of(12) => {
                let next =
                    || Some(LargeCommunity { global: reader.u32()?, local_1: reader.u32()?, local_2: reader.u32()? });
                Attribute::LargeCommunities(std::iter::from_fn(next).collect())
            }
            (MP_REACH, [0, 2, 1, 16, rest @ ..]) => {
                let (next_hop, rest) = rest.split_first_chunk::<16>()?;
                let (0, prefixes) = rest.split_first().map(|(reserved, rest)| (*reserved, rest))? else { return None };
                let prefixes = Prefix::decode_all(prefixes, Family::Ipv6)?;
                Attribute::Reach { next_hop: Ipv6Addr::from(*next_hop), prefixes }
            }
            (MP_UNREACH, [0, 2, 1, rest @ ..]) => Attribute::Unreach(Prefix::decode_all(rest, Family::Ipv6)?),
            _ => return None,
        })
    }
}

fn encode_path(segments: &[Segment], width: AsWidth, out: &mut Vec<u8>) {
    for segment in segments {
        out.push(if segment.is_sequence { 2 } else { 1 });
        out.push(segment.numbers.len() as u8);
        for number in &segment.numbers {
            match width {
                AsWidth::Four => out.extend_from_slice(&number.to_be_bytes()),
                AsWidth::Two => {
                    let number = u16::try_from(*number).unwrap_or(AS_TRANS as u16);
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
        }
    }
}

fn decode_path(value: &[u8], width: AsWidth) -> Option<Vec<Segment>> {
    let mut reader = Reader(value);
    let mut segments = Vec::new();
    while !reader.0.is_empty() {
        let is_sequence = match reader.u8()? {
            1 => false,
            2 => true,
            _ => return None,
        };
        let mut numbers = Vec::new();
        for _ in 0..reader.u8()? {
            numbers.push(match width {
                AsWidth::Four => reader.u32()?,
                AsWidth::Two => u32::from(reader.u16()?),
            });
        }
        segments.push(Segment { is_sequence, numbers });
    }
    Some(segments)
}
