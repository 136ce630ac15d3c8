//! The library of authorization checks. A check is put together call by call; `check` passes it to the [`Authorizer`]
//! that the caller of the expression provides.

use std::rc::Rc;

use corten_meta::names;

use super::{no_overload, text};
use crate::declare::Line;
use crate::error::Error;
use crate::meter::Meter;
use crate::value::Value;
use crate::value::authorization::Stage;
pub use crate::value::authorization::{Authorization, Authorizer, Check, Decision};

type Outcome<'a> = Result<Value<'a>, Error>;

pub const TABLE: &[Line] = &[
    ("authorizer_path", "Authorizer::path(string) -> PathCheck", |_, a| {
        let path = text(a, 1)?;
        if path.trim().is_empty() {
            return Err(Error::failed("path must not be empty"));
        }
        step(a, Stage::Path, |check| check.path = Some(path.to_string()))
    }),
    ("authorizer_group", "Authorizer::group(string) -> GroupCheck", |_, a| {
        let group = text(a, 1)?;
        step(a, Stage::Group, |check| check.group = group.to_string())
    }),
    ("authorizer_serviceaccount", "Authorizer::serviceAccount(string, string) -> Authorizer", service_account),
    ("groupcheck_resource", "GroupCheck::resource(string) -> ResourceCheck", |_, a| {
        let resource = text(a, 1)?;
        if resource.trim().is_empty() {
            return Err(Error::failed("resource must not be empty"));
        }
        step(a, Stage::Resource, |check| check.resource = resource.to_string())
    }),
    ("resourcecheck_subresource", "ResourceCheck::subresource(string) -> ResourceCheck", |_, a| {
        let part = text(a, 1)?;
        step(a, Stage::Resource, |check| check.subresource = part.to_string())
    }),
    ("resourcecheck_namespace", "ResourceCheck::namespace(string) -> ResourceCheck", |_, a| {
        let namespace = text(a, 1)?;
        step(a, Stage::Resource, |check| check.namespace = namespace.to_string())
    }),
    ("resourcecheck_name", "ResourceCheck::name(string) -> ResourceCheck", |_, a| {
        let name = text(a, 1)?;
        step(a, Stage::Resource, |check| check.name = name.to_string())
    }),
    ("authorizer_fieldselector", "ResourceCheck::fieldSelector(string) -> ResourceCheck", |_, a| {
        let selector = text(a, 1)?;
        step(a, Stage::Resource, |check| check.field_selector = selector.to_string())
    }),
    ("authorizer_labelselector", "ResourceCheck::labelSelector(string) -> ResourceCheck", |_, a| {
        let selector = text(a, 1)?;
        step(a, Stage::Resource, |check| check.label_selector = selector.to_string())
    }),
    ("pathcheck_check", "PathCheck::check(string) -> Decision", decide),
    ("resourcecheck_check", "ResourceCheck::check(string) -> Decision", decide),
    ("decision_errored", "Decision::errored() -> bool", |_, a| Ok(Value::Bool(decision(a)?.error.is_some()))),
    ("decision_error", "Decision::error() -> string", |_, a| {
        Ok(Value::string(decision(a)?.error.clone().unwrap_or_default()))
    }),
    ("decision_allowed", "Decision::allowed() -> bool", |_, a| Ok(Value::Bool(decision(a)?.allowed))),
    ("decision_reason", "Decision::reason() -> string", |_, a| Ok(Value::string(decision(a)?.reason.clone()))),
];

fn first<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v Authorization<'a>, Error> {
    match args.first() {
        Some(Value::Authorization(value)) => Ok(value),
        _ => Err(no_overload()),
    }
}

fn step<'a>(args: &[Value<'a>], stage: Stage, fill: impl FnOnce(&mut Check)) -> Outcome<'a> {
    let mut next = Authorization { stage, ..first(args)?.clone() };
    fill(&mut next.check);
    Ok(Value::Authorization(Rc::new(next)))
}

fn service_account<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let namespace = text(args, 1)?;
    let name = text(args, 2)?;
    if !names::dns1123_subdomain(name).is_empty() {
        return Err(Error::failed("Invalid service account name"));
    }
    if !names::dns1123_label(namespace).is_empty() {
        return Err(Error::failed("Invalid service account namespace"));
    }
    let account = Some((namespace.to_string(), name.to_string()));
    step(args, Stage::Authorizer, |check| check.service_account = account)
}

fn decide<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    let receiver = first(args)?;
    let check = Check { verb: text(args, 1)?.to_string(), ..receiver.check.clone() };
    let decision = receiver.authorizer.authorize(&check);
    step(args, Stage::Decided(decision), |_| ())
}

fn decision<'v>(args: &'v [Value<'_>]) -> Result<&'v Decision, Error> {
    match &first(args)?.stage {
        Stage::Decided(decision) => Ok(decision),
        _ => Err(no_overload()),
    }
}
