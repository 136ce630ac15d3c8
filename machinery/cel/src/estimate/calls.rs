//! The cost of a call and the size of its result, estimated from its arguments.

use super::actual::{AUTHORIZATION, LIST, REGEX, STRUCT, TRAVERSAL, is_text_comparison};
use super::range::{CostEstimate, ONE, Size, ZERO};
use super::{Coster, Node};
use crate::ast::{Expr, ExprKind, Literal};
use crate::types::Type;

/// The longest pattern of a named format.
const MAX_NAME_FORMAT_REGEX: f64 = 128.0;
const MAX_FORMAT_SIZE: u64 = 64;

/// One overload of a call.
pub struct Call<'x> {
    pub function: &'static str,
    pub id: &'static str,
    pub(super) target: Option<&'x Node<'x>>,
    pub(super) args: &'x [Node<'x>],
    pub costs: &'x [CostEstimate],
}

/// The cost without that of the arguments, and the size of the result.
type Estimate = Option<(CostEstimate, Option<Size>)>;

impl Coster<'_> {
    pub(super) fn cost_of(&mut self, expr: &Expr, call: &Call<'_>) -> (CostEstimate, Option<Size>) {
        let args = call.costs.iter().fold(ZERO, |sum, cost| sum + *cost);
        let own = self.extension(call).or_else(|| self.kubernetes(call)).or_else(|| self.standard(expr, call));
        match own {
            // Logical operators and conditionals do not evaluate all of their arguments.
            Some((cost, size)) if matches!(call.id, "logical_and" | "logical_or" | "conditional") => (cost, size),
            Some((cost, size)) => (cost + args, size),
            None => (ONE + args, None),
        }
    }

    fn known(&self, node: &Node<'_>) -> Size {
        node.size.or_else(|| self.declared_size(&node.path)).unwrap_or(Size::UNKNOWN)
    }

    /// Returns an item of a list.
    fn item(&self, list: &Node<'_>) -> Option<Node<'static>> {
        let of = list.of.first_parameter()?.clone();
        let mut path = list.path.clone();
        if !path.is_empty() {
            path.push("@items".into());
        }
        Some(Node { expr: None, path, of, size: None })
    }

    /// Estimates the list functions of cel-go.
    fn extension(&self, call: &Call<'_>) -> Estimate {
        let allocating =
            |factor: f64, size: Size| Some((size.share(factor) + CostEstimate::fixed(1 + LIST), Some(size)));
        let squared = |node: &Node<'_>, text: bool| {
            let size = self.known(node);
            allocating(if text { 2.0 + TRAVERSAL } else { 2.0 }, size.product(size))
        };
        match (call.id, call.target, call.args) {
            ("list_slice", Some(list), [start, end]) => {
                let start = number(start, 0);
                let end = number(end, self.known(list).max);
                allocating(1.0, Size::fixed(end.saturating_sub(start)))
            }
            ("lists_range", None, [count]) => allocating(1.0, Size::fixed(number(count, u64::MAX))),
            ("list_reverse" | "list_flatten", Some(list), []) => allocating(1.0, self.known(list)),
            ("list_flatten_int", Some(list), [depth]) => allocating(number(depth, u64::MAX) as f64, self.known(list)),
            ("list_distinct", Some(list), []) => squared(list, false),
            (id, Some(list), []) if id.starts_with("list_") && id.ends_with("_sort") => {
                squared(list, matches!(id, "list_string_sort" | "list_bytes_sort"))
            }
            (id, Some(_), [keys]) if id.ends_with("_sortByAssociatedKeys") => {
                squared(keys, id.starts_with("list_string_") || id.starts_with("list_bytes_"))
            }
            _ => None,
        }
    }

    /// Estimates the functions of Kubernetes' libraries.
    fn kubernetes(&self, call: &Call<'_>) -> Estimate {
        let traversed = |node: &Node<'_>| self.known(node).share(TRAVERSAL);
        match (call.function, call.target, call.args) {
            ("check", ..) => Some((CostEstimate::fixed(AUTHORIZATION), None)),
            ("fieldSelector" | "labelSelector", _, [text]) => {
                let size = self.known(text);
                let requirements = size.share(0.5).share((LIST + STRUCT) as f64);
                Some((CostEstimate::fixed(LIST) + size.share(TRAVERSAL) + requirements, None))
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(list), _) => match self.item(list) {
                Some(item) => {
                    let text = matches!(item.of.plain(), Type::String | Type::Bytes);
                    let each = if text { ONE + self.known(&item).share(TRAVERSAL) } else { ONE };
                    Some((self.known(list).times(each), None))
                }
                None => Some((traversed(list), None)),
            },
            ("url" | "jsonpatch.escapeKey", _, [text]) => Some((traversed(text), Some(self.known(text)))),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(text), _) => {
                Some((traversed(text), Some(self.known(text))))
            }
            ("replace", Some(text), [from, to, ..]) => {
                let size = self.known(text);
                let result = replaced(size, self.known(from), self.known(to));
                Some((size.share(2.0 * TRAVERSAL), Some(result)))
            }
            ("split", Some(text), args) => {
                let size = self.known(text);
                let max = args.get(1).map_or(size.max, |limit| number(limit, size.max));
                Some((size.share(2.0 * TRAVERSAL), Some(Size { min: 0, max })))
            }
            ("join", Some(list), args) => Some(self.join(list, args)),
            ("find" | "findAll", Some(text), [pattern, ..]) => {
                let size = self.known(text);
                let looked = size.plus(Size::fixed(1)).share(TRAVERSAL);
                let cost = looked.product(self.known(pattern).share(REGEX));
                Some((cost, Some(Size { min: 0, max: size.max })))
            }
            ("ip", ..) if call.id == "cidr_ip" => Some((ONE, None)),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, [text, ..]) => {
                Some((traversed(text), None))
            }
            ("ip.isCanonical", _, [text]) => Some((self.known(text).share(2.0 * TRAVERSAL), None)),
            ("containsIP" | "containsCIDR", _, [other]) => Some((self.contains(call, other), None)),
            ("validate", _, [text]) => Some((traversed(text).share(MAX_NAME_FORMAT_REGEX * REGEX), None)),
            ("sets.contains" | "sets.intersects" | "sets.equivalent", _, [left, right]) => {
                let pairs = self.known(left).product(self.known(right));
                Some((pairs.share(if call.function == "sets.equivalent" { 2.0 } else { 1.0 }) + ONE, None))
            }
            ("_==_", _, [left, right]) if left.of == right.of => self.equality(left, right),
            _ => None,
        }
    }

    fn contains(&self, call: &Call<'_>, other: &Node<'_>) -> CostEstimate {
        let address = Size { min: 4, max: 16 };
        let mut cost = address.plus(address).share(TRAVERSAL);
        if call.function == "containsCIDR" {
            cost = cost + address.share(TRAVERSAL) + ONE;
        }
        if call.id.ends_with("_string") {
            cost = cost + self.known(other).share(TRAVERSAL);
        }
        cost
    }

    fn join(&self, list: &Node<'_>, args: &[Node<'_>]) -> (CostEstimate, Option<Size>) {
        let count = self.known(list);
        let mut size = self.item(list).map_or(Size::fixed(0), |item| count.product(self.known(&item)));
        if let Some(separator) = args.first() {
            let between = Size { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
            size = size.plus(self.known(separator).product(between));
        }
        (size.share(TRAVERSAL), Some(size))
    }

    /// Estimates equality. That of library types does not depend on sizes.
    fn equality(&self, left: &Node<'_>, right: &Node<'_>) -> Estimate {
        let (Type::Struct(name) | Type::Opaque(name, _)) = &left.of else { return None };
        match &**name {
            "net.IP" | "net.CIDR" | "kubernetes.Quantity" | "kubernetes.Semver" => Some((ONE, None)),
            name if name.starts_with("kubernetes.authorization.") => Some((ONE, None)),
            "kubernetes.NamedFormat" => Some((CostEstimate { min: 1, max: MAX_FORMAT_SIZE }.share(TRAVERSAL), None)),
            "kubernetes.URL" => {
                let max = right.size.map_or(1, |size| size.max);
                Some((CostEstimate { min: 1, max }.share(TRAVERSAL), None))
            }
            _ => None,
        }
    }

    /// Estimates the functions of the language.
    fn standard(&mut self, expr: &Expr, call: &Call<'_>) -> Estimate {
        let sized = |node: &Node<'_>| node.size.unwrap_or(Size::UNKNOWN);
        match (call.id, call.target, call.args) {
            ("string_format", Some(text), _) => Some((sized(text).share(TRAVERSAL), None)),
            ("string_to_bytes", _, [text]) => {
                let size = sized(text);
                let result = Size { min: size.min, max: size.max.saturating_mul(4) };
                Some((size.share(TRAVERSAL), Some(result)))
            }
            ("bytes_to_string", _, [bytes]) => {
                let size = sized(bytes);
                Some((size.share(TRAVERSAL), Some(Size { min: size.min / 4, max: size.max })))
            }
            ("strings_quote", _, [text]) => {
                let size = sized(text);
                let max = size.max.saturating_mul(2).saturating_add(2);
                Some((size.share(TRAVERSAL), Some(Size { min: size.min.saturating_add(2), max })))
            }
            ("starts_with_string" | "ends_with_string", _, [part]) => Some((sized(part).share(TRAVERSAL), None)),
            ("in_list", _, [_, list]) => Some((sized(list).share(1.0), None)),
            ("matches_string", Some(text), [pattern]) => {
                let looked = sized(text).plus(Size::fixed(1)).share(TRAVERSAL);
                Some((looked.product(sized(pattern).share(REGEX)), None))
            }
            ("contains_string", Some(text), [part]) => {
                Some((sized(text).share(TRAVERSAL).product(sized(part).share(TRAVERSAL)), None))
            }
            ("logical_and" | "logical_or", ..) => {
                let left = call.costs.first()?;
                let right = call.costs.get(1)?;
                Some((CostEstimate { min: left.min, max: (*left + *right).max }, None))
            }
            ("conditional", _, [_, yes, no]) => {
                let entry = |node: &Node<'_>| node.expr.and_then(|expr| self.entry_of(expr));
                if let (Some(a), Some(b)) = (entry(yes), entry(no)) {
                    self.entries.insert(expr.id, a.union(b));
                }
                let cost = call.costs[0] + call.costs[1].union(call.costs[2]);
                Some((cost, Some(sized(yes).union(sized(no)))))
            }
            ("add_string" | "add_bytes" | "add_list", _, [left, right]) => {
                let entry = |node: &Node<'_>| node.expr.and_then(|expr| self.entry_of(expr));
                if let (Some(a), Some(b)) = (entry(left), entry(right)) {
                    self.entries.insert(expr.id, a.union(b));
                }
                let size = sized(left).plus(sized(right));
                Some((if call.id == "add_list" { ONE } else { size.share(TRAVERSAL) }, Some(size)))
            }
            (id, _, [left, right]) if matches!(id, "equals" | "not_equals") || is_text_comparison(id) => {
                let max = sized(left).max.min(sized(right).max);
                Some((CostEstimate { min: max.min(1), max }.share(TRAVERSAL), None))
            }
            _ => None,
        }
    }
}

/// Returns an argument that is a literal number.
fn number(node: &Node<'_>, otherwise: u64) -> u64 {
    match node.expr.map(|expr| &expr.kind) {
        Some(ExprKind::Literal(Literal::Int(number))) => u64::try_from(*number).unwrap_or(0),
        _ => otherwise,
    }
}

/// Returns the length of a string after a replacement.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let longest = if from.min == 0 {
        // The empty string occurs around every character.
        text.max.saturating_add(1).saturating_mul(to.max).saturating_add(text.max)
    } else if to.max <= from.min {
        text.max
    } else {
        text.max.div_ceil(from.min).saturating_mul(to.max)
    };
    let shortest = if from.max == 0 {
        text.min.saturating_add(1).saturating_mul(to.min).saturating_add(text.min)
    } else if from.max <= to.min {
        text.min
    } else {
        text.min.div_ceil(from.max).saturating_mul(to.min)
    };
    Size { min: shortest, max: longest }
}
