//! What an expression can cost at most, before there is a value: from the sizes that its variables are declared to
//! have. The numbers are upstream's, since a rule that it refuses must be refused here, and the other way round.

pub mod actual;
mod calls;
mod range;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Comprehension, Expr, ExprKind, Literal};
use crate::check::Notes;
use crate::declare::FUNCTIONS;
use crate::env::Env;
use crate::macros::OPTIONAL_INPUT;
use crate::types::Type;

pub use self::range::CostEstimate;
use self::range::{ONE, Size, ZERO};

/// The range of what a checked expression can cost.
pub fn cost(env: &Env, expr: &Expr, notes: &Notes) -> CostEstimate {
    let mut coster = Coster {
        env,
        notes,
        paths: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    coster.cost(expr)
}

/// The way from a variable to a value.
type Way = Vec<Arc<str>>;

/// The sizes of the entries of a list or map.
#[derive(Debug, Clone, Copy)]
struct Entry {
    is_list: bool,
    key: Size,
    value: Size,
}

impl Entry {
    fn union(self, other: Entry) -> Entry {
        Entry { is_list: self.is_list, key: self.key.union(other.key), value: self.value.union(other.value) }
    }
}

/// A variable of a comprehension.
struct Local {
    name: Arc<str>,
    way: Way,
    size: Option<Size>,
    entry: Option<Entry>,
    /// What it costs to ask for it, when that is not 1.
    cost: Option<CostEstimate>,
}

struct Coster<'e> {
    env: &'e Env,
    notes: &'e Notes,
    paths: HashMap<u32, Way>,
    sizes: HashMap<u32, Size>,
    entries: HashMap<u32, Entry>,
    locals: Vec<Local>,
}

/// An argument of a call, as its cost is reckoned.
struct Node<'e> {
    expr: Option<&'e Expr>,
    way: Way,
    of: Type,
    size: Option<Size>,
}

