//! Policies and bindings, decoded and compiled once for each version of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use corten_cel::{Env, Type};
use corten_meta::{Selector, Value};

use super::compile::{Compiled, VARIABLES, compile, compile_variables};
use crate::door::Objects;
use crate::expressions;
use crate::rules::Rule;

pub const GROUP: &str = "admissionregistration.k8s.io";

/// A compiled policy.
pub struct Policy {
    pub name: String,
    /// Whether a write passes when the policy cannot be evaluated.
    pub fail_open: bool,
    /// `apiVersion` and `kind` of the parameters.
    pub param_kind: Option<(String, String)>,
    pub constraints: MatchResources,
    pub conditions: Vec<(String, Compiled)>,
    pub variables: Vec<(String, Compiled)>,
    pub validations: Vec<Validation>,
    /// Key and expression of the audit annotations.
    pub annotations: Vec<(String, Compiled)>,
    pub mutations: Vec<Mutation>,
    pub reinvoke: bool,
}

pub struct Validation {
    pub expression: String,
    pub compiled: Compiled,
    pub message: String,
    pub message_expression: Option<Compiled>,
    pub reason: String,
}

pub struct Mutation {
    pub form: Form,
    pub compiled: Compiled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    ApplyConfiguration,
    JsonPatch,
}

pub struct Binding {
    pub name: String,
    pub policy: String,
    pub params: Value,
    pub constraints: Option<MatchResources>,
    pub actions: Vec<String>,
}

/// The writes that a policy or binding matches.
pub struct MatchResources {
    pub rules: Vec<Rule>,
    pub excluded: Vec<Rule>,
    pub namespaces: Result<Selector, String>,
    pub objects: Result<Selector, String>,
    pub equivalent: bool,
}

