//! Netlink attributes: a writer with correct padding and nesting, and a parser.
//!
//! Every integer of nf_tables is big-endian on the wire; only register contents follow the packet or the host. The
//! writer never reorders: attributes keep the order they were put in.

use crate::uapi::{NLA_F_NESTED, NLA_TYPE_MASK};

const HEADER: usize = 4;

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A growing list of attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    bytes: Vec<u8>,
}

impl Attributes {
    pub fn new() -> Attributes {
        Attributes::default()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn bytes(mut self, kind: u16, payload: &[u8]) -> Self {
        let length = HEADER + payload.len();
        debug_assert!(length <= usize::from(u16::MAX), "a netlink attribute is at most 64 KiB");
        self.bytes.extend_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(aligned(self.bytes.len()), 0);
        self
    }

    pub fn u8(self, kind: u16, value: u8) -> Self {
        self.bytes(kind, &[value])
    }

    pub fn u16(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn u64(self, kind: u16, value: u64) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn string(self, kind: u16, value: &str) -> Self {
        let mut payload = value.as_bytes().to_vec();
        payload.push(0);
        self.bytes(kind, &payload)
    }

    pub fn nest(self, kind: u16, inner: Attributes) -> Self {
        self.bytes(kind | NLA_F_NESTED, &inner.bytes)
    }

    /// Nests the attributes of `put`, in place: for very long lists.
    pub fn within(mut self, kind: u16, put: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        let mut attributes = put(self);
        let length = attributes.bytes.len() - start;
        debug_assert!(length <= usize::from(u16::MAX), "a netlink attribute is at most 64 KiB");
        attributes.bytes[start..start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        attributes
    }

    /// Puts an attribute only if there is a value for it.
    pub fn maybe<T>(self, value: Option<T>, put: impl FnOnce(Self, T) -> Self) -> Self {
        match value {
            Some(value) => put(self, value),
            None => self,
        }
    }
}

/// One attribute of a received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute<'a> {
    pub kind: u16,
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub fn u16(&self) -> Option<u16> {
        self.payload.try_into().ok().map(u16::from_be_bytes)
    }

    pub fn u32(&self) -> Option<u32> {
        self.payload.try_into().ok().map(u32::from_be_bytes)
    }

    pub fn u64(&self) -> Option<u64> {
        self.payload.try_into().ok().map(u64::from_be_bytes)
    }

    pub fn string(&self) -> String {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        String::from_utf8_lossy(&self.payload[..end]).into_owned()
    }

    pub fn nested(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        parse(self.payload)
    }
}

/// Parses attributes; stops at the first malformed one.
pub(crate) fn parse(mut rest: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let header: [u8; HEADER] = rest.get(..HEADER)?.try_into().ok()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(Attribute { kind, payload })
    })
}

/// Returns the first attribute of a kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<Attribute<'_>> {
    parse(bytes).find(|attribute| attribute.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_parsed_back() {
        let written = Attributes::new().string(1, "ab").u32(2, 7).nest(3, Attributes::new().u8(9, 4)).u64(4, 1);
        let in_place = Attributes::new().string(1, "ab").u32(2, 7).within(3, |put| put.u8(9, 4)).u64(4, 1);
        assert_eq!(written, in_place);
        assert_eq!(written.len() % 4, 0);
        let read: Vec<_> = parse(written.as_bytes()).map(|attribute| attribute.kind).collect();
        assert_eq!(read, [1, 2, 3, 4]);
        assert_eq!(find(written.as_bytes(), 1).unwrap().string(), "ab");
        assert_eq!(find(written.as_bytes(), 2).unwrap().u32(), Some(7));
        let nested: Vec<_> = find(written.as_bytes(), 3).unwrap().nested().map(|inner| inner.payload[0]).collect();
        assert_eq!(nested, [4]);
    }

    #[test]
    fn a_truncated_message_ends_the_attributes() {
        let written = Attributes::new().u32(1, 1).u32(2, 2);
        let cut = &written.as_bytes()[..written.len() - 2];
        assert_eq!(parse(cut).count(), 1);
    }
}
