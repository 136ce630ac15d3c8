//! The merge of two lists: by key if the items are objects, as sets if they are scalars; and the order of the result.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;
use corten_meta::go::printed;

use super::position::{MAP, Position, go_kind};
use super::{PATCH, error, kind_mismatch, merge_map, unknown_patch, without_merge_key};
use crate::Error;

/// The way to merge a list.
#[derive(Clone, Copy)]
pub(super) struct ListMerge<'a> {
    pub(super) key: Option<&'a str>,
    pub(super) items: Position<'a>,
    /// Whether the patch lists the scalars to delete.
    pub(super) deletes: bool,
}

/// The order of a merged list.
#[derive(Clone, Copy)]
pub(super) struct Order<'a> {
    pub(super) patch: &'a [Value],
    pub(super) server: &'a [Value],
    pub(super) key: Option<&'a str>,
    pub(super) maps: bool,
}

pub(super) fn merge_list(original: Vec<Value>, patch: &mut [Value], how: ListMerge) -> Result<Vec<Value>, Error> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let maps = element_kind(&[&original, patch])? == MAP;
    if !maps {
        let in_patch = Positions::new(patch, None);
        if how.deletes {
            return Ok(original.into_iter().filter(|item| in_patch.of(item).is_none()).collect());
        }
        let mut seen = BTreeSet::new();
        let both = original.iter().chain(patch.iter());
        let merged = both.filter(|item| seen.insert(item.to_string())).cloned().collect();
        return interleaved(merged, Order { patch, server: &original, key: how.key, maps });
    }
    let Some(key) = how.key else {
        return Err(error(format!("cannot merge lists without merge key for {}", how.items.name())));
    };
    let (original, mut named) = apply_item_directives(original, patch, key)?;
    let mut positions = Positions::new(&original, Some(key));
    let mut merged = original.clone();
    for item in &mut named {
        if item.get(key).is_none() {
            return Err(without_merge_key(item, key));
        }
        match positions.of(item) {
            Some(at) => {
                if let (Value::Object(old), Value::Object(new)) = (&mut merged[at], &mut *item) {
                    *old = merge_map(std::mem::take(old), new, how.items)?;
                }
            }
            None => {
                positions.insert(item, merged.len());
                merged.push(item.clone());
            }
        }
    }
    interleaved(merged, Order { patch: &named, server: &original, key: how.key, maps })
}

/// The positions of a list's items: the first of each, by its merge key or by its value.
struct Positions<'a> {
    key: Option<&'a str>,
    by_key: BTreeMap<String, usize>,
}

impl<'a> Positions<'a> {
    fn new(list: &[Value], key: Option<&'a str>) -> Positions<'a> {
        let mut positions = Positions { key, by_key: BTreeMap::new() };
        list.iter().enumerate().for_each(|(at, item)| positions.insert(item, at));
        positions
    }

    fn mark(&self, item: &Value) -> String {
        match self.key {
            Some(key) => item.get(key).map(Value::to_string).unwrap_or_default(),
            None => item.to_string(),
        }
    }

    fn insert(&mut self, item: &Value, at: usize) {
        self.by_key.entry(self.mark(item)).or_insert(at);
    }

    fn of(&self, item: &Value) -> Option<usize> {
        self.by_key.get(&self.mark(item)).copied()
    }
}

/// Applies items that are directives: `$patch: delete` removes its match, `$patch: replace` drops the old list. Returns
/// the rest of both lists.
fn apply_item_directives(
    mut original: Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut plain = Vec::new();
    let mut gone = BTreeSet::new();
    let mut replaces = false;
    for item in patch {
        let Value::Object(fields) = item else { continue };
        let Some(directive) = fields.get(PATCH) else {
            plain.push(item.clone());
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let wanted = fields.get(key).ok_or_else(|| without_merge_key(item, key))?;
                gone.insert(wanted.to_string());
            }
            Some("replace") => replaces = true,
            Some("merge") => return Err(error("merging lists cannot yet be specified in the patch")),
            _ => return Err(unknown_patch(directive, fields)),
        }
    }
    if replaces {
        return Ok((plain, Vec::new()));
    }
    original.retain(|item| item.get(key).is_none_or(|key| !gone.contains(&key.to_string())));
    Ok((original, plain))
}

/// Checks that the items of the patch are in the order of the directive.
pub(super) fn check_order(patch: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Error> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut items = Vec::with_capacity(patch.len());
    for item in patch {
        if key.is_some() && !item.is_object() {
            return Err(kind_mismatch(MAP, item));
        }
        if key.is_none() || item.get(PATCH).and_then(Value::as_str) != Some("delete") {
            items.push(item);
        }
    }
    let mut at = 0;
    let mut next = 0;
    while at < items.len() && next < order.len() {
        if items[at].get(PATCH).is_some() {
            at += 1;
            continue;
        }
        if is_same(items[at], &order[next], key)? {
            at += 1;
        }
        next += 1;
    }
    if at == items.len() {
        return Ok(());
    }
    let patch = printed(&patch.to_vec().into());
    let order = printed(&order.to_vec().into());
    Err(error(format!("The order in patch list:\n{patch}\n doesn't match {} list:\n{order}\n", super::SET_ORDER)))
}

