//! The cost of an expression, estimated before evaluation from the declared sizes of its variables. The numbers are
//! upstream's, so that exactly the same rules are refused.

pub mod actual;
mod calls;
mod range;

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Comprehension, Expr, ExprKind, Literal};
use crate::check::Notes;
use crate::env::Env;
use crate::library::functions::FUNCTIONS;
use crate::macros::OPTIONAL_INPUT;
use crate::types::Type;

pub use self::range::CostEstimate;
use self::range::{ONE, Size, ZERO};

/// Returns the cost range of a checked expression.
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

/// The path from a variable to a value.
type ValuePath = Vec<Arc<str>>;

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
    path: ValuePath,
    size: Option<Size>,
    entry: Option<Entry>,
    /// The cost of reading it, if that is not 1.
    cost: Option<CostEstimate>,
}

struct Coster<'e> {
    env: &'e Env,
    notes: &'e Notes,
    paths: HashMap<u32, ValuePath>,
    sizes: HashMap<u32, Size>,
    entries: HashMap<u32, Entry>,
    locals: Vec<Local>,
}

/// An argument of a call, for cost calculations.
struct Node<'e> {
    expr: Option<&'e Expr>,
    path: ValuePath,
    of: Type,
    size: Option<Size>,
}

impl Coster<'_> {
    fn cost(&mut self, expr: &Expr) -> CostEstimate {
        match &expr.kind {
            ExprKind::Literal(_) => ZERO,
            ExprKind::Ident(name) => {
                let path = self.local(name).map_or_else(|| vec![Arc::clone(name)], |local| local.path.clone());
                self.paths.insert(expr.id, path);
                self.local(name).and_then(|local| local.cost).unwrap_or(ONE)
            }
            // A qualified name is one name.
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
                let mut key = none;
                let mut value = none;
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
        let mut path = self.path(operand);
        path.push(Arc::clone(field));
        self.paths.insert(expr.id, path);
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
        let mut total = CostEstimate { min: u64::MAX, max: 0 };
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
            total = total.union(cost);
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
                let mut path = self.path(operand);
                path.push(step.into());
                self.paths.insert(expr.id, path);
            }
            if result.is_none() {
                result = self.size_of(expr);
            }
        }
        if let Some(size) = result {
            self.sizes.insert(expr.id, size);
        }
        sum + total
    }

    fn cost_bind(&mut self, expr: &Expr, c: &Comprehension) -> CostEstimate {
        let range = self.cost(&c.range);
        let input = self.cost(&c.init);
        let mut sum = range + input;
        self.push_local(&c.accumulator, &c.init);
        if &*c.accumulator == OPTIONAL_INPUT {
            // Upstream evaluates the input of `optMap` at each use.
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

    /// Adds the variables of a comprehension, whose paths continue that of its range.
    fn push_element(&mut self, c: &Comprehension) {
        let entry = self.entry_of(&c.range);
        let is_list =
            entry.map_or_else(|| matches!(self.notes.type_of(&c.range), Type::List(_)), |entry| entry.is_list);
        let keys = (if is_list { "@indices" } else { "@keys" }, entry.map(|entry| entry.key));
        let values = (if is_list { "@items" } else { "@values" }, entry.map(|entry| entry.value));
        let mut push = |name: &Arc<str>, (step, size): (&str, Option<Size>)| {
            let mut path = self.path(&c.range);
            path.push(step.into());
            self.locals.push(Local { name: Arc::clone(name), path, size, entry: None, cost: None });
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
        let path = self.path(value);
        let size = self.size_of(value);
        let entry = self.entry_of(value);
        self.locals.push(Local { name: Arc::clone(name), path, size, entry, cost: None });
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| *local.name == *name)
    }

    fn path(&self, expr: &Expr) -> ValuePath {
        if let Some(local) = expr.as_ident().and_then(|name| self.local(name)) {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    fn node<'x>(&mut self, expr: &'x Expr) -> Node<'x> {
        let mut path = self.path(expr);
        if path.first().is_some_and(|name| &**name == ACCUMULATOR) {
            path.clear();
        }
        Node { expr: Some(expr), path, of: self.notes.type_of(expr).clone(), size: self.size_of(expr) }
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
        let path = self.path(expr);
        if let Some(size) = self.declared_size(&path) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if self.notes.type_of(expr).is_scalar() {
            return Some(Size::fixed(1));
        }
        expr.as_ident().and_then(|name| self.local(name)).and_then(|local| local.size)
    }

    /// Returns the declared size of the value at a path.
    fn declared_size(&self, path: &[Arc<str>]) -> Option<Size> {
        let (variable, rest) = path.split_first()?;
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
