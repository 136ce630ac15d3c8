//! The type check of a policy against the kinds that it matches. At run time objects are untyped; the check finds
//! fields that no object of these kinds can have, and reports them in the policy's status.

use std::sync::Arc;

use corten_api::Kind;
use corten_api::openapi::{openapi_v3, undescribed};
use corten_cel::Type;
use corten_cel::schema::Decl;
use corten_meta::Value;
use serde_json::json;

use super::compile::{compile, compile_variables};
use crate::expressions;

/// The maximum number of kinds that a policy is checked against for each of its rules.
const MOST_KINDS: usize = 10;
/// The maximum depth of types, which may refer to themselves; below it everything is untyped.
const MOST_DEPTH: usize = 12;

/// Returns the `status.typeChecking.expressionWarnings` of a policy.
pub fn warnings(policy: &Value, resources: &[Arc<Kind>]) -> Vec<Value> {
    let spec = &policy["spec"];
    let kinds = kinds(spec, resources);
    let params = spec["paramKind"].is_object().then(|| {
        let string = |key: &str| spec["paramKind"][key].as_str().unwrap_or_default();
        let mut of = resources.iter();
        let of = of.find(|kind| kind.kind == string("kind") && kind.api_version() == string("apiVersion"));
        of.and_then(|kind| declaration(kind, "params"))
    });
    let mut warnings = Vec::new();
    for (index, validation) in spec["validations"].as_array().into_iter().flatten().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(expression) = validation[field].as_str().filter(|string| !string.is_empty()) else { continue };
            let found: Vec<String> = kinds
                .iter()
                .filter_map(|(name, decl)| {
                    problem(spec, expression, decl, params.as_ref()).map(|p| format!("{name}: {p}\n"))
                })
                .collect();
            if !found.is_empty() {
                warnings.push(
                    json!({ "fieldRef": format!("spec.validations[{index}].{field}"), "warning": found.join("\n") }),
                );
            }
        }
    }
    warnings
}

/// Returns the error of an expression when the object is of a kind.
fn problem(spec: &Value, expression: &str, decl: &Decl, params: Option<&Option<Decl>>) -> Option<String> {
    let mut env = expressions::env(false, true).declared("object", decl).declared("oldObject", decl);
    env = match params {
        Some(Some(params)) => env.declared("params", params),
        Some(None) => env.variable("params", Type::Dyn),
        None => env,
    };
    compile_variables(&mut env, spec["variables"].as_array().map(Vec::as_slice).unwrap_or_default());
    compile(&env, expression, &[]).err()
}

/// Returns the kinds that the rules name without wildcards, and their declarations.
fn kinds(spec: &Value, resources: &[Arc<Kind>]) -> Vec<(String, Decl)> {
    let mut found: Vec<Arc<Kind>> = Vec::new();
    for rule in spec.pointer("/matchConstraints/resourceRules").and_then(Value::as_array).into_iter().flatten() {
        let list =
            |key: &str| -> Vec<&str> { rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect() };
        let groups = list("apiGroups");
        let versions = list("apiVersions");
        if groups.iter().chain(&versions).any(|word| word.contains('*')) {
            continue;
        }
        let plurals: Vec<&str> = list("resources").into_iter().filter(|r| !r.contains(['*', '/'])).collect();
        let named = resources.iter().filter(|kind| {
            groups.contains(&kind.group.as_str())
                && versions.contains(&kind.version.as_str())
                && plurals.contains(&kind.plural.as_str())
        });
        found.extend(named.take(MOST_KINDS).cloned());
    }
    found.sort_unstable_by_key(|kind| (kind.group.clone(), kind.version.clone(), kind.kind.clone()));
    found.dedup_by_key(|kind| (kind.group.clone(), kind.version.clone(), kind.kind.clone()));
    let declared = |kind: Arc<Kind>| {
        let name = format!("{}, Kind={}", kind.api_version(), kind.kind);
        declaration(&kind, &kind.kind).map(|decl| (name, decl))
    };
    found.into_iter().filter_map(declared).collect()
}

/// Returns the declaration of a kind's objects.
fn declaration(kind: &Kind, name: &str) -> Option<Decl> {
    if let Some(schema) = kind.behaviour.structural_schema() {
        return Decl::of_schema(schema, true, name);
    }
    let document = openapi_v3(kind.emulated, &kind.api_version(), &undescribed)?;
    let schemas = document.pointer("/components/schemas")?;
    Decl::of_schema(&resolved(schemas.get(&kind.schema)?, schemas, 0), false, name)
}

/// Returns a schema with its references resolved.
fn resolved(schema: &Value, schemas: &Value, depth: usize) -> Value {
    let inner = |schema: &Value| resolved(schema, schemas, depth + 1);
    if depth > MOST_DEPTH {
        return json!({ "x-kubernetes-int-or-string": true });
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
        return schemas.get(name).map(inner).unwrap_or_default();
    }
    if let [only] = schema["allOf"].as_array().map(Vec::as_slice).unwrap_or_default() {
        return inner(only);
    }
    // The type of an int-or-string is known only from its value.
    if schema["oneOf"].is_array() || schema["format"] == "int-or-string" {
        return json!({ "x-kubernetes-int-or-string": true });
    }
    let mut resolved_schema = schema.as_object().cloned().unwrap_or_default();
    for (field, value) in &mut resolved_schema {
        match (field.as_str(), &mut *value) {
            ("properties", Value::Object(properties)) => properties.values_mut().for_each(|p| *p = inner(p)),
            ("items" | "additionalProperties", Value::Object(_)) => *value = inner(value),
            _ => {}
        }
    }
    Value::Object(resolved_schema)
}