fn is_same(item: &Value, next: &Value, key: Option<&str>) -> Result<bool, Error> {
    let Some(key) = key else { return Ok(item == next) };
    for side in [item, next] {
        if !side.is_object() {
            return Err(kind_mismatch(MAP, side));
        }
    }
    let value = |side: &Value| side.get(key).cloned().ok_or_else(|| without_merge_key(side, key));
    Ok(value(item)? == value(next)?)
}

/// Returns the common kind of all items.
pub(super) fn element_kind(lists: &[&[Value]]) -> Result<&'static str, Error> {
    let mut kinds = lists.iter().flat_map(|list| list.iter()).map(go_kind);
    let Some(first) = kinds.next() else {
        return Err(error("no elements in any of the given slices"));
    };
    if first == "[]interface {}" {
        return Err(Error::ListOfLists);
    }
    if kinds.any(|kind| kind != first) {
        let shown: Vec<String> = lists.iter().map(|list| printed(&Value::Array(list.to_vec()))).collect();
        return Err(error(format!("list element types are not identical: [{}]", shown.join(" "))));
    }
    Ok(first)
}

/// Orders items: those of the patch are in its order, the others keep theirs; the two are interleaved so that the
/// relations of the old list hold where the patch has none.
pub(super) fn interleaved(merged: Vec<Value>, order: Order) -> Result<Vec<Value>, Error> {
    check_keys(&merged, order)?;
    let in_patch = Positions::new(order.patch, order.key);
    let by = if order.maps { Some(order.key.unwrap_or_default()) } else { None };
    let positions = Positions::new(order.patch, by);
    let in_server = Positions::new(order.server, by);
    let (named, others): (Vec<Value>, Vec<Value>) = merged.into_iter().partition(|item| in_patch.of(item).is_some());
    let named = sorted(named, &positions);
    let others = sorted(others, &in_server);
    let mut woven = Vec::with_capacity(named.len() + others.len());
    let mut left = others.into_iter().peekable();
    let mut right = named.into_iter().peekable();
    loop {
        let take_left = match (left.peek(), right.peek()) {
            (None, None) => return Ok(woven),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(l), Some(r)) => match (in_server.of(l), in_server.of(r)) {
                (Some(l), Some(r)) => l < r,
                _ => false,
            },
        };
        woven.extend(if take_left { left.next() } else { right.next() });
    }
}

/// Checks that each item has its merge key.
fn check_keys(merged: &[Value], order: Order) -> Result<(), Error> {
    if let Some(key) = order.key {
        for item in merged {
            if !item.is_object() {
                return Err(kind_mismatch(MAP, item));
            }
            if item.get(key).is_none() {
                return Err(without_merge_key(item, key));
            }
        }
        if let Some(at) = order.patch.iter().position(|named| !named.is_object()).filter(|_| !merged.is_empty()) {
            return Err(error(format!("value for key {at} is not a map")));
        }
    }
    let key = order.key.unwrap_or_default();
    let mut all = merged.iter().chain(order.patch).chain(order.server).filter(|_| order.maps);
    match all.find(|item| item.get(key).is_none()) {
        Some(item) if !item.is_object() => Err(kind_mismatch(MAP, item)),
        Some(item) => Err(without_merge_key(item, key)),
        None => Ok(()),
    }
}

/// The longest list that upstream sorts by insertion alone.
const BLOCK: usize = 20;

/// Sorts by the position in another list. An item that is not in it comes before any that it follows, as in upstream's
/// sort: that is no total order, so a short list takes exactly upstream's steps.
fn sorted(items: Vec<Value>, by: &Positions) -> Vec<Value> {
    let mut items: Vec<(Option<usize>, Value)> = items.into_iter().map(|item| (by.of(&item), item)).collect();
    if items.len() > BLOCK || items.iter().all(|(position, _)| position.is_some()) {
        items.sort_by_key(|(position, _)| *position);
    } else {
        let is_less = |a: Option<usize>, b: Option<usize>| a.zip(b).is_none_or(|(a, b)| a < b);
        for end in 1..items.len() {
            let mut at = end;
            while at > 0 && is_less(items[at].0, items[at - 1].0) {
                items.swap(at, at - 1);
                at -= 1;
            }
        }
    }
    items.into_iter().map(|(_, item)| item).collect()
}
