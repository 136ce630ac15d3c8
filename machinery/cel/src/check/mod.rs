//! The checker: determines the type of every node, resolves names and overloads, and reports errors in cel-go's words.

mod messages;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Comprehension, Element, Entry, Expr, ExprKind, Literal};
use crate::declare::Overload;
use crate::env::Env;
use crate::library::functions::FUNCTIONS;
use crate::library::{self, format_text};
use crate::messages::NULL_VALUE;
use crate::source::Issue;
use crate::types::Type;
use crate::unify::{Substitutions, most_general};
use crate::value::Value;

/// The results of the checker, by the ids of nodes.
#[derive(Debug, Default)]
pub struct Notes {
    types: Vec<Option<Type>>,
    calls: BTreeMap<u32, Resolved>,
    /// The nodes that are names of types or of constants.
    constants: BTreeMap<u32, Constant>,
    /// The nodes that are variables, also selections that are a qualified name.
    variables: BTreeMap<u32, Arc<str>>,
}

/// A resolved call.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub function: &'static str,
    /// The possible overloads, by their index in the table.
    pub overloads: Vec<usize>,
    /// Whether the apparent receiver is only the first part of the function's name.
    pub namespaced: bool,
}

/// The constant that a name stands for.
#[derive(Debug, Clone)]
pub enum Constant {
    Type(Arc<str>),
    Number(i64),
}

impl Constant {
    pub fn value<'a>(&self) -> Value<'a> {
        match self {
            Constant::Type(name) => Value::Type(Arc::clone(name)),
            Constant::Number(number) => Value::Int(*number),
        }
    }
}

impl Notes {
    pub fn type_of(&self, expr: &Expr) -> &Type {
        self.types.get(expr.id as usize).and_then(Option::as_ref).unwrap_or(&Type::Dyn)
    }

    pub fn call(&self, expr: &Expr) -> Option<&Resolved> {
        self.calls.get(&expr.id)
    }

    /// Returns the constant that a node names.
    pub fn constant(&self, expr: &Expr) -> Option<&Constant> {
        self.constants.get(&expr.id)
    }

    /// Returns the variable that a node is; its name may be qualified.
    pub fn variable(&self, expr: &Expr) -> Option<&Arc<str>> {
        self.variables.get(&expr.id)
    }

    /// Reports whether the expression uses a variable.
    pub fn uses(&self, name: &str) -> bool {
        self.variables.values().any(|used| &**used == name)
    }
}

/// Checks a tree in an environment.
pub fn check(env: &Env, expr: &Expr) -> (Notes, Vec<Issue>) {
    let mut checker = Checker {
        env,
        scopes: Vec::new(),
        types: Substitutions::default(),
        notes: Notes::default(),
        issues: Vec::new(),
    };
    checker.check(expr);
    for found in checker.notes.types.iter_mut().flatten() {
        *found = checker.types.resolve(found, true);
    }
    if checker.issues.is_empty() {
        checker.check_literals(expr);
        checker.check_aggregates(expr);
        checker.check_formats(expr);
    }
    (checker.notes, checker.issues)
}

/// The declaration of a name.
enum Named {
    Local,
    Variable,
    Constant(Constant),
}

