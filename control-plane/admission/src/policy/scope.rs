//! The variables of admission's expressions: `object`, `oldObject`, `request`, `params`, `namespaceObject`,
//! `authorizer` and the policy's own `variables`, which are evaluated at their first use.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use corten_cel::durations::evaluating;
use corten_cel::value::Fields;
use corten_cel::{Activation, Error, Program, Value as Cel};
use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::json;

use crate::attributes::Attributes;
use crate::door::Resource;
use crate::expressions::Rights;

/// A policy's variables, in their order, each with its expression.
pub type Variables = [(String, Result<Program, String>)];

/// The request, as expressions see it. Owned, so that expressions can borrow from it.
pub struct Input {
    pub object: Value,
    pub old: Value,
    pub request: Value,
    pub namespace: Value,
    pub params: Value,
}

impl Input {
    /// Makes the input of a request, for a version of the resource.
    pub fn new(a: &Attributes<'_>, resource: &dyn Resource, object: Value, old: Value) -> Input {
        let kind = |(group, version, kind): (String, String, String)| json!({ "group": group, "version": version, "kind": kind });
        let of =
            |kind: &corten_api::Kind| json!({ "group": kind.group, "version": kind.version, "resource": kind.plural });
        let own = &a.target.resource;
        let request = json!({
            "kind": kind(a.kind_in(resource)),
            "resource": of(resource.kind()),
            "subResource": a.subresource(),
            "requestKind": kind(a.kind_in(&**own)),
            "requestResource": of(own.kind()),
            "requestSubResource": a.subresource(),
            "name": a.name(),
            "namespace": a.namespace(),
            "operation": a.operation.word(),
            "userInfo": a.target.context.user().to_value(),
            "dryRun": a.dry_run,
            "options": a.options(),
        });
        let namespace = match a.target.resource.kind().namespaced {
            true => a.target.core.objects.cached("", "namespaces", "", a.target.namespace).map(|object| object.value()),
            false => None,
        };
        Input { object, old, request, namespace: namespace.unwrap_or_default(), params: Value::Null }
    }
}

/// The variables of consecutive evaluations, with the cached values of the policy's own variables.
#[derive(Clone)]
pub struct Scope<'a>(Rc<Inner<'a>>);

struct Inner<'a> {
    input: &'a Input,
    authorizer: &'a Rights<'a>,
    variables: &'a Variables,
    found: RefCell<BTreeMap<String, Result<Cel<'a>, Error>>>,
    /// The cost of variables that is not charged to an expression yet.
    cost: Cell<u64>,
}

impl<'a> Scope<'a> {
    pub fn new(input: &'a Input, authorizer: &'a Rights<'a>, variables: &'a Variables) -> Scope<'a> {
        Scope(Rc::new(Inner { input, authorizer, variables, found: RefCell::default(), cost: Cell::new(0) }))
    }

    /// Evaluates an expression; it pays for the variables whose first use it is.
    pub fn eval(&self, program: &Program, budget: &mut u64) -> Result<Cel<'a>, Error> {
        let outcome = evaluating(|| program.eval(self));
        let cost = outcome.cost.saturating_add(self.0.cost.take());
        match budget.checked_sub(cost) {
            Some(rest) => {
                *budget = rest;
                outcome.value
            }
            None => {
                *budget = 0;
                Err(Error::failed(
                    "validation failed due to running out of cost budget, no further validation rules will be run",
                ))
            }
        }
    }
}

impl<'a> Activation<'a> for Scope<'a> {
    fn variable(&self, name: &str) -> Option<Cel<'a>> {
        let inner = &self.0;
        Some(match name {
            "object" => Cel::json(&inner.input.object),
            "oldObject" => Cel::json(&inner.input.old),
            "request" => Cel::json(&inner.input.request),
            "namespaceObject" => Cel::json(&inner.input.namespace),
            "params" => Cel::json(&inner.input.params),
            "authorizer" | "authorizer.requestResource" => {
                inner.authorizer.variables().into_iter().find(|(known, _)| *known == name)?.1
            }
            "variables" => Cel::Lazy(Rc::new(self.clone())),
            _ => return None,
        })
    }
}

impl<'a> Fields<'a> for Scope<'a> {
    fn field(&self, name: &str) -> Result<Option<Cel<'a>>, Error> {
        let inner = &self.0;
        if let Some(found) = inner.found.borrow().get(name) {
            return found.clone().map(Some);
        }
        let Some((_, compiled)) = inner.variables.iter().find(|(known, _)| known == name) else { return Ok(None) };
        let value = match compiled {
            Ok(program) => {
                let outcome = evaluating(|| program.eval(self));
                inner.cost.set(inner.cost.get().saturating_add(outcome.cost));
                outcome.value.map_err(|error| {
                    Error::failed(format!("composited variable {} fails to evaluate: {error}", quote(name)))
                })
            }
            Err(error) => Err(Error::failed(format!("composited variable {} fails to compile: {error}", quote(name)))),
        };
        inner.found.borrow_mut().insert(name.to_owned(), value.clone());
        value.map(Some)
    }
}
