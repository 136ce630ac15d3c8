//! Assignability of types, and the inference of type variables.
//!
//! Inferred types have an undo log: a failed attempt leaves nothing behind.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::types::Type;

/// The steps that the check of one expression may take; types that share parts can be far bigger than their source.
const FUEL: u32 = 5_000_000;
/// The size beyond which a type becomes dyn.
const MAX_NODES: u32 = 1000;

/// The inferred type variables.
pub struct Substitutions {
    known: HashMap<u32, Type>,
    undo: Vec<(u32, Option<Type>)>,
    next: u32,
    fuel: Cell<u32>,
}

impl Default for Substitutions {
    fn default() -> Substitutions {
        Substitutions { known: HashMap::new(), undo: Vec::new(), next: 0, fuel: Cell::new(FUEL) }
    }
}

impl Substitutions {
    /// Makes a new type variable.
    pub fn fresh(&mut self) -> Type {
        self.next += 1;
        Type::Var(self.next - 1)
    }

    /// Reports whether a value of one type is assignable to the other. Inferred types stay if so.
    pub fn is_assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.are_assignable(&[(from, to)])
    }

    /// Reports whether several pairs are assignable together.
    pub fn are_assignable(&mut self, pairs: &[(&Type, &Type)]) -> bool {
        let before = self.undo.len();
        let good = pairs.iter().all(|(from, to)| self.assign(from, to));
        if good {
            self.undo.clear();
        } else {
            for (variable, old) in self.undo.drain(before..).rev() {
                match old {
                    Some(old) => self.known.insert(variable, old),
                    None => self.known.remove(&variable),
                };
            }
        }
        good
    }

    fn learn(&mut self, variable: u32, found: Type) {
        let old = self.known.insert(variable, found);
        self.undo.push((variable, old));
    }

    /// Counts a step; false if there were too many.
    fn burn(&self) -> bool {
        self.fuel.set(self.fuel.get().saturating_sub(1));
        self.fuel.get() > 0
    }

    fn assign(&mut self, from: &Type, to: &Type) -> bool {
        if !self.burn() {
            return false;
        }
        if let Type::Var(variable) = to {
            let (valid, known) = self.substitute_for(from, *variable);
            if valid || known {
                return valid;
            }
        }
        if let Type::Var(variable) = from {
            return self.substitute_for(to, *variable).0;
        }
        if from.is_dyn_or_error() || to.is_dyn_or_error() {
            return true;
        }
        match (from, to) {
            (Type::Null, other) | (other, Type::Null) => is_nullable(other),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => self.assign(a, b),
            (Type::Map(a, b), Type::Map(c, d)) => self.assign(a, c) && self.assign(b, d),
            (Type::Opaque(a, inner_a), Type::Opaque(b, inner_b)) => {
                a == b && inner_a.len() == inner_b.len() && inner_a.iter().zip(inner_b).all(|(a, b)| self.assign(a, b))
            }
            (a, b) => a == b,
        }
    }

    /// Reports whether a type may be the variable's, and whether the variable has a type already.
    fn substitute_for(&mut self, found: &Type, variable: u32) -> (bool, bool) {
        if *found == Type::Var(variable) {
            return (true, true);
        }
        if let Some(known) = self.known.get(&variable).cloned() {
            if *found == known {
                return (true, true);
            }
            if self.assign(found, &known) {
                let general = most_general(found, &known).clone();
                if self.is_free_of(&general, variable) {
                    self.learn(variable, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.is_free_of(found, variable) {
            self.learn(variable, found.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Reports whether a type does not contain the variable.
    fn is_free_of(&self, found: &Type, variable: u32) -> bool {
        if !self.burn() {
            return false;
        }
        match found {
            Type::Var(other) if *other == variable => false,
            Type::Var(other) => self.known.get(other).is_none_or(|known| self.is_free_of(known, variable)),
            Type::List(item) | Type::Type(item) => self.is_free_of(item, variable),
            Type::Map(key, value) => self.is_free_of(key, variable) && self.is_free_of(value, variable),
            Type::Opaque(_, inner) => inner.iter().all(|inner| self.is_free_of(inner, variable)),
            _ => true,
        }
    }

    /// Returns a type with its variables replaced by their inferred types; an unknown variable stays, or becomes dyn.
    pub fn resolve(&self, found: &Type, unknown_is_dyn: bool) -> Type {
        let mut nodes = MAX_NODES;
        self.resolve_within(found, unknown_is_dyn, &mut nodes)
    }

    fn resolve_within(&self, found: &Type, unknown_is_dyn: bool, nodes: &mut u32) -> Type {
        *nodes = nodes.saturating_sub(1);
        if *nodes == 0 {
            return Type::Dyn;
        }
        let mut inner = |t: &Type| Arc::new(self.resolve_within(t, unknown_is_dyn, nodes));
        match found {
            Type::Var(variable) => match self.known.get(variable) {
                Some(known) => self.resolve_within(known, unknown_is_dyn, nodes),
                None if unknown_is_dyn => Type::Dyn,
                None => found.clone(),
            },
            Type::List(item) => Type::List(inner(item)),
            Type::Map(key, value) => Type::Map(inner(key), inner(value)),
            Type::Type(of) => Type::Type(inner(of)),
            Type::Opaque(name, parts) => {
                let parts = parts.iter().map(|part| self.resolve_within(part, unknown_is_dyn, nodes)).collect();
                Type::Opaque(name.clone(), parts)
            }
            other => other.clone(),
        }
    }
}

fn is_nullable(found: &Type) -> bool {
    matches!(
        found,
        Type::Null | Type::Opaque(..) | Type::Struct(_) | Type::Duration | Type::Timestamp | Type::Wrapper(_)
    )
}

/// Returns the more general of two types that agree.
pub fn most_general<'a>(a: &'a Type, b: &'a Type) -> &'a Type {
    if is_equal_or_less_specific(a, b) { a } else { b }
}

fn is_equal_or_less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Any | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Any | Type::Var(_)) => false,
        (Type::Opaque(x, inner_x), Type::Opaque(y, inner_y)) => {
            x == y
                && inner_x.len() == inner_y.len()
                && inner_x.iter().zip(inner_y).all(|(x, y)| is_equal_or_less_specific(x, y))
        }
        (Type::List(x), Type::List(y)) => is_equal_or_less_specific(x, y),
        (Type::Map(a, b), Type::Map(c, d)) => is_equal_or_less_specific(a, c) && is_equal_or_less_specific(b, d),
        (Type::Type(_), Type::Type(_)) => true,
        (a, b) => a == b,
    }
}
