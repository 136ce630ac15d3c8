//! The actual cost of a call, from its arguments and its result.

use super::range::share;
use crate::value::{List, Value};

pub const LIST: u64 = 10;
pub const MAP: u64 = 30;
pub const STRUCT: u64 = 40;
/// The cost of reading a string once, by its length.
pub const TRAVERSAL: f64 = 0.1;
/// The cost of running a regular expression, by its length.
pub const REGEX: f64 = 0.25;
/// The cost of an authorization check: an expression can afford two.
pub const AUTHORIZATION: u64 = 350_000;

/// Returns the cost of a call; `result` is `None` if it failed.
pub fn call(function: &str, id: &str, args: &[Value<'_>], result: Option<&Value<'_>>) -> u64 {
    let size = |index: usize| args.get(index).map_or(1, Value::size);
    let traversed = |index: usize| share(size(index), TRAVERSAL);
    if let Some(cost) = list_extension(id, args, result) {
        return cost;
    }
    match function {
        "check" => AUTHORIZATION,
        "fieldSelector" | "labelSelector" => selector(size(1)),
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => args.first().map_or(0, traversal),
        "url"
        | "lowerAscii"
        | "upperAscii"
        | "substring"
        | "trim"
        | "jsonpatch.escapeKey"
        | "cidr"
        | "isIP"
        | "isCIDR"
        | "quantity"
        | "isQuantity"
        | "semver"
        | "isSemver" => traversed(0),
        "replace" | "split" | "ip.isCanonical" => share(size(0), 2.0 * TRAVERSAL),
        "join" => share(result.map_or(0, Value::size), 2.0 * TRAVERSAL),
        "find" | "findAll" => regex(size(0), size(1)),
        "ip" if id == "cidr_ip" => 1,
        "ip" => traversed(0),
        "containsIP" | "containsCIDR" => {
            let mut cost = share(size(0) * 2, TRAVERSAL);
            if function == "containsCIDR" {
                cost += traversed(0) + 1;
            }
            if id.ends_with("_string") {
                cost += traversed(1);
            }
            cost
        }
        "validate" => regex(size(1), crate::library::formats::regex_size(args.first())),
        "sets.contains" | "sets.intersects" => size(0).saturating_mul(size(1)) + 1,
        "sets.equivalent" => size(0).saturating_mul(size(1)).saturating_mul(2) + 1,
        "_==_" if matches!(args.first(), Some(Value::Opaque(_) | Value::Authorization(_))) => 1,
        _ => standard(id, args),
    }
}

fn standard(id: &str, args: &[Value<'_>]) -> u64 {
    let size = |index: usize| args.get(index).map_or(1, Value::size);
    match id {
        "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string" | "strings_quote"
        | "string_format" => share(size(0), TRAVERSAL),
        "in_list" => size(1),
        "equals" | "not_equals" => share(size(0).min(size(1)), TRAVERSAL),
        id if is_text_comparison(id) => share(size(0).min(size(1)), TRAVERSAL),
        "add_string" | "add_bytes" => share(size(0).saturating_add(size(1)), TRAVERSAL),
        "matches_string" => regex(size(0), size(1)),
        "contains_string" => share(size(0), TRAVERSAL).saturating_mul(share(size(1), TRAVERSAL)),
        _ => 1,
    }
}

/// Reports whether an overload compares strings or bytes.
pub fn is_text_comparison(id: &str) -> bool {
    (id.starts_with("less_") || id.starts_with("greater_")) && (id.ends_with("_string") || id.ends_with("_bytes"))
}

/// Returns the cost of a match. The string counts one longer, so that an empty one does not make the match free.
fn regex(text: u64, pattern: u64) -> u64 {
    share(text.saturating_add(1), TRAVERSAL).saturating_mul(share(pattern, REGEX))
}

fn selector(length: u64) -> u64 {
    LIST + share(length, TRAVERSAL) + share(share(length, 0.5), (LIST + STRUCT) as f64)
}

/// Returns the cost of cel-go's list functions, which differ from the others.
fn list_extension(id: &str, args: &[Value<'_>], result: Option<&Value<'_>>) -> Option<u64> {
    let allocating = |factor: f64, size: u64| (size as f64 * factor) as u64 + 1 + LIST;
    let size = |index: usize| args.get(index).map_or(0, Value::size);
    match id {
        "list_slice" | "lists_range" | "list_reverse" => Some(allocating(1.0, result.map_or(0, Value::size))),
        "list_flatten" => Some(allocating(1.0, size(0))),
        "list_flatten_int" => match args.get(1) {
            Some(Value::Int(depth)) => Some(allocating(*depth as f64, size(0))),
            _ => None,
        },
        "list_distinct" => Some(self_compare(args.first())),
        id if id.starts_with("list_") && id.ends_with("_sort") => Some(self_compare(args.first())),
        id if id.ends_with("_sortByAssociatedKeys") => Some(self_compare(args.get(1))),
        _ => None,
    }
}

fn self_compare(list: Option<&Value<'_>>) -> u64 {
    let Some(Value::List(list)) = list else { return 1 };
    let size = list.len() as u64;
    let text = matches!(list.get(0), Some(Ok(Value::String(_) | Value::Bytes(_))));
    let factor = if text { 2.0 + TRAVERSAL } else { 2.0 };
    (size.saturating_mul(size) as f64 * factor) as u64 + 1 + LIST
}

/// Returns the cost of walking a value to its leaves.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * TRAVERSAL) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * TRAVERSAL) as u64,
        Value::List(list) => list_traversal(list),
        Value::Map(map) => map
            .entries()
            .map(|entries| entries.iter().map(|(key, value)| traversal(key) + traversal(value)).sum())
            .unwrap_or(1),
        _ => 1,
    }
}

fn list_traversal(list: &List<'_>) -> u64 {
    list.iter().map(|item| item.map_or(1, |item| traversal(&item))).sum()
}