impl MatchResources {
    fn from_value(value: &Value) -> MatchResources {
        let rules = |key: &str| value[key].as_array().into_iter().flatten().map(Rule::from_value).collect();
        let selector = |key: &str| match &value[key] {
            Value::Null => Ok(Selector::everything()),
            selector => Selector::from_label_selector(selector).map_err(|error| error.to_string()),
        };
        MatchResources {
            rules: rules("resourceRules"),
            excluded: rules("excludeResourceRules"),
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            equivalent: value["matchPolicy"] != "Exact",
        }
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

impl Policy {
    pub fn from_value(name: &str, policy: &Value) -> Policy {
        let spec = &policy["spec"];
        let has_params = spec["paramKind"].is_object();
        let param_kind = has_params.then(|| {
            (string(&spec["paramKind"], "apiVersion").to_owned(), string(&spec["paramKind"], "kind").to_owned())
        });
        let conditions_env = expressions::env(has_params, true);
        let mut env = conditions_env.clone();
        // A policy that validates and has no variables does not declare `variables` either.
        let knows_variables = !list(spec, "variables").is_empty() || spec["mutations"].is_array();
        let variables = match knows_variables {
            true => compile_variables(&mut env, list(spec, "variables")),
            false => Vec::new(),
        };
        // Messages may not use the authorizer.
        let mut message_env = expressions::env(has_params, false);
        if knows_variables {
            message_env = message_env.variable("variables", Type::named(VARIABLES));
        }
        for (name, compiled) in &variables {
            let of = compiled.as_ref().map_or(Type::Dyn, |program| program.output().remembered());
            message_env.add_field(VARIABLES, name, of);
        }
        let conditions = list(spec, "matchConditions").iter().map(|condition| {
            let compiled = compile(&conditions_env, string(condition, "expression").trim(), &[Type::Bool]);
            (string(condition, "name").to_owned(), compiled)
        });
        let validations = list(spec, "validations").iter().map(|validation| {
            let message = string(validation, "messageExpression");
            Validation {
                expression: string(validation, "expression").to_owned(),
                compiled: compile(&env, string(validation, "expression"), &[Type::Bool]),
                message: string(validation, "message").to_owned(),
                message_expression: (!message.is_empty()).then(|| compile(&message_env, message, &[Type::String])),
                reason: string(validation, "reason").to_owned(),
            }
        });
        let annotations = list(spec, "auditAnnotations").iter().map(|annotation| {
            let wanted = [Type::String, Type::Null];
            (string(annotation, "key").to_owned(), compile(&env, string(annotation, "valueExpression").trim(), &wanted))
        });
        Policy {
            name: name.to_owned(),
            fail_open: string(spec, "failurePolicy") == "Ignore",
            param_kind,
            constraints: MatchResources::from_value(&spec["matchConstraints"]),
            conditions: conditions.collect(),
            validations: validations.collect(),
            annotations: annotations.collect(),
            mutations: list(spec, "mutations").iter().map(|mutation| compile_mutation(&env, mutation)).collect(),
            reinvoke: string(spec, "reinvocationPolicy") == "IfNeeded",
            variables,
        }
    }
}

/// Returns the environment of mutations: they may also construct objects and patches.
pub fn mutation_env(env: &Env) -> Env {
    let fields = [("op", Type::String), ("path", Type::String), ("from", Type::String), ("value", Type::Dyn)];
    let fields = fields.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
    env.clone().message("JSONPatch", fields).making("JSONPatch").making("Object")
}

fn compile_mutation(env: &Env, mutation: &Value) -> Mutation {
    let env = mutation_env(env);
    let (form, expression, wanted) = match string(mutation, "patchType") {
        "JSONPatch" => (Form::JsonPatch, &mutation["jsonPatch"], Type::list(Type::named("JSONPatch"))),
        _ => (Form::ApplyConfiguration, &mutation["applyConfiguration"], Type::named("Object")),
    };
    Mutation { form, compiled: compile(&env, string(expression, "expression").trim(), &[wanted]) }
}

impl Binding {
    fn from_value(name: &str, binding: &Value) -> Binding {
        let spec = &binding["spec"];
        Binding {
            name: name.to_owned(),
            policy: string(spec, "policyName").to_owned(),
            params: spec["paramRef"].clone(),
            constraints: spec["matchResources"]
                .is_object()
                .then(|| MatchResources::from_value(&spec["matchResources"])),
            actions: list(spec, "validationActions").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        }
    }
}

/// A policy with all its bindings, in the order of their names.
pub struct Bound {
    pub policy: Arc<Policy>,
    pub bindings: Vec<Arc<Binding>>,
}

/// The policies of one kind.
pub struct Policies {
    policies: &'static str,
    bindings: &'static str,
    decoded: Mutex<Decoded>,
}

#[derive(Default)]
struct Decoded {
    revisions: (u64, u64),
    policies: HashMap<String, (u64, Arc<Policy>)>,
    bindings: HashMap<String, (u64, Arc<Binding>)>,
    bound: Arc<[Bound]>,
}

impl Policies {
    pub fn new(policies: &'static str, bindings: &'static str) -> Policies {
        Policies { policies, bindings, decoded: Mutex::default() }
    }

    /// Returns the current policies that have bindings, in the order of their names.
    pub fn current(&self, objects: &dyn Objects) -> Arc<[Bound]> {
        let revision = |plural: &str| objects.revision(GROUP, plural);
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if revision(self.policies) == Some(decoded.revisions.0) && revision(self.bindings) == Some(decoded.revisions.1)
        {
            return Arc::clone(&decoded.bound);
        }
        let policies = objects.snapshot(GROUP, self.policies);
        let bindings = objects.snapshot(GROUP, self.bindings);
        let (Some(policies), Some(bindings)) = (policies, bindings) else { return Arc::default() };
        let known_policies = std::mem::take(&mut decoded.policies);
        let known_bindings = std::mem::take(&mut decoded.bindings);
        let mut by_policy: HashMap<String, Vec<Arc<Binding>>> = HashMap::new();
        for (name, item) in &bindings.objects {
            let binding = match known_bindings.get(name) {
                Some((revision, binding)) if *revision == item.revision => Arc::clone(binding),
                _ => Arc::new(Binding::from_value(name, &item.value())),
            };
            by_policy.entry(binding.policy.clone()).or_default().push(Arc::clone(&binding));
            decoded.bindings.insert(name.clone(), (item.revision, binding));
        }
        let mut bound = Vec::new();
        for (name, item) in &policies.objects {
            let policy = match known_policies.get(name) {
                Some((revision, policy)) if *revision == item.revision => Arc::clone(policy),
                _ => Arc::new(Policy::from_value(name, &item.value())),
            };
            decoded.policies.insert(name.clone(), (item.revision, Arc::clone(&policy)));
            if let Some(bindings) = by_policy.remove(name) {
                bound.push(Bound { policy, bindings });
            }
        }
        decoded.revisions = (policies.revision, bindings.revision);
        decoded.bound = bound.into();
        Arc::clone(&decoded.bound)
    }
}
