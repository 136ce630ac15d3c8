//! Evaluation: a walk over the checked tree. Every step is charged before its result is used.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::ast::{CONVERSIONS, Comprehension, Element, Entry, Expr, ExprKind, Field, Literal};
use crate::check::{Notes, Resolved};
use crate::declare::accepts;
use crate::error::Error;
use crate::estimate::actual;
use crate::library::functions::FUNCTIONS;
use crate::macros::OPTIONAL_INPUT;
use crate::messages;
use crate::meter::Meter;
use crate::value::{Key, List, Map, Value};

type Outcome<'a> = Result<Value<'a>, Error>;

/// The variables of an evaluation.
pub trait Activation<'a> {
    fn variable(&self, name: &str) -> Option<Value<'a>>;
}

/// Variables in a slice; few enough for a linear search.
impl<'a> Activation<'a> for &[(&str, Value<'a>)] {
    fn variable(&self, name: &str) -> Option<Value<'a>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }
}

impl<'a, const N: usize> Activation<'a> for [(&str, Value<'a>); N] {
    fn variable(&self, name: &str) -> Option<Value<'a>> {
        self.as_slice().variable(name)
    }
}

/// Evaluates a checked expression.
pub fn evaluate<'a>(expr: &Expr, notes: &Notes, activation: &dyn Activation<'a>, meter: &mut Meter) -> Outcome<'a> {
    Evaluator { notes, activation, meter, locals: Vec::new(), optional_costs: Vec::new() }.eval(expr)
}

