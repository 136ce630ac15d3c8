//! Authorization checks as values of expressions.

use std::rc::Rc;

use super::Value;

/// Decides authorization checks.
pub trait Authorizer {
    fn authorize(&self, check: &Check) -> Decision;
}

/// An authorization check of the request's user or of a service account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Check {
    /// The namespace and name of the service account; `None` means the user.
    pub service_account: Option<(String, String)>,
    pub verb: String,
    /// The path of a non-resource check; the fields below are then empty.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
}

/// The decision about a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

/// A value of the authorization library: an authorizer, a check under construction, or its decision.
#[derive(Clone)]
pub struct Authorization<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) check: Check,
    pub(crate) stage: Stage,
}

/// The stage of an authorization value, which determines its type.
#[derive(Clone)]
pub(crate) enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
    Decided(Decision),
}

impl<'a> Authorization<'a> {
    /// Returns the variable `authorizer`.
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Value<'a> {
        Value::Authorization(Rc::new(Authorization { authorizer, check: Check::default(), stage: Stage::Authorizer }))
    }

    /// Returns the variable `authorizer.requestResource`: a check about the request's resource.
    pub fn resource(authorizer: &'a dyn Authorizer, check: Check) -> Value<'a> {
        Value::Authorization(Rc::new(Authorization { authorizer, check, stage: Stage::Resource }))
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
            Stage::Decided(_) => "kubernetes.authorization.Decision",
        }
    }
}
