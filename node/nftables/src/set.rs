//! Named sets, maps and verdict maps, and their elements.

use std::net::IpAddr;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::expression::Verdict;
use crate::uapi;
use crate::value::Value;

/// The type of one field of a key, or of a map's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    Ipv4Addr,
    Ipv6Addr,
    InetProto,
    InetService,
    EtherAddr,
    /// A 32-bit number in host byte order. `nft` can show it, and crashes on plain integers.
    Mark,
    InterfaceName,
}

impl DataType {
    /// Returns the number of the type in listings of the `nft` command.
    fn number(self) -> u32 {
        match self {
            DataType::Ipv4Addr => 7,
            DataType::Ipv6Addr => 8,
            DataType::EtherAddr => 9,
            DataType::InetProto => 12,
            DataType::InetService => 13,
            DataType::Mark => 19,
            DataType::InterfaceName => 41,
        }
    }

    fn length(self) -> u32 {
        match self {
            DataType::InetProto => 1,
            DataType::InetService => 2,
            DataType::Ipv4Addr | DataType::Mark => 4,
            DataType::EtherAddr => 6,
            DataType::Ipv6Addr | DataType::InterfaceName => 16,
        }
    }
}

/// Returns type number and length of a concatenation: `nft` packs six bits per field.
fn concatenation(types: &[DataType]) -> (u32, u32) {
    match types {
        [single] => (single.number(), single.length()),
        many => many.iter().fold((0, 0), |(number, length), field| {
            (number << 6 | field.number(), length + field.length().next_multiple_of(4))
        }),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Holds {
    Keys,
    Values(Vec<DataType>),
    Verdicts,
}

/// The declaration of a named set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    name: String,
    key: Vec<DataType>,
    holds: Holds,
    intervals: bool,
    dynamic: bool,
    timeout: Option<Duration>,
    size: Option<u32>,
}

impl Set {
    fn declare(name: &str, key: &[DataType], holds: Holds) -> Set {
        let name = name.to_owned();
        let key = key.to_vec();
        Set { name, key, holds, intervals: false, dynamic: false, timeout: None, size: None }
    }

    /// Makes a set of keys.
    pub fn new(name: &str, key: &[DataType]) -> Set {
        Set::declare(name, key, Holds::Keys)
    }

    /// Makes a map from keys to values.
    pub fn map(name: &str, key: &[DataType], data: &[DataType]) -> Set {
        Set::declare(name, key, Holds::Values(data.to_vec()))
    }

    /// Makes a map from keys to verdicts.
    pub fn vmap(name: &str, key: &[DataType]) -> Set {
        Set::declare(name, key, Holds::Verdicts)
    }

    /// Allows ranges and prefixes as elements.
    pub fn intervals(mut self) -> Set {
        self.intervals = true;
        self
    }

    /// Allows rules to add elements, which then live for the timeout.
    pub fn dynamic(mut self, timeout: Duration, size: u32) -> Set {
        (self.dynamic, self.timeout, self.size) = (true, Some(timeout), Some(size));
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn is_concatenation(&self) -> bool {
        self.key.len() > 1
    }

    fn flags(&self) -> u32 {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        flag(self.intervals, uapi::SET_F_INTERVAL)
            | flag(self.intervals && self.is_concatenation(), uapi::SET_F_CONCAT)
            | flag(self.holds != Holds::Keys, uapi::SET_F_MAP)
            | flag(self.timeout.is_some(), uapi::SET_F_TIMEOUT)
            | flag(self.dynamic, uapi::SET_F_EVAL)
    }

    pub(crate) fn encode(&self, put: Attributes, id: u32) -> Attributes {
        let (key_type, key_length) = concatenation(&self.key);
        let put = put
            .string(uapi::SET_NAME, &self.name)
            .u32(uapi::SET_FLAGS, self.flags())
            .u32(uapi::SET_KEY_TYPE, key_type)
            .u32(uapi::SET_KEY_LEN, key_length);
        let put = match &self.holds {
            Holds::Keys => put,
            Holds::Verdicts => put.u32(uapi::SET_DATA_TYPE, uapi::DATA_TYPE_VERDICT).u32(uapi::SET_DATA_LEN, 0),
            Holds::Values(types) => {
                let (data_type, data_length) = concatenation(types);
                put.u32(uapi::SET_DATA_TYPE, data_type).u32(uapi::SET_DATA_LEN, data_length)
            }
        };
        put.u32(uapi::SET_ID, id)
            .maybe(self.timeout, |put, timeout| put.u64(uapi::SET_TIMEOUT, timeout.as_millis() as u64))
            .nest(uapi::SET_DESC, self.description())
    }

    fn description(&self) -> Attributes {
        let put = Attributes::new().maybe(self.size, |put, size| put.u32(uapi::SET_DESC_SIZE, size));
        if !self.intervals || !self.is_concatenation() {
            return put;
        }
        let fields = self.key.iter().fold(Attributes::new(), |list, field| {
            list.nest(uapi::LIST_ELEM, Attributes::new().u32(uapi::SET_FIELD_LEN, field.length()))
        });
        put.nest(uapi::SET_DESC_CONCAT, fields)
    }

    /// Puts the kernel's form of an element: one entry, or two for an interval of a plain key.
    pub(crate) fn encode_element(&self, list: Attributes, element: &Element, with_data: bool) -> Attributes {
        let list = list.within(uapi::LIST_ELEM, |put| self.entry(put, element, with_data));
        if !self.intervals || self.is_concatenation() {
            return list;
        }
        let after = element.end.as_ref().unwrap_or(&element.key).successor();
        list.maybe(after, |list, after| {
            let end = |put| register(put, uapi::ELEM_KEY, &after).u32(uapi::ELEM_FLAGS, uapi::ELEM_F_INTERVAL_END);
            list.within(uapi::LIST_ELEM, end)
        })
    }

    fn entry(&self, put: Attributes, element: &Element, with_data: bool) -> Attributes {
        let mut put = register(put, uapi::ELEM_KEY, &element.key);
        if self.intervals && self.is_concatenation() {
            put = register(put, uapi::ELEM_KEY_END, element.end.as_ref().unwrap_or(&element.key));
        }
        if !with_data {
            return put;
        }
        let put = match &element.data {
            None => put,
            Some(Data::Value(value)) => register(put, uapi::ELEM_DATA, value),
            Some(Data::Verdict(verdict)) => put.nest(uapi::ELEM_DATA, verdict.encode()),
        };
        put.maybe(element.timeout, |put, timeout| put.u64(uapi::ELEM_TIMEOUT, timeout.as_millis() as u64))
    }
}

fn register(put: Attributes, kind: u16, value: &Value) -> Attributes {
    put.within(kind, |put| put.bytes(uapi::DATA_VALUE, value.as_bytes()))
}

/// The data of a map element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Data {
    Value(Value),
    Verdict(Verdict),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    pub key: Value,
    /// The last key of an interval, inclusive.
    pub end: Option<Value>,
    pub data: Option<Data>,
    pub timeout: Option<Duration>,
}

impl Element {
    pub fn key(key: impl Into<Value>) -> Element {
        Element { key: key.into(), end: None, data: None, timeout: None }
    }

    /// Makes `key : value`.
    pub fn value(key: impl Into<Value>, value: impl Into<Value>) -> Element {
        Element { data: Some(Data::Value(value.into())), ..Element::key(key) }
    }

    /// Makes `key : verdict`.
    pub fn verdict(key: impl Into<Value>, verdict: Verdict) -> Element {
        Element { data: Some(Data::Verdict(verdict)), ..Element::key(key) }
    }

    /// Makes `from-to`, both inclusive.
    pub fn range(from: impl Into<Value>, to: impl Into<Value>) -> Element {
        Element { end: Some(to.into()), ..Element::key(from) }
    }

    /// Makes `address/length`.
    pub fn prefix(address: IpAddr, length: u8) -> Element {
        let bytes = Value::from(address);
        let bytes = bytes.as_bytes();
        let bits = |index: usize| usize::from(length).saturating_sub(index * 8).min(8);
        let host = |index: usize| (0xffu16 >> bits(index)) as u8;
        let first: Value = bytes.iter().enumerate().map(|(index, byte)| byte & !host(index)).collect();
        let last: Value = bytes.iter().enumerate().map(|(index, byte)| byte | host(index)).collect();
        Element { end: Some(last), ..Element::key(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_become_inclusive_ranges() {
        let element = Element::prefix("10.96.7.9".parse().unwrap(), 12);
        assert_eq!(element.key.as_bytes(), [10, 96, 0, 0]);
        assert_eq!(element.end.unwrap().as_bytes(), [10, 111, 255, 255]);
    }

    #[test]
    fn concatenations_have_nfts_type_numbers() {
        let service = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
        assert_eq!(concatenation(&service), ((7 << 12) | (12 << 6) | 13, 12));
        assert_eq!(concatenation(&[DataType::InetService]), (13, 2));
    }
}