struct Evaluator<'e, 'a> {
    notes: &'e Notes,
    activation: &'e dyn Activation<'a>,
    meter: &'e mut Meter,
    /// The variables of comprehensions. An accumulator may be an error, which logical operators can still absorb.
    locals: Vec<(Arc<str>, Outcome<'a>)>,
    optional_costs: Vec<u64>,
}

impl<'a> Evaluator<'_, 'a> {
    fn eval(&mut self, expr: &Expr) -> Outcome<'a> {
        match &expr.kind {
            ExprKind::Literal(literal) => Ok(constant(literal)),
            ExprKind::Ident(name) => self.ident(expr, name),
            ExprKind::Select { operand, field, test } => self.select(expr, operand, field, *test),
            ExprKind::Call { target, args, .. } => self.call(expr, target.as_deref(), args),
            ExprKind::List(items) => self.list(expr, items),
            ExprKind::Map(entries) => self.map(expr, entries),
            ExprKind::Struct { name, fields } => self.message(name, fields),
            ExprKind::Comprehension(comprehension) => self.comprehension(comprehension),
        }
    }

    fn ident(&mut self, expr: &Expr, name: &str) -> Outcome<'a> {
        if let Some(constant) = self.notes.constant(expr) {
            return Ok(constant.value());
        }
        if name == OPTIONAL_INPUT {
            self.meter.charge(self.optional_costs.last().copied().unwrap_or(1))?;
        } else {
            self.meter.charge(1)?;
        }
        if let Some((_, value)) = self.locals.iter().rev().find(|(local, _)| **local == *name) {
            return value.clone();
        }
        self.activation.variable(name).ok_or_else(|| Error::NoSuchAttribute(name.to_owned()))
    }

    fn select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) -> Outcome<'a> {
        if !test && let Some(constant) = self.notes.constant(expr) {
            return Ok(constant.value());
        }
        if !test && let Some(name) = self.notes.variable(expr) {
            self.meter.charge(1)?;
            return self.activation.variable(name).ok_or_else(|| Error::NoSuchAttribute(name.to_string()));
        }
        let operand = self.operand(operand)?;
        if test {
            let held = match &operand {
                Value::Optional(None) => return Ok(Value::Bool(false)),
                Value::Optional(Some(held)) => held.as_ref(),
                other => other,
            };
            return match held.field(field) {
                Ok(found) => Ok(Value::Bool(found.is_some())),
                Err(Error::NoSuchOverload(_)) => Ok(Value::Bool(false)),
                Err(error) => Err(error),
            };
        }
        if matches!(operand, Value::Optional(_)) {
            return self.optional_field(&operand, field);
        }
        self.meter.charge(1)?;
        match operand.field(field) {
            Ok(Some(value)) => Ok(value),
            Ok(None) | Err(Error::NoSuchOverload(_)) => Err(Error::NoSuchKey(field.to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Evaluates an operand. An attribute that does not begin at a name costs one step to begin.
    fn operand(&mut self, expr: &Expr) -> Outcome<'a> {
        let value = self.eval(expr)?;
        if !expr.is_attribute() {
            self.meter.charge(1)?;
        }
        Ok(value)
    }

    /// Evaluates a branch of a conditional, or an index: an attribute within another costs no step to begin.
    fn within(&mut self, expr: &Expr) -> Outcome<'a> {
        if expr.is_attribute() {
            self.meter.cost = self.meter.cost.saturating_sub(1);
        }
        self.eval(expr)
    }

    /// Returns a field as an optional: none if it is absent. An absent field costs nothing.
    fn optional_field(&mut self, operand: &Value<'a>, field: &str) -> Outcome<'a> {
        let held = match operand {
            Value::Optional(None) => return Ok(Value::none()),
            Value::Optional(Some(held)) => held.as_ref(),
            other => other,
        };
        match held.field(field) {
            Ok(None) => Ok(Value::none()),
            Ok(Some(found)) => {
                self.meter.charge(1)?;
                Ok(Value::some(found))
            }
            Err(Error::NoSuchOverload(_)) => Err(Error::NoSuchKey(field.to_owned())),
            Err(error) => Err(error),
        }
    }

    fn call(&mut self, expr: &Expr, target: Option<&Expr>, args: &[Expr]) -> Outcome<'a> {
        let Some(resolved) = self.notes.call(expr) else {
            return Err(Error::failed("the expression was not checked"));
        };
        match (resolved.function, target, args) {
            ("_&&_", None, [left, right]) => self.logic(left, right, false),
            ("_||_", None, [left, right]) => self.logic(left, right, true),
            ("_?_:_", None, [condition, yes, no]) => match self.eval(condition)? {
                Value::Bool(true) => self.within(yes),
                Value::Bool(false) => self.within(no),
                _ => Err(Error::NoSuchOverload(String::new())),
            },
            ("@not_strictly_false", None, [value]) => {
                let value = self.eval(value);
                self.meter.charge(1)?;
                match value {
                    Err(Error::CostLimit) => Err(Error::CostLimit),
                    value => Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false))))),
                }
            }
            ("or" | "orValue", Some(target), [other]) => match self.eval(target)? {
                Value::Optional(Some(held)) if resolved.function == "orValue" => Ok((*held).clone()),
                Value::Optional(None) => self.eval(other),
                found => Ok(found),
            },
            ("_[_]", None, [operand, index]) => self.index(operand, index, false),
            ("_[?_]", None, [operand, index]) => self.index(operand, index, true),
            ("_?._", None, [operand, field]) => {
                let operand = self.operand(operand)?;
                let ExprKind::Literal(Literal::String(field)) = &field.kind else {
                    return Err(Error::NoSuchOverload(String::new()));
                };
                self.optional_field(&operand, field)
            }
            _ => self.function(resolved, target.filter(|_| !resolved.namespaced), args),
        }
    }

    /// Evaluates `&&` and `||`: if one side decides, an error of the other does not matter.
    fn logic(&mut self, left: &Expr, right: &Expr, decisive: bool) -> Outcome<'a> {
        let first = self.eval(left);
        match first {
            Ok(Value::Bool(b)) if b == decisive => return Ok(Value::Bool(decisive)),
            Err(Error::CostLimit) => return first,
            _ => {}
        }
        let second = self.eval(right);
        match (first, second) {
            (_, Ok(Value::Bool(b))) if b == decisive => Ok(Value::Bool(decisive)),
            (_, Err(Error::CostLimit)) => Err(Error::CostLimit),
            (Ok(Value::Bool(_)), Ok(Value::Bool(_))) => Ok(Value::Bool(!decisive)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            _ => Err(Error::NoSuchOverload(String::new())),
        }
    }

    fn index(&mut self, operand: &Expr, index: &Expr, optional: bool) -> Outcome<'a> {
        let operand = self.operand(operand)?;
        let index = self.within(index)?;
        if !optional && !matches!(operand, Value::Optional(_)) {
            self.meter.charge(1)?;
        }
        let (held, optional) = match &operand {
            Value::Optional(None) => return Ok(Value::none()),
            Value::Optional(Some(held)) => (held.as_ref(), true),
            other => (other, optional),
        };
        let found = match held {
            Value::List(list) => match as_index(&index) {
                Some(at) => match usize::try_from(at).ok().and_then(|at| list.get(at)) {
                    Some(value) => Some(value?),
                    None if optional => None,
                    None => return Err(Error::IndexOutOfBounds(at)),
                },
                None => {
                    return Err(Error::failed(format!("unsupported index type '{}' in list", index.type_name())));
                }
            },
            Value::Map(map) => match map.get(&index)? {
                None if !optional => return Err(Error::NoSuchKey(shown(&index))),
                found => found,
            },
            other => match index.as_str().map(|name| other.field(name)) {
                Some(Ok(Some(value))) => Some(value),
                Some(Ok(None)) if optional => None,
                Some(Err(error)) if !matches!(error, Error::NoSuchOverload(_)) => return Err(error),
                _ => return Err(Error::NoSuchKey(shown(&index))),
            },
        };
        // An absent element costs nothing.
        if optional && found.is_some() {
            self.meter.charge(1)?;
        }
        match (optional, found) {
            (false, Some(value)) => Ok(value),
            (true, found) => Ok(found.map_or_else(Value::none, Value::some)),
            (false, None) => Err(Error::NoSuchKey(shown(&index))),
        }
    }

    fn function(&mut self, resolved: &Resolved, target: Option<&Expr>, args: &[Expr]) -> Outcome<'a> {
        // Constants cost nothing.
        let known = (resolved.function == "@in" && args.get(1).is_some_and(Expr::is_constant))
            || (CONVERSIONS.contains(&resolved.function) && args.iter().all(Expr::is_constant));
        let mut values = Vec::with_capacity(args.len() + 1);
        let mut failed = None;
        for arg in target.into_iter().chain(args) {
            match self.eval(arg) {
                Ok(value) => values.push(value),
                Err(Error::CostLimit) => return Err(Error::CostLimit),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        // A call also costs something if it fails.
        if let Some(error) = failed {
            self.meter.charge(1)?;
            return Err(error);
        }
        let overload = match resolved.overloads.as_slice() {
            [one] => Some(*one).filter(|one| fits(*one, &values)),
            many => many.iter().copied().find(|index| fits(*index, &values)),
        };
        let Some(index) = overload else {
            let types: Vec<Arc<str>> = values.iter().map(Value::type_name).collect();
            return Err(Error::NoSuchOverload(format!(": {}({})", resolved.function, types.join(", "))));
        };
        let overload = &FUNCTIONS.overloads[index];
        // The upper bound of a call's work is counted before it runs.
        self.meter.work(1 + values.iter().map(weight).sum::<u64>())?;
        let result = (overload.run)(self.meter, &values);
        if !known {
            self.meter.charge(actual::call(overload.function, overload.id, &values, result.as_ref().ok()))?;
        }
        result
    }

    fn list(&mut self, expr: &Expr, items: &[Element]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match (item.optional, self.eval(&item.value)?) {
                (true, Value::Optional(Some(held))) => values.push((*held).clone()),
                (true, Value::Optional(None)) => {}
                (true, _) => {
                    return Err(Error::failed("cannot initialize optional list element from non-optional value"));
                }
                (false, value) => values.push(value),
            }
        }
        if !expr.is_constant() {
            self.meter.charge(actual::LIST)?;
        }
        self.meter.work(items.len() as u64)?;
        Ok(Value::list(values))
    }

    fn map(&mut self, expr: &Expr, entries: &[Entry]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for entry in entries {
            let key = self.eval(&entry.key)?;
            let value = match (entry.optional, self.eval(&entry.value)?) {
                (true, Value::Optional(Some(held))) => (*held).clone(),
                (true, Value::Optional(None)) => continue,
                (true, _) => return Err(Error::failed("cannot initialize optional entry from non-optional value")),
                (false, value) => value,
            };
            let Some(known) = Key::new(&key) else {
                return Err(Error::failed(format!("unsupported key type: {}", key.type_name())));
            };
            made.insert(known, (key, value));
        }
        if !expr.is_constant() {
            self.meter.charge(actual::MAP)?;
        }
        self.meter.work(entries.len() as u64)?;
        Ok(Value::Map(Map::Owned(Rc::new(made))))
    }

    fn message(&mut self, name: &Arc<str>, fields: &[Field]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for field in fields {
            let value = match (field.optional, self.eval(&field.value)?) {
                (true, Value::Optional(Some(held))) => (*held).clone(),
                (true, Value::Optional(None)) => continue,
                (_, value) => value,
            };
            made.insert(Arc::clone(&field.name), value);
        }
        self.meter.charge(actual::STRUCT)?;
        messages::make(name, made)
    }

    fn comprehension(&mut self, c: &Comprehension) -> Outcome<'a> {
        if c.is_bind() && &*c.accumulator == OPTIONAL_INPUT {
            return self.with_optional(c);
        }
        if c.is_bind() {
            let value = self.eval(&c.init);
            return self.with_local(&c.accumulator, value, |this| this.eval(&c.result));
        }
        let range = Range::new(self.eval(&c.range)?, c.variable2.is_some())?;
        self.meter.work(range.len() as u64)?;
        match Collecting::of(c) {
            Some(collecting) => self.collect(c, &range, &collecting),
            None => self.fold(c, &range),
        }
    }

    /// Evaluates `optMap`. The input is evaluated once, but charged at each use, as upstream evaluates it.
    fn with_optional(&mut self, c: &Comprehension) -> Outcome<'a> {
        let before = self.meter.cost;
        let value = self.eval(&c.init);
        self.optional_costs.push(self.meter.cost - before);
        self.meter.cost = before;
        let result = self.with_local(&c.accumulator, value, |this| this.eval(&c.result));
        self.optional_costs.pop();
        result
    }

    fn with_local<T>(&mut self, name: &Arc<str>, value: Outcome<'a>, run: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.locals.len();
        self.locals.push((Arc::clone(name), value));
        let result = run(self);
        self.locals.truncate(before);
        result
    }

    /// Sets the variables of a comprehension to the next element.
    fn push_element(&mut self, c: &Comprehension, range: &Range<'a>, index: usize) -> Result<(), Error> {
        let (first, second) = range.element(index)?;
        self.locals.push((Arc::clone(&c.variable), Ok(first)));
        if let (Some(variable2), Some(second)) = (&c.variable2, second) {
            self.locals.push((Arc::clone(variable2), Ok(second)));
        }
        Ok(())
    }

    fn fold(&mut self, c: &Comprehension, range: &Range<'a>) -> Outcome<'a> {
        let init = self.eval(&c.init);
        let before = self.locals.len();
        self.locals.push((Arc::clone(&c.accumulator), init));
        for index in 0..range.len() {
            self.push_element(c, range, index)?;
            let go_on = match self.eval(&c.condition)? {
                Value::Bool(go_on) => go_on,
                _ => return Err(Error::NoSuchOverload(String::new())),
            };
            let step = if go_on { Some(self.eval(&c.step)) } else { None };
            self.locals.truncate(before + 1);
            match step {
                None => break,
                Some(Err(Error::CostLimit)) => return Err(Error::CostLimit),
                Some(step) => self.locals[before].1 = step,
            }
        }
        let result = self.eval(&c.result);
        self.locals.truncate(before);
        result
    }

    /// Evaluates a comprehension that only collects: in place, since `accumulator + [value]` would copy the list each
    /// time.
    fn collect(&mut self, c: &Comprehension, range: &Range<'a>, collecting: &Collecting<'_>) -> Outcome<'a> {
        let mut list = Vec::new();
        let mut map = BTreeMap::new();
        let before = self.locals.len();
        for index in 0..range.len() {
            self.push_element(c, range, index)?;
            let kept = match collecting.predicate {
                None => true,
                Some(predicate) => match self.eval(predicate)? {
                    Value::Bool(kept) => kept,
                    _ => return Err(Error::NoSuchOverload(String::new())),
                },
            };
            if kept {
                self.meter.charge(1)?;
                match collecting.what {
                    Addition::Items(value) => {
                        let constant = value.is_constant();
                        let value = self.eval(value)?;
                        self.meter.charge(1 + if constant { 0 } else { actual::LIST })?;
                        list.push(value);
                    }
                    Addition::Value(key, value) => {
                        let key = self.eval(key)?;
                        let value = self.eval(value)?;
                        self.meter.charge(1)?;
                        insert_new(&mut map, key, value)?;
                    }
                    Addition::Entries(entries) => {
                        let Value::Map(entries) = self.eval(entries)? else {
                            return Err(Error::NoSuchOverload(String::new()));
                        };
                        self.meter.charge(1)?;
                        self.meter.work(entries.len() as u64)?;
                        for (key, value) in entries.entries()? {
                            insert_new(&mut map, key, value)?;
                        }
                    }
                }
            }
            self.locals.truncate(before);
        }
        self.meter.charge(1)?;
        match collecting.what {
            Addition::Items(_) => Ok(Value::list(list)),
            _ => Ok(Value::Map(Map::Owned(Rc::new(map)))),
        }
    }
}

