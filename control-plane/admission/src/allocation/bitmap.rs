//! The node ports in use, as upstream stores them: one RangeAllocation with a bit for every port of the range.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use serde_json::json;

/// A set of ports of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBitmap {
    first: u16,
    last: u16,
    /// Whether each port of the range is in use, the first port first.
    used: Vec<bool>,
}

impl PortBitmap {
    /// Makes a set of these ports; those outside of the range are left out.
    pub fn new((first, last): (u16, u16), ports: impl IntoIterator<Item = u16>) -> PortBitmap {
        let size = usize::from(last.saturating_sub(first)) + 1;
        let mut bitmap = PortBitmap { first, last, used: vec![false; size] };
        ports.into_iter().for_each(|port| bitmap.set(port, true));
        bitmap
    }

    /// Reads a RangeAllocation; `None` if it is one of another range.
    pub fn parse(range: (u16, u16), object: &Value) -> Option<PortBitmap> {
        let mut bitmap = PortBitmap::new(range, []);
        if object["range"].as_str()? != bitmap.range() {
            return None;
        }
        let data = STANDARD.decode(object["data"].as_str().unwrap_or_default()).ok()?;
        // The bytes are one big-endian number, whose lowest bit is the first port.
        for (offset, used) in bitmap.used.iter_mut().enumerate() {
            let byte = data.len().checked_sub(offset / 8 + 1).and_then(|at| data.get(at));
            *used = byte.is_some_and(|byte| byte >> (offset % 8) & 1 == 1);
        }
        Some(bitmap)
    }

    /// Returns the RangeAllocation.
    pub fn object(&self) -> Value {
        let mut data = vec![0_u8; self.used.len().div_ceil(8)];
        let size = data.len();
        for (offset, _) in self.used.iter().enumerate().filter(|(_, used)| **used) {
            data[size - 1 - offset / 8] |= 1 << (offset % 8);
        }
        let first = data.iter().position(|byte| *byte != 0).unwrap_or(size);
        json!({
            "apiVersion": "v1",
            "kind": "RangeAllocation",
            "metadata": { "creationTimestamp": null },
            "range": self.range(),
            "data": STANDARD.encode(&data[first..]),
        })
    }

    fn range(&self) -> String {
        format!("{}-{}", self.first, self.last)
    }

    /// Returns a set of the same range without ports.
    pub fn emptied(&self) -> PortBitmap {
        PortBitmap::new((self.first, self.last), [])
    }

    /// Returns the ports of the set, in order.
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        (self.first..=self.last).zip(&self.used).filter(|(_, used)| **used).map(|(port, _)| port)
    }

    pub fn is_in_range(&self, port: u16) -> bool {
        self.offset(port).is_some()
    }

    pub fn contains(&self, port: u16) -> bool {
        self.offset(port).is_some_and(|offset| self.used[offset])
    }

    /// Adds or removes a port; one outside of the range is left alone.
    pub fn set(&mut self, port: u16, used: bool) {
        if let Some(offset) = self.offset(port) {
            self.used[offset] = used;
        }
    }

    fn offset(&self, port: u16) -> Option<usize> {
        port.checked_sub(self.first).map(usize::from).filter(|offset| *offset < self.used.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: (u16, u16) = (30000, 32767);

    #[test]
    fn the_bytes_are_those_of_a_big_endian_number() {
        let bitmap = PortBitmap::new(RANGE, [30000, 30009, 80]);
        let object = bitmap.object();
        assert_eq!(object["range"], "30000-32767");
        assert_eq!(object["data"], STANDARD.encode([0b10, 0b1]), "leading zeros are left out");
        assert_eq!(PortBitmap::parse(RANGE, &object), Some(bitmap));
        assert_eq!(PortBitmap::parse((30000, 30100), &object), None, "another range");
        assert_eq!(PortBitmap::new(RANGE, []).object()["data"], "");
    }

    #[test]
    fn every_port_of_the_range_has_a_bit() {
        for port in [30000, 30001, 31234, 32767] {
            let mut bitmap = PortBitmap::new(RANGE, [port]);
            let again = PortBitmap::parse(RANGE, &bitmap.object()).unwrap();
            assert!(again.contains(port) && !again.contains(port ^ 1));
            bitmap.set(port, false);
            assert_eq!(bitmap, PortBitmap::new(RANGE, []));
        }
        assert!(!PortBitmap::new(RANGE, [29999]).contains(29999));
        let long = json!({ "range": "30000-32767", "data": STANDARD.encode([0xff; 1000]) });
        assert!(PortBitmap::parse(RANGE, &long).unwrap().contains(32767), "more bits than ports");
    }
}
