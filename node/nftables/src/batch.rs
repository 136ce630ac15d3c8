//! A batch: operations that the kernel applies all together or not at all.

use crate::attributes::Attributes;
use crate::rule::Rule;
use crate::set::{Element, Set};
use crate::uapi::{self, Family};

/// The most bytes of elements in one message; a netlink attribute holds at most 64 KiB.
const ELEMENT_BYTES: usize = 32 * 1024;

/// The priorities of standard chains at the hooks, as the `nft` language names them.
pub mod priority {
    pub const RAW: i32 = -300;
    pub const DSTNAT: i32 = -100;
    pub const FILTER: i32 = 0;
    pub const SRCNAT: i32 = 100;
}

/// A table, by family and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    pub family: Family,
    pub name: String,
}

impl Table {
    pub fn new(family: Family, name: &str) -> Table {
        Table { family, name: name.to_owned() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    Filter,
    Nat,
    Route,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Policy {
    Drop = 0,
    Accept = 1,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Base {
    chain_type: ChainType,
    hook: Hook,
    priority: i32,
    policy: Policy,
}

/// A chain: one that the kernel enters at a hook, or one that rules jump to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    name: String,
    base: Option<Base>,
}

impl Chain {
    /// Makes a chain that rules jump to.
    pub fn regular(name: &str) -> Chain {
        Chain { name: name.to_owned(), base: None }
    }

    /// Makes a chain that the kernel enters at a hook; its policy is accept.
    pub fn base(name: &str, chain_type: ChainType, hook: Hook, priority: i32) -> Chain {
        Chain { name: name.to_owned(), base: Some(Base { chain_type, hook, priority, policy: Policy::Accept }) }
    }

    pub fn policy(mut self, policy: Policy) -> Chain {
        if let Some(base) = &mut self.base {
            base.policy = policy;
        }
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Operations in the order the kernel runs them.
#[derive(Debug, Default)]
pub struct Batch {
    /// Encoded messages; message number n has the sequence number n + 1.
    pub(crate) messages: Vec<u8>,
    /// The operation of each message, to name the one that the kernel refused.
    pub(crate) operations: Vec<String>,
    pub(crate) generation: Option<u32>,
    last: usize,
    sets: u32,
}

impl Batch {
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Makes the batch fail with [`crate::Error::Stale`] unless the ruleset still has this generation.
    pub fn at_generation(mut self, generation: u32) -> Batch {
        self.generation = Some(generation);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Returns the number of bytes of the batch.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    fn push(&mut self, table: &Table, message: u16, flags: u16, attributes: Attributes, operation: String) {
        self.last = self.messages.len();
        let kind = uapi::SUBSYS_NFTABLES << 8 | message;
        let sequence = self.operations.len() as u32 + 1;
        let flags = uapi::NLM_F_REQUEST | flags;
        write_message(&mut self.messages, kind, flags, sequence, table.family as u8, 0, attributes.as_bytes());
        self.operations.push(operation);
    }

    /// Requests an acknowledgement of the last message: its arrival proves that the kernel applied the batch.
    pub(crate) fn acknowledge_last(&mut self) {
        let flags = &mut self.messages[self.last + 6..self.last + 8];
        let value = u16::from_ne_bytes([flags[0], flags[1]]) | uapi::NLM_F_ACK;
        flags.copy_from_slice(&value.to_ne_bytes());
    }

    // Tables.

    /// Appends `add table`.
    pub fn add_table(&mut self, table: &Table) {
        let attributes = Attributes::new().string(uapi::TABLE_NAME, &table.name);
        self.push(table, uapi::MSG_NEWTABLE, uapi::NLM_F_CREATE, attributes, format!("add table {}", table.name));
    }

    /// Appends `delete table`, which also deletes its content.
    pub fn delete_table(&mut self, table: &Table) {
        let attributes = Attributes::new().string(uapi::TABLE_NAME, &table.name);
        self.push(table, uapi::MSG_DELTABLE, 0, attributes, format!("delete table {}", table.name));
    }

    /// Deletes the table if it exists.
    pub fn destroy_table(&mut self, table: &Table) {
        self.add_table(table);
        self.delete_table(table);
    }

    /// Leaves an empty table, also if an earlier run filled it.
    pub fn replace_table(&mut self, table: &Table) {
        self.destroy_table(table);
        self.add_table(table);
    }

    // Chains.

    /// Appends `add chain`.
    pub fn add_chain(&mut self, table: &Table, chain: &Chain) {
        let mut attributes = chain_attributes(table, &chain.name);
        if let Some(base) = &chain.base {
            let hook = Attributes::new()
                .u32(uapi::HOOK_HOOKNUM, base.hook as u32)
                .u32(uapi::HOOK_PRIORITY, base.priority as u32);
            let chain_type = match base.chain_type {
                ChainType::Filter => "filter",
                ChainType::Nat => "nat",
                ChainType::Route => "route",
            };
            attributes = attributes
                .nest(uapi::CHAIN_HOOK, hook)
                .u32(uapi::CHAIN_POLICY, base.policy as u32)
                .string(uapi::CHAIN_TYPE, chain_type);
        }
        let operation = format!("add chain {} {}", table.name, chain.name);
        self.push(table, uapi::MSG_NEWCHAIN, uapi::NLM_F_CREATE, attributes, operation);
    }

    /// Appends `flush chain`, which deletes its rules.
    pub fn flush_chain(&mut self, table: &Table, chain: &str) {
        let attributes = Attributes::new().string(uapi::RULE_TABLE, &table.name).string(uapi::RULE_CHAIN, chain);
        self.push(table, uapi::MSG_DELRULE, 0, attributes, format!("flush chain {} {chain}", table.name));
    }

    /// Appends `delete chain`; it must be empty, and nothing may lead to it.
    pub fn delete_chain(&mut self, table: &Table, chain: &str) {
        let attributes = chain_attributes(table, chain);
        self.push(table, uapi::MSG_DELCHAIN, 0, attributes, format!("delete chain {} {chain}", table.name));
    }

    // Rules.

    /// Appends `add rule`, which adds the rule at the end of the chain.
    pub fn add_rule(&mut self, table: &Table, chain: &str, rule: &Rule) {
        let header = Attributes::new().string(uapi::RULE_TABLE, &table.name).string(uapi::RULE_CHAIN, chain);
        let names: Vec<_> = rule.expressions().iter().map(|expression| expression.name()).collect();
        let operation = format!("add rule {} {chain} ({})", table.name, names.join(" "));
        let flags = uapi::NLM_F_CREATE | uapi::NLM_F_APPEND;
        self.push(table, uapi::MSG_NEWRULE, flags, rule.encode(header), operation);
    }

    // Sets and maps.

    /// Appends `add set` or `add map`.
    pub fn add_set(&mut self, table: &Table, set: &Set) {
        self.sets += 1;
        let header = Attributes::new().string(uapi::SET_TABLE, &table.name);
        let attributes = set.encode(header, self.sets);
        let operation = format!("add set {} {}", table.name, set.name());
        self.push(table, uapi::MSG_NEWSET, uapi::NLM_F_CREATE, attributes, operation);
    }

    /// Appends `delete set` or `delete map`; no rule may use it.
    pub fn delete_set(&mut self, table: &Table, name: &str) {
        let attributes = Attributes::new().string(uapi::SET_TABLE, &table.name).string(uapi::SET_NAME, name);
        self.push(table, uapi::MSG_DELSET, 0, attributes, format!("delete set {} {name}", table.name));
    }

    /// Appends `add element`; an existing equal element is no error.
    pub fn add_elements<'a>(&mut self, table: &Table, set: &Set, elements: impl IntoIterator<Item = &'a Element>) {
        self.push_elements(table, set, uapi::MSG_NEWSETELEM, elements.into_iter(), "add");
    }

    /// Appends `delete element`, by key; every element must exist.
    pub fn delete_elements<'a>(&mut self, table: &Table, set: &Set, elements: impl IntoIterator<Item = &'a Element>) {
        self.push_elements(table, set, uapi::MSG_DELSETELEM, elements.into_iter(), "delete");
    }

    /// Appends `flush set`.
    pub fn flush_set(&mut self, table: &Table, set: &str) {
        let attributes = Attributes::new().string(uapi::ELEM_LIST_TABLE, &table.name).string(uapi::ELEM_LIST_SET, set);
        self.push(table, uapi::MSG_DELSETELEM, 0, attributes, format!("flush set {} {set}", table.name));
    }

    fn push_elements<'a>(
        &mut self,
        table: &Table,
        set: &Set,
        message: u16,
        elements: impl Iterator<Item = &'a Element>,
        verb: &str,
    ) {
        let added = message == uapi::MSG_NEWSETELEM;
        let flags = if added { uapi::NLM_F_CREATE } else { 0 };
        let mut list = Attributes::new();
        let mut count = 0;
        let mut send = |list: Attributes, count: usize| {
            let attributes = Attributes::new()
                .string(uapi::ELEM_LIST_TABLE, &table.name)
                .string(uapi::ELEM_LIST_SET, set.name())
                .nest(uapi::ELEM_LIST_ELEMENTS, list);
            let operation = format!("{verb} {count} elements of {} {}", table.name, set.name());
            self.push(table, message, flags, attributes, operation);
        };
        for element in elements {
            list = set.encode_element(list, element, added);
            count += 1;
            if list.len() >= ELEMENT_BYTES {
                send(std::mem::take(&mut list), std::mem::take(&mut count));
            }
        }
        if count > 0 {
            send(list, count);
        }
    }
}

fn chain_attributes(table: &Table, chain: &str) -> Attributes {
    Attributes::new().string(uapi::CHAIN_TABLE, &table.name).string(uapi::CHAIN_NAME, chain)
}

/// Writes a netlink message: its header, the netfilter header, attributes.
pub(crate) fn write_message(
    out: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    family: u8,
    resource: u16,
    attributes: &[u8],
) {
    let length = 16 + 4 + attributes.len();
    out.extend_from_slice(&(length as u32).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
    out.extend_from_slice(&[family, 0]);
    out.extend_from_slice(&resource.to_be_bytes());
    out.extend_from_slice(attributes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::DataType;
    use crate::value::Port;

    #[test]
    fn many_elements_are_split_into_messages_that_fit() {
        let table = Table::new(Family::Ipv4, "t");
        let set = Set::new("s", &[DataType::InetService]);
        let elements: Vec<_> = (0..10_000).map(|port| Element::key(Port(port))).collect();
        let mut batch = Batch::new();
        batch.add_elements(&table, &set, &elements);
        assert!(batch.operations.len() > 1);
        let counted: usize = batch
            .operations
            .iter()
            .map(|operation| operation.split(' ').nth(1).unwrap().parse::<usize>().unwrap())
            .sum();
        assert_eq!(counted, 10_000);
    }

    #[test]
    fn no_element_is_no_message() {
        let mut batch = Batch::new();
        batch.add_elements(&Table::new(Family::Ipv4, "t"), &Set::new("s", &[DataType::InetService]), &[]);
        assert!(batch.is_empty());
    }
}