/// A comprehension that adds to a list or map, optionally filtered by a predicate.
struct Collecting<'e> {
    predicate: Option<&'e Expr>,
    what: Addition<'e>,
}

#[derive(Clone, Copy)]
enum Addition<'e> {
    Items(&'e Expr),
    Value(&'e Expr, &'e Expr),
    Entries(&'e Expr),
}

impl<'e> Collecting<'e> {
    fn of(c: &'e Comprehension) -> Option<Collecting<'e>> {
        let empty = match &c.init.kind {
            ExprKind::List(items) => items.is_empty(),
            ExprKind::Map(entries) => entries.is_empty(),
            _ => false,
        };
        let as_index = c.result.as_ident() == Some(&c.accumulator)
            && matches!(c.condition.kind, ExprKind::Literal(Literal::Bool(true)));
        if !empty || !as_index {
            return None;
        }
        let (predicate, step) = match &c.step.kind {
            ExprKind::Call { function, args, .. } if &**function == "_?_:_" && args.len() == 3 => {
                (Some(&args[0]), &args[1])
            }
            _ => (None, &c.step),
        };
        let ExprKind::Call { function, args, .. } = &step.kind else { return None };
        if args.first().and_then(Expr::as_ident) != Some(&c.accumulator) {
            return None;
        }
        let what = match (&**function, args.as_slice()) {
            ("_+_", [_, item]) => match &item.kind {
                ExprKind::List(items) if items.len() == 1 && !items[0].optional => Addition::Items(&items[0].value),
                _ => return None,
            },
            ("cel.@mapInsert", [_, key, value]) => Addition::Value(key, value),
            ("cel.@mapInsert", [_, entries]) => Addition::Entries(entries),
            _ => return None,
        };
        Some(Collecting { predicate, what })
    }
}

/// The range of a comprehension.
enum Range<'a> {
    List(List<'a>, bool),
    Keys(Vec<Value<'a>>),
    Entries(Vec<(Value<'a>, Value<'a>)>),
}

impl<'a> Range<'a> {
    fn new(value: Value<'a>, two: bool) -> Result<Range<'a>, Error> {
        match value {
            Value::List(list) => Ok(Range::List(list, two)),
            Value::Map(map) if two => Ok(Range::Entries(map.entries()?)),
            Value::Map(map) => Ok(Range::Keys(map.keys())),
            other => Err(Error::failed(format!("got '{}', expected iterable type", other.type_name()))),
        }
    }

    fn len(&self) -> usize {
        match self {
            Range::List(list, _) => list.len(),
            Range::Keys(keys) => keys.len(),
            Range::Entries(entries) => entries.len(),
        }
    }

    fn element(&self, index: usize) -> Result<(Value<'a>, Option<Value<'a>>), Error> {
        let out = || Error::IndexOutOfBounds(index as i64);
        match self {
            Range::List(list, two) => {
                let item = list.get(index).ok_or_else(out)??;
                Ok(if *two { (Value::Int(index as i64), Some(item)) } else { (item, None) })
            }
            Range::Keys(keys) => Ok((keys.get(index).cloned().ok_or_else(out)?, None)),
            Range::Entries(entries) => {
                let (key, value) = entries.get(index).cloned().ok_or_else(out)?;
                Ok((key, Some(value)))
            }
        }
    }
}

type Entries<'a> = BTreeMap<Key, (Value<'a>, Value<'a>)>;

/// Adds an entry whose key must be new.
fn insert_new<'a>(map: &mut Entries<'a>, key: Value<'a>, value: Value<'a>) -> Result<(), Error> {
    let Some(known) = Key::new(&key) else {
        return Err(Error::failed(format!("unsupported key type: {}", key.type_name())));
    };
    if map.contains_key(&known) {
        return Err(Error::failed(format!("insert failed: key {} already exists", shown(&key))));
    }
    map.insert(known, (key, value));
    Ok(())
}

fn constant<'a>(literal: &Literal) -> Value<'a> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(b) => Value::Bool(*b),
        Literal::Int(n) => Value::Int(*n),
        Literal::Uint(n) => Value::Uint(*n),
        Literal::Double(n) => Value::Double(*n),
        Literal::String(text) => Value::string(Arc::clone(text)),
        Literal::Bytes(bytes) => Value::Bytes(Arc::clone(bytes)),
    }
}

fn fits(index: usize, values: &[Value<'_>]) -> bool {
    let params = &FUNCTIONS.overloads[index].params;
    params.len() == values.len() && params.iter().zip(values).all(|(wanted, value)| accepts(wanted, value))
}

/// Returns the approximate size of an argument; functions over lists count the items that they visit themselves.
fn weight(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => text.len() as u64 / 16,
        Value::Bytes(bytes) => bytes.len() as u64 / 16,
        _ => 1,
    }
}

/// Returns a number as an index.
fn as_index(value: &Value<'_>) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::Uint(n) => i64::try_from(*n).ok(),
        Value::Double(n) if n.fract() == 0.0 && n.abs() < 9e18 => Some(*n as i64),
        _ => None,
    }
}

/// Formats a key as errors show it.
fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => text.to_string(),
        other => format!("{other:?}"),
    }
}