impl Coster<'_> {
    fn cost(&mut self, expr: &Expr) -> CostEstimate {
        match &expr.kind {
            ExprKind::Literal(_) => ZERO,
            ExprKind::Ident(name) => {
                let way = self.local(name).map_or_else(|| vec![Arc::clone(name)], |local| local.way.clone());
                self.paths.insert(expr.id, way);
                self.local(name).and_then(|local| local.cost).unwrap_or(ONE)
            }
            // A name with dots in it is a name.
            ExprKind::Select { test: false, .. } if self.notes.constant(expr).is_some() => {
                self.paths.insert(expr.id, expr.qualified_name().into_iter().map(Arc::from).collect());
                ONE
            }
            ExprKind::Select { operand, field, test } => self.cost_select(expr, operand, field, *test),
            ExprKind::Call { target, args, .. } => self.cost_call(expr, target.as_deref(), args),
            ExprKind::List(items) => {
                let mut sum = CostEstimate::fixed(actual::LIST);
                let mut item_size = Size { min: if items.is_empty() { 0 } else { u64::MAX }, max: 0 };
                for item in items {
                    sum = sum + self.cost(&item.value);
                    item_size = item_size.union(self.size_or_unknown(&item.value));
                }
                self.entries.insert(expr.id, Entry { is_list: true, key: Size::fixed(1), value: item_size });
                sum
            }
            ExprKind::Map(entries) => {
                let mut sum = CostEstimate::fixed(actual::MAP);
                let none = Size { min: if entries.is_empty() { 0 } else { u64::MAX }, max: 0 };
                let (mut key, mut value) = (none, none);
                for entry in entries {
                    sum = sum + self.cost(&entry.key) + self.cost(&entry.value);
                    key = key.union(self.size_or_unknown(&entry.key));
                    value = value.union(self.size_or_unknown(&entry.value));
                }
                self.entries.insert(expr.id, Entry { is_list: false, key, value });
                sum
            }
            ExprKind::Struct { fields, .. } => {
                let inner = fields.iter().map(|field| self.cost(&field.value)).fold(ZERO, |sum, cost| sum + cost);
                inner + CostEstimate::fixed(actual::STRUCT)
            }
            ExprKind::Comprehension(c) if c.is_bind() => self.cost_bind(expr, c),
            ExprKind::Comprehension(c) => self.cost_comprehension(expr, c),
        }
    }

    fn cost_select(&mut self, expr: &Expr, operand: &Expr, field: &Arc<str>, test: bool) -> CostEstimate {
        let mut sum = self.cost(operand);
        if test {
            return sum;
        }
        if matches!(self.notes.type_of(operand), Type::Map(..) | Type::Struct(_) | Type::Var(_)) {
            sum = sum + ONE;
        }
        let mut way = self.way(operand);
        way.push(Arc::clone(field));
        self.paths.insert(expr.id, way);
        sum
    }

    fn cost_call(&mut self, expr: &Expr, target: Option<&Expr>, args: &[Expr]) -> CostEstimate {
        let Some(resolved) = self.notes.call(expr) else { return ZERO };
        if resolved.function == "dyn"
            && let Some(arg) = args.first()
        {
            let cost = self.cost(arg) + ONE;
            self.copy_sizes(expr, arg);
            return cost;
        }
        let costs: Vec<CostEstimate> = args.iter().map(|arg| self.cost(arg)).collect();
        let nodes: Vec<Node<'_>> = args.iter().map(|arg| self.node(arg)).collect();
        let target = target.filter(|_| !resolved.namespaced);
        let mut sum = ZERO;
        let mut target_node = None;
        if let Some(target) = target {
            sum = self.cost(target);
            target_node = Some(self.node(target));
        }
        let mut whole = CostEstimate { min: u64::MAX, max: 0 };
        let mut result: Option<Size> = None;
        for &index in &resolved.overloads {
            let id = FUNCTIONS.overloads[index].id;
            let call = calls::Call {
                function: resolved.function,
                id,
                target: target_node.as_ref(),
                args: &nodes,
                costs: &costs,
            };
            let (cost, size) = self.cost_of(expr, &call);
            whole = whole.union(cost);
            result = match (result, size) {
                (Some(a), Some(b)) => Some(a.union(b)),
                (a, b) => a.or(b),
            };
            let step = match id {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(operand)) = (step, args.first()) {
                result = self.entry_of(operand).map(|entry| entry.value);
                let mut way = self.way(operand);
                way.push(step.into());
                self.paths.insert(expr.id, way);
            }
            if result.is_none() {
                result = self.size_of(expr);
            }
        }
        if let Some(size) = result {
            self.sizes.insert(expr.id, size);
        }
        sum + whole
    }

    fn cost_bind(&mut self, expr: &Expr, c: &Comprehension) -> CostEstimate {
        let (range, input) = (self.cost(&c.range), self.cost(&c.init));
        let mut sum = range + input;
        self.push_local(&c.accumulator, &c.init);
        if &*c.accumulator == OPTIONAL_INPUT {
            // Upstream evaluates the input of `optMap` each time that it asks for it.
            sum = ZERO;
            if let Some(local) = self.locals.last_mut() {
                local.cost = Some(input);
            }
        }
        let sum = sum + self.cost(&c.result);
        self.copy_sizes(expr, &c.result);
        self.locals.pop();
        sum
    }

    fn cost_comprehension(&mut self, expr: &Expr, c: &Comprehension) -> CostEstimate {
        let sum = self.cost(&c.range) + self.cost(&c.init);
        self.push_local(&c.accumulator, &c.init);
        let before = self.locals.len();
        self.push_element(c);
        let condition = self.cost(&c.condition);
        let step = self.cost(&c.step);
        let step_entry = self.entry_of(&c.step);
        self.locals.truncate(before);
        let sum = sum + self.cost(&c.result);
        self.locals.pop();
        let count = self.size_or_unknown(&c.range);
        match &c.init.kind {
            ExprKind::Literal(_) => {
                if let Some(size) = self.size_of(&c.init) {
                    self.sizes.insert(expr.id, size);
                }
            }
            ExprKind::List(_) | ExprKind::Map(_) => {
                self.sizes.insert(expr.id, count);
                if let Some(entry) = step_entry {
                    self.entries.insert(expr.id, entry);
                }
            }
            _ => {}
        }
        sum + count.times(step + condition)
    }

    /// The variables of a comprehension lead into its range.
    fn push_element(&mut self, c: &Comprehension) {
        let entry = self.entry_of(&c.range);
        let is_list =
            entry.map_or_else(|| matches!(self.notes.type_of(&c.range), Type::List(_)), |entry| entry.is_list);
        let keys = (if is_list { "@indices" } else { "@keys" }, entry.map(|entry| entry.key));
        let values = (if is_list { "@items" } else { "@values" }, entry.map(|entry| entry.value));
        let mut push = |name: &Arc<str>, (step, size): (&str, Option<Size>)| {
            let mut way = self.way(&c.range);
            way.push(step.into());
            self.locals.push(Local { name: Arc::clone(name), way, size, entry: None, cost: None });
        };
        match &c.variable2 {
            Some(second) => {
                push(&c.variable, keys);
                push(second, values);
            }
            None => push(&c.variable, if is_list { values } else { keys }),
        }
    }

    fn push_local(&mut self, name: &Arc<str>, value: &Expr) {
        let (way, size, entry) = (self.way(value), self.size_of(value), self.entry_of(value));
        self.locals.push(Local { name: Arc::clone(name), way, size, entry, cost: None });
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| *local.name == *name)
    }

    fn way(&self, expr: &Expr) -> Way {
        if let Some(local) = expr.as_ident().and_then(|name| self.local(name)) {
            return local.way.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn node<'x>(&mut self, expr: &'x Expr) -> Node<'x> {
        let mut way = self.way(expr);
        if way.first().is_some_and(|name| &**name == ACCUMULATOR) {
            way.clear();
        }
        Node { expr: Some(expr), way, of: self.notes.type_of(expr).clone(), size: self.size_of(expr) }
    }

    fn copy_sizes(&mut self, to: &Expr, from: &Expr) {
        if let Some(size) = self.size_of(from) {
            self.sizes.insert(to.id, size);
        }
        if let Some(entry) = self.entry_of(from) {
            self.entries.insert(to.id, entry);
        }
    }

    fn size_of(&mut self, expr: &Expr) -> Option<Size> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            ExprKind::Literal(Literal::String(text)) => return Some(Size::fixed(text.chars().count() as u64)),
            ExprKind::Literal(Literal::Bytes(bytes)) => return Some(Size::fixed(bytes.len() as u64)),
            ExprKind::Literal(_) => return Some(Size::fixed(1)),
            ExprKind::List(items) => return Some(Size::fixed(items.len() as u64)),
            ExprKind::Map(entries) => return Some(Size::fixed(entries.len() as u64)),
            _ => {}
        }
        let way = self.way(expr);
        if let Some(size) = self.declared_size(&way) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.notes.type_of(expr).is_scalar() {
            return Some(Size::fixed(1));
        }
        expr.as_ident().and_then(|name| self.local(name)).and_then(|local| local.size)
    }

    /// What the schema says about the value at the end of a way.
    fn declared_size(&self, way: &[Arc<str>]) -> Option<Size> {
        let (variable, rest) = way.split_first()?;
        Some(Size { min: 0, max: self.env.sizes(variable)?.max_along(rest)? })
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Size {
        self.size_of(expr).unwrap_or(Size::UNKNOWN)
    }

    fn entry_of(&self, expr: &Expr) -> Option<Entry> {
        if let Some(entry) = self.entries.get(&expr.id) {
            return Some(*entry);
        }
        expr.as_ident().and_then(|name| self.local(name)).and_then(|local| local.entry)
    }
}
