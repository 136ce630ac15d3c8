//! The attributes of a write that passes through admission.

use std::borrow::Cow;

use corten_access::Verb;
use corten_meta::{Status, Value};
use corten_store::Op;

use super::operation::Operation;
use super::reinvocation::Reinvocation;
use super::touched::Touched;
use crate::door::{Resource, Target};

/// A write that passes through admission.
pub struct Attributes<'a> {
    pub target: Target<'a>,
    pub operation: Operation,
    /// The new object; null for a deletion.
    pub object: Touched,
    /// The stored object; none for a creation.
    pub old: Option<Cow<'a, Value>>,
    /// Operations that must be committed together with the object.
    pub companions: Vec<Op>,
    pub dry_run: bool,
    /// The object with the empty lists and maps that its author wrote, if there are any.
    pub sent: Option<Value>,
    /// The object's name in the request; empty if the server generates the name of a creation.
    name: String,
    /// The DeleteOptions of a deletion; other operations have their options in the query.
    delete_options: Option<Value>,
    pub reinvocation: Reinvocation,
}

impl<'a> Attributes<'a> {
    pub fn new(target: Target<'a>, operation: Operation, object: Value, old: Option<Cow<'a, Value>>) -> Attributes<'a> {
        // The plugins do not see the names of objects that are deleted as a collection.
        let name = match (target.context.verb(), target.name) {
            (Verb::DeleteCollection, _) => "",
            (_, "") => corten_meta::name(&object),
            (_, name) => name,
        };
        // The handler of the request has refused an invalid value before.
        let dry_run = target.context.is_dry_run();
        Attributes {
            target,
            operation,
            name: name.to_owned(),
            object: Touched::new(object),
            old,
            companions: Vec::new(),
            dry_run,
            sent: None,
            delete_options: None,
            reinvocation: Reinvocation::default(),
        }
    }

    #[must_use]
    pub fn with_options(self, options: Value, dry_run: bool) -> Attributes<'a> {
        Attributes { delete_options: Some(options), dry_run, ..self }
    }

    /// Returns the options of the operation, as an AdmissionReview shows them.
    pub fn options(&self) -> Value {
        let kind = match self.operation {
            Operation::Connect => return Value::Null,
            Operation::Delete => return self.delete_options.clone().unwrap_or(Value::Null),
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
        };
        let mut options = serde_json::json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
        for field in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.target.context.query(field) {
                options[field] = value.into();
            }
        }
        if self.dry_run {
            options["dryRun"] = serde_json::json!(["All"]);
        }
        options
    }

    /// Returns the object as its author wrote it, for plugins that distinguish an absent field from an empty map.
    pub fn as_sent(&self) -> &Value {
        self.sent.as_ref().unwrap_or(&self.object)
    }

    /// Returns the object's name in the request; empty if the server generates the name of a creation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace of the request; the namespace of a Namespace is its own name.
    pub fn namespace(&self) -> String {
        let kind = self.target.resource.kind();
        let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
        if is_namespace { self.name().to_owned() } else { self.target.namespace.to_owned() }
    }

    /// Reports whether the objects here are of the resource's own kind, and not the body of a subresource.
    pub fn is_about_the_object(&self) -> bool {
        use corten_api::Role;
        let role = self.target.resource.kind().subresource(self.subresource()).map(|sub| sub.role);
        matches!(
            role,
            None | Some(Role::Status | Role::Finalize | Role::EphemeralContainers | Role::Resize | Role::Approval)
        )
    }

    /// Returns group, version and kind of the objects here, as if the request were for this version of the resource.
    pub fn kind_in(&self, resource: &dyn Resource) -> (String, String, String) {
        let kind = resource.kind();
        match kind.subresource(self.subresource()) {
            Some(sub) if !self.is_about_the_object() => {
                let own = sub.version.is_empty();
                let group = if own { kind.group.clone() } else { sub.group.to_owned() };
                let version = if own { kind.version.clone() } else { sub.version.to_owned() };
                (group, version, sub.kind.clone())
            }
            _ => (kind.group.clone(), kind.version.clone(), kind.kind.clone()),
        }
    }

    /// Reports whether the write is for `group`/`plural` itself or, if `subresource` is not empty, for that
    /// subresource.
    pub fn is(&self, group: &str, plural: &str, subresource: &str) -> bool {
        let kind = self.target.resource.kind();
        kind.group == group && kind.plural == plural && self.subresource() == subresource
    }

    /// Returns the subresource, if the request is for one of this very resource (an eviction also writes budgets).
    pub fn subresource(&self) -> &str {
        self.target.context.subresource()
    }

    pub fn creates(&self, group: &str, plural: &str) -> bool {
        self.operation == Operation::Create && self.is(group, plural, "")
    }

    pub fn into_parts(self) -> (Value, Vec<Op>) {
        (self.object.into_inner(), self.companions)
    }

    /// Returns admission's 403 error.
    pub fn forbidden(&self, why: impl AsRef<str>) -> Status {
        let prefix = self.object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
        let names = [corten_meta::name(&self.object), self.target.name, prefix];
        // An object without a name has its generateName in the message.
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
        Status::forbidden(&self.target.resource.group_resource(), name, why.as_ref())
    }
}
