//! The listing of the kernel's objects: tables, chains, sets, elements and rules.

use crate::attributes::{Attribute, Attributes, find};
use crate::batch::{Batch, Table};
use crate::error::Error;
use crate::expression::Verdict;
use crate::set::{Data, Element};
use crate::socket::{Received, Socket};
use crate::uapi::{self, Family};
use crate::value::Value;

/// A listed table.
pub type TableInfo = Table;

/// A listed chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainInfo {
    pub name: String,
    /// The hook number and priority of a base chain.
    pub hook: Option<(u32, i32)>,
}

/// A listed set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetInfo {
    pub name: String,
    pub key_length: u32,
    pub is_map: bool,
}

/// A listed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    pub chain: String,
    pub handle: u64,
    pub comment: Option<String>,
    /// The kernel's names of the expressions, in order.
    pub expressions: Vec<String>,
    /// The number of packets that reached the rule's first counter.
    pub packets: Option<u64>,
}

impl Socket {
    /// Returns the tables of every family.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>, Error> {
        let received = self.dump(kind(uapi::MSG_GETTABLE), uapi::NFPROTO_UNSPEC, &[])?;
        Ok(received.iter().filter_map(table).collect())
    }

    /// Deletes every table whose name begins with the prefix; returns them.
    pub fn delete_tables(&mut self, prefix: &str) -> Result<Vec<TableInfo>, Error> {
        let mut doomed = self.tables()?;
        doomed.retain(|table| table.name.starts_with(prefix));
        let mut batch = Batch::new();
        for table in &doomed {
            batch.destroy_table(table);
        }
        self.apply(batch)?;
        Ok(doomed)
    }

    /// Returns the chains of a table.
    pub fn chains(&mut self, of: &Table) -> Result<Vec<ChainInfo>, Error> {
        let received = self.dump(kind(uapi::MSG_GETCHAIN), of.family as u8, &[])?;
        Ok(received.iter().filter(|message| belongs(message, of)).filter_map(chain).collect())
    }

    /// Returns the sets and maps of a table.
    pub fn sets(&mut self, of: &Table) -> Result<Vec<SetInfo>, Error> {
        let filter = Attributes::new().string(uapi::SET_TABLE, &of.name);
        let received = self.dump(kind(uapi::MSG_GETSET), of.family as u8, filter.as_bytes())?;
        Ok(received.iter().filter_map(set).collect())
    }

    /// Returns the elements of a set or map. Of an interval of a plain key only its begin is listed.
    pub fn elements(&mut self, of: &Table, set: &str) -> Result<Vec<Element>, Error> {
        let filter = Attributes::new().string(uapi::ELEM_LIST_TABLE, &of.name).string(uapi::ELEM_LIST_SET, set);
        let received = self.dump(kind(uapi::MSG_GETSETELEM), of.family as u8, filter.as_bytes())?;
        let lists = received.iter().filter_map(|message| find(&message.attributes, uapi::ELEM_LIST_ELEMENTS));
        Ok(lists.flat_map(|list| list.nested()).filter_map(|entry| element(entry.payload)).collect())
    }

    /// Returns the rules of a table, in order.
    pub fn rules(&mut self, of: &Table) -> Result<Vec<RuleInfo>, Error> {
        let filter = Attributes::new().string(uapi::RULE_TABLE, &of.name);
        let received = self.dump(kind(uapi::MSG_GETRULE), of.family as u8, filter.as_bytes())?;
        Ok(received.iter().filter_map(rule).collect())
    }
}

fn kind(message: u16) -> u16 {
    uapi::SUBSYS_NFTABLES << 8 | message
}

fn belongs(message: &Received, table: &Table) -> bool {
    let name = find(&message.attributes, uapi::CHAIN_TABLE).map(|name| name.string());
    message.family == table.family as u8 && name.as_deref() == Some(&table.name)
}

pub(crate) fn table(message: &Received) -> Option<TableInfo> {
    let name = find(&message.attributes, uapi::TABLE_NAME)?.string();
    Some(Table { family: Family::from_number(message.family)?, name })
}