struct Checker<'e> {
    env: &'e Env,
    scopes: Vec<(Arc<str>, Type)>,
    types: Substitutions,
    notes: Notes,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn report(&mut self, expr: &Expr, message: String) {
        self.issues.push(Issue { offset: Some(expr.offset), message });
    }

    fn undeclared(&mut self, expr: &Expr, name: &str) {
        self.report(expr, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn set(&mut self, expr: &Expr, found: Type) {
        let index = expr.id as usize;
        if self.notes.types.len() <= index {
            self.notes.types.resize(index + 1, None);
        }
        self.notes.types[index] = Some(self.types.resolve(&found, false));
    }

    fn get(&self, expr: &Expr) -> Type {
        self.types.resolve(self.notes.type_of(expr), false)
    }

    fn check(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Literal(literal) => self.set(expr, literal_type(literal)),
            ExprKind::Ident(name) => self.check_ident(expr, name),
            ExprKind::Select { operand, field, test } => self.check_select(expr, operand, field, *test),
            ExprKind::Call { function, target, args } => self.check_call(expr, function, target.as_deref(), args),
            ExprKind::List(items) => self.check_list(expr, items),
            ExprKind::Map(entries) => self.check_map(expr, entries),
            ExprKind::Struct { name, fields } => self.check_message(expr, name, fields),
            ExprKind::Comprehension(comprehension) => self.check_comprehension(expr, comprehension),
        }
    }

    /// Returns the declaration of a name: a local, a variable, a type or a constant.
    fn named(&self, name: &str) -> Option<(Type, Named)> {
        if let Some((_, found)) = self.scopes.iter().rev().find(|(local, _)| **local == *name) {
            return Some((found.clone(), Named::Local));
        }
        if let Some(found) = self.env.variable_type(name) {
            return Some((found.clone(), Named::Variable));
        }
        if name == NULL_VALUE {
            return Some((Type::Int, Named::Constant(Constant::Number(0))));
        }
        // `dyn` is a conversion but no type.
        let is_type = name != "dyn";
        let found = match self.env.message_type(name) {
            // The type of types has no parameter.
            None if name == "type" => Type::Opaque(name.into(), Vec::new()),
            None => Type::by_name(name).filter(|_| is_type)?,
            Some(found) => found,
        };
        Some((Type::Type(Arc::new(found)), Named::Constant(Constant::Type(name.into()))))
    }

    /// Resolves a name, and records its declaration.
    fn resolve_name(&mut self, expr: &Expr, name: &str) -> bool {
        let Some((found, what)) = self.named(name) else { return false };
        self.set(expr, found);
        match what {
            Named::Local => {}
            Named::Variable => drop(self.notes.variables.insert(expr.id, name.into())),
            Named::Constant(constant) => drop(self.notes.constants.insert(expr.id, constant)),
        }
        true
    }

    fn check_ident(&mut self, expr: &Expr, name: &str) {
        if !self.resolve_name(expr, name) {
            self.set(expr, Type::Error);
            self.undeclared(expr, name);
        }
    }

    fn check_select(&mut self, expr: &Expr, operand: &Expr, field: &str, test: bool) {
        if !test
            && let Some(name) = expr.qualified_name()
            && self.resolve_name(expr, &name)
        {
            return;
        }
        let found = self.field_type(expr, operand, field, false);
        self.set(expr, if test { Type::Bool } else { found });
    }

    fn field_type(&mut self, expr: &Expr, operand: &Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand_type = self.get(operand);
        let (target, is_optional) = operand_type.unwrap_optional();
        let found = match target {
            Type::Map(_, value) => (**value).clone(),
            Type::Struct(name) => self.message_field(expr, name, field),
            Type::Var(_) => {
                self.types.is_assignable(&Type::Dyn, target);
                Type::Dyn
            }
            Type::Dyn | Type::Any | Type::Error => Type::Dyn,
            other => {
                self.report(expr, format!("type '{other}' does not support field selection"));
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(found) } else { found }
    }

    fn check_call(&mut self, expr: &Expr, function: &str, target: Option<&Expr>, args: &[Expr]) {
        if function == "_?._" {
            return self.check_optional_select(expr, args);
        }
        args.iter().for_each(|arg| self.check(arg));
        let Some(target) = target else { return self.resolve_call(expr, function, None, args, false) };
        if let Some(prefix) = target.qualified_name() {
            let name = format!("{prefix}.{function}");
            if FUNCTIONS.named(&name).is_some() && self.env.has_function(&name) {
                return self.resolve_call(expr, &name, None, args, true);
            }
        }
        self.check(target);
        self.resolve_call(expr, function, Some(target), args, false);
    }

    fn check_optional_select(&mut self, expr: &Expr, args: &[Expr]) {
        let [operand, field] = args else { return };
        let ExprKind::Literal(Literal::String(name)) = &field.kind else { return };
        self.set(field, Type::String);
        let found = self.field_type(expr, operand, name, true);
        self.set(expr, found);
        if let Some(overloads) = FUNCTIONS.named("_?._") {
            let overloads = overloads.to_vec();
            self.notes.calls.insert(expr.id, Resolved { function: "_?._", overloads, namespaced: false });
        }
    }

    fn resolve_call(&mut self, expr: &Expr, name: &str, target: Option<&Expr>, args: &[Expr], namespaced: bool) {
        let Some(candidates) = FUNCTIONS.named(name) else {
            self.set(expr, Type::Error);
            return self.undeclared(expr, name);
        };
        if matches!(name, "_&&_" | "_||_") {
            return self.check_logic(expr, candidates, args);
        }
        let arguments: Vec<Type> = target.into_iter().chain(args).map(|arg| self.get(arg)).collect();
        let mut result: Option<Type> = None;
        let mut chosen = Vec::new();
        let mut function = "";
        for &index in candidates {
            let overload = &FUNCTIONS.overloads[index];
            if overload.member != target.is_some() || overload.params.len() != arguments.len() {
                continue;
            }
            let (params, returned) = self.instantiate(overload);
            let pairs: Vec<(&Type, &Type)> = arguments.iter().zip(&params).collect();
            if !self.types.are_assignable(&pairs) {
                continue;
            }
            function = overload.function;
            chosen.push(index);
            let returned = self.types.resolve(&returned, false);
            result = Some(match result {
                None => returned,
                Some(before) if before.is_dyn() => before,
                Some(before) if before == returned => before,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(found) => {
                self.set(expr, found);
                self.notes.calls.insert(expr.id, Resolved { function, overloads: chosen, namespaced });
            }
            None => {
                let signature = signature(
                    &arguments.iter().map(|t| self.types.resolve(t, true)).collect::<Vec<_>>(),
                    target.is_some(),
                );
                self.set(expr, Type::Error);
                self.report(expr, format!("found no matching overload for '{name}' applied to '{signature}'"));
            }
        }
    }

    /// Returns an overload's types with new type variables for its parameters.
    fn instantiate(&mut self, overload: &Overload) -> (Vec<Type>, Type) {
        if !overload.generic {
            return (overload.params.clone(), overload.result.clone());
        }
        let mut fresh: BTreeMap<char, Type> = BTreeMap::new();
        let params = overload.params.iter().map(|t| put_in(t, &mut fresh, &mut self.types)).collect();
        let result = put_in(&overload.result, &mut fresh, &mut self.types);
        (params, result)
    }

    fn check_logic(&mut self, expr: &Expr, candidates: &[usize], args: &[Expr]) {
        let mut good = true;
        for arg in args {
            let found = self.get(arg);
            if !self.types.is_assignable(&found, &Type::Bool) {
                self.report(arg, format!("expected type 'bool' but found '{found}'"));
                good = false;
            }
        }
        self.set(expr, if good { Type::Bool } else { Type::Error });
        if let Some(&index) = candidates.first() {
            let function = FUNCTIONS.overloads[index].function;
            self.notes.calls.insert(expr.id, Resolved { function, overloads: vec![index], namespaced: false });
        }
    }

    /// Returns the type of an optional element without the optional.
    fn unwrapped(&mut self, expr: &Expr, optional: bool) -> Type {
        let found = self.get(expr);
        if !optional {
            return found;
        }
        match found.unwrap_optional() {
            (inner, true) => inner.clone(),
            (found, false) if found.is_dyn() => found.clone(),
            (other, false) => {
                self.report(expr, format!("expected type 'optional_type({other})' but found '{other}'"));
                other.clone()
            }
        }
    }

    fn check_list(&mut self, expr: &Expr, items: &[Element]) {
        let mut joined = None;
        for item in items {
            self.check(&item.value);
            let found = self.unwrapped(&item.value, item.optional);
            joined = Some(self.join(joined, found));
        }
        let item = joined.unwrap_or_else(|| self.types.fresh());
        self.set(expr, Type::list(item));
    }

    fn check_map(&mut self, expr: &Expr, entries: &[Entry]) {
        let mut key = None;
        let mut value = None;
        for entry in entries {
            self.check(&entry.key);
            let found = self.get(&entry.key);
            key = Some(self.join(key, found));
            self.check(&entry.value);
            let found = self.unwrapped(&entry.value, entry.optional);
            value = Some(self.join(value, found));
        }
        let key = key.unwrap_or_else(|| self.types.fresh());
        let value = value.unwrap_or_else(|| self.types.fresh());
        self.set(expr, Type::map(key, value));
    }

    /// Returns the common type of two elements of a literal.
    fn join(&mut self, before: Option<Type>, found: Type) -> Type {
        let Some(before) = before else { return found };
        if self.types.is_assignable(&before, &found) { most_general(&before, &found).clone() } else { Type::Dyn }
    }

    fn check_comprehension(&mut self, expr: &Expr, c: &Comprehension) {
        self.check(&c.range);
        self.check(&c.init);
        let range = self.get(&c.range);
        let accumulated = self.get(&c.init);
        let two = c.variable2.is_some();
        let (first, second) = match &range {
            Type::List(item) if two => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.types.is_assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(&c.range, message);
                (Type::Error, Type::Error)
            }
        };
        let outer = self.scopes.len();
        self.scopes.push((Arc::clone(&c.accumulator), accumulated.clone()));
        let inner = self.scopes.len();
        self.scopes.push((Arc::clone(&c.variable), first));
        if let Some(variable2) = &c.variable2 {
            self.scopes.push((Arc::clone(variable2), second));
        }
        self.check(&c.condition);
        self.expect(&c.condition, &Type::Bool);
        self.check(&c.step);
        self.expect(&c.step, &accumulated);
        self.scopes.truncate(inner);
        self.check(&c.result);
        self.scopes.truncate(outer);
        let found = self.get(&c.result);
        self.set(expr, found);
    }

    fn expect(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.get(expr);
        if !self.types.is_assignable(wanted, &found) {
            let wanted = self.types.resolve(wanted, true);
            let found = self.types.resolve(&found, true);
            self.report(expr, format!("expected type '{wanted}' but found '{found}'"));
        }
    }

    /// Checks literal arguments that can never be valid: durations, timestamps and regular expressions.
    fn check_literals(&mut self, expr: &Expr) {
        if let ExprKind::Call { target, args, .. } = &expr.kind
            && let Some(resolved) = self.notes.call(expr)
        {
            let function = resolved.function;
            let last = if target.is_some() { args.first() } else { args.last() };
            if let Some(arg) = last
                && let ExprKind::Literal(Literal::String(text)) = &arg.kind
                && !library::is_good_literal(function, text)
            {
                self.report(arg, format!("invalid {function} argument"));
            }
        }
        expr.children().into_iter().for_each(|child| self.check_literals(child));
    }
}

impl Checker<'_> {
    /// Checks that the elements of a literal have one type. Runs only if there are no other errors.
    fn check_aggregates(&mut self, expr: &Expr) {
        match &expr.kind {
            // The arguments of a format may have different types.
            ExprKind::Call { function, .. } if &**function == "format" => return,
            ExprKind::List(items) => self.same_type(items.iter().map(|item| (&item.value, item.optional))),
            ExprKind::Map(entries) => {
                self.same_type(entries.iter().map(|entry| (&entry.key, false)));
                self.same_type(entries.iter().map(|entry| (&entry.value, entry.optional)));
            }
            _ => {}
        }
        expr.children().into_iter().for_each(|child| self.check_aggregates(child));
    }

    /// Checks the values of a literal format string.
    fn check_formats(&mut self, expr: &Expr) {
        expr.children().into_iter().for_each(|child| self.check_formats(child));
        if let ExprKind::Call { function, target, args } = &expr.kind
            && &**function == "format"
            && let Some((text, arguments)) = format_text::literals(target.as_deref(), args)
            && let Err((culprit, why)) = format_text::check(text, &arguments, &|arg| self.notes.type_of(arg).clone())
        {
            self.report(culprit.unwrap_or(expr), why);
        }
    }

    /// Reports the first element of another type than the first.
    fn same_type<'x>(&mut self, elements: impl Iterator<Item = (&'x Expr, bool)>) {
        let mut first: Option<Type> = None;
        for (element, optional) in elements {
            let found = self.notes.type_of(element).clone();
            let found = if optional { found.unwrap_optional().0.clone() } else { found };
            match &first {
                None => first = Some(found),
                Some(wanted) if *wanted == found => {}
                Some(wanted) => {
                    return self.report(element, format!("expected type '{wanted}' but found '{found}'"));
                }
            }
        }
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

fn put_in(found: &Type, fresh: &mut BTreeMap<char, Type>, types: &mut Substitutions) -> Type {
    match found {
        Type::Param(name) => fresh.entry(*name).or_insert_with(|| types.fresh()).clone(),
        Type::List(item) => Type::list(put_in(item, fresh, types)),
        Type::Map(key, value) => Type::map(put_in(key, fresh, types), put_in(value, fresh, types)),
        Type::Type(of) => Type::Type(Arc::new(put_in(of, fresh, types))),
        Type::Opaque(name, inner) => {
            Type::Opaque(Arc::clone(name), inner.iter().map(|t| put_in(t, fresh, types)).collect())
        }
        other => other.clone(),
    }
}

fn signature(types: &[Type], member: bool) -> String {
    let list = |types: &[Type]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (member, types) {
        (true, [target, args @ ..]) => format!("{target}.({})", list(args)),
        (_, types) => format!("({})", list(types)),
    }
}