pub(crate) fn chain(message: &Received) -> Option<ChainInfo> {
    let name = find(&message.attributes, uapi::CHAIN_NAME)?.string();
    let hook = find(&message.attributes, uapi::CHAIN_HOOK).and_then(|hook| {
        let number = find(hook.payload, uapi::HOOK_HOOKNUM)?.u32()?;
        Some((number, find(hook.payload, uapi::HOOK_PRIORITY)?.u32()? as i32))
    });
    Some(ChainInfo { name, hook })
}

pub(crate) fn set(message: &Received) -> Option<SetInfo> {
    let attribute = |kind| find(&message.attributes, kind);
    let flags = attribute(uapi::SET_FLAGS).and_then(|flags| flags.u32()).unwrap_or_default();
    Some(SetInfo {
        name: attribute(uapi::SET_NAME)?.string(),
        key_length: attribute(uapi::SET_KEY_LEN)?.u32()?,
        is_map: flags & uapi::SET_F_MAP != 0,
    })
}

pub(crate) fn element(attributes: &[u8]) -> Option<Element> {
    let flags = find(attributes, uapi::ELEM_FLAGS).and_then(|flags| flags.u32()).unwrap_or_default();
    if flags & uapi::ELEM_F_INTERVAL_END != 0 {
        return None;
    }
    let value = |kind| {
        let data = find(find(attributes, kind)?.payload, uapi::DATA_VALUE)?;
        Some(Value::from_bytes(data.payload))
    };
    let data = find(attributes, uapi::ELEM_DATA).and_then(|data| element_data(&data));
    Some(Element { key: value(uapi::ELEM_KEY)?, end: value(uapi::ELEM_KEY_END), data, timeout: None })
}

fn element_data(data: &Attribute<'_>) -> Option<Data> {
    if let Some(value) = find(data.payload, uapi::DATA_VALUE) {
        return Some(Data::Value(Value::from_bytes(value.payload)));
    }
    let verdict = find(data.payload, uapi::DATA_VERDICT)?;
    let code = find(verdict.payload, uapi::VERDICT_CODE)?.u32()? as i32;
    let chain = find(verdict.payload, uapi::VERDICT_CHAIN).map(|chain| chain.string());
    Verdict::decode(code, chain).map(Data::Verdict)
}

pub(crate) fn rule(message: &Received) -> Option<RuleInfo> {
    let attribute = |kind| find(&message.attributes, kind);
    let expressions: Vec<Attribute<'_>> =
        attribute(uapi::RULE_EXPRESSIONS).map(|list| list.nested().collect()).unwrap_or_default();
    let name = |expression: &Attribute<'_>| find(expression.payload, uapi::EXPR_NAME).map(|name| name.string());
    let packets = expressions.iter().find(|expression| name(expression).as_deref() == Some("counter"));
    Some(RuleInfo {
        chain: attribute(uapi::RULE_CHAIN)?.string(),
        handle: attribute(uapi::RULE_HANDLE)?.u64()?,
        comment: attribute(uapi::RULE_USERDATA).and_then(|userdata| comment(userdata.payload)),
        packets: packets.and_then(|counter| {
            const COUNTER_PACKETS: u16 = 2;
            find(find(counter.payload, uapi::EXPR_DATA)?.payload, COUNTER_PACKETS)?.u64()
        }),
        expressions: expressions.iter().filter_map(name).collect(),
    })
}

fn comment(userdata: &[u8]) -> Option<String> {
    let (header, comment) = userdata.split_at_checked(2)?;
    let comment = comment.get(..usize::from(header[1]).checked_sub(1)?)?;
    (header[0] == 0).then(|| String::from_utf8_lossy(comment).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_decoded() {
        assert_eq!(comment(&crate::rule::comment_userdata("default/web:http")).as_deref(), Some("default/web:http"));
        assert_eq!(comment(&[0, 9, b'x']), None);
    }
}
