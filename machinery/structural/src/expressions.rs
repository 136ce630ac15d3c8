//! Validates the schemas of a CRD that is being written: whether they are structural, and whether their rules compile
//! and can cost too much.

use std::sync::Arc;

use corten_cel::schema::{Decl, max_cardinality};
use corten_meta::{FieldError, Path, Value};

use crate::rules::{Environments, SELF_TYPE, compile_rule};
use crate::{selectable, structural};

/// The maximum estimated cost of a rule.
const RULE_LIMIT: u64 = 10_000_000;
/// The maximum estimated cost of all rules of a schema.
const SCHEMA_LIMIT: u64 = 100_000_000;

/// The errors that upstream tolerates in a CRD whose old schemas have an error of the same sort.
const TOLERATED: [ToleratedError; 5] = [
    ToleratedError { field_suffix: ".type", message: "Unsupported value" },
    ToleratedError { field_suffix: "", message: "must be atomic as item of a list with x-kubernetes-list-type=set" },
    ToleratedError { field_suffix: ".nullable", message: "cannot be nullable when x-kubernetes-list-type is " },
    ToleratedError { field_suffix: "", message: "this property is in x-kubernetes-list-map-keys" },
    ToleratedError { field_suffix: ".default", message: "must not have unknown fields" },
];

/// A sort of errors, by the end of their field and a part of their message.
struct ToleratedError {
    field_suffix: &'static str,
    message: &'static str,
}

impl ToleratedError {
    fn matches(&self, error: &FieldError) -> bool {
        error.field.ends_with(self.field_suffix)
            && format!("{}: {}", error.kind.text(), error.detail).contains(self.message)
    }
}

/// Returns the errors of all schemas in a CRD; `as_sent` may have more empty fields. The cost of unchanged schemas is
/// not checked.
pub fn validate(crd: &Value, as_sent: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let versions = |crd: &Value| crd.pointer("/spec/versions").and_then(Value::as_array).cloned();
    let new = versions(crd).unwrap_or_default();
    let as_sent = versions(as_sent).unwrap_or_default();
    let before = old.and_then(versions).unwrap_or_default();
    let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
    // Upstream validates a schema that all versions share once.
    let shared = new.iter().all(|version| schema(version) == schema(&new[0]));
    let same_fields = new.iter().all(|version| version["selectableFields"] == new[0]["selectableFields"]);
    let known: Vec<String> = before.iter().flat_map(|old| known_errors(&schema(old))).collect();
    let mut errors = Vec::new();
    for (index, version) in new.iter().enumerate() {
        let spec = Path::root("spec");
        let own = spec.child("versions").index(index);
        let schema = schema(version);
        // The kind's validation reports the missing schema.
        if schema.is_null() {
            continue;
        }
        let has_status =
            |version: &Value| version.pointer("/subresources/status").is_some_and(|status| !status.is_null());
        if !shared || index == 0 {
            let path = if shared { spec.child("validation") } else { own.child("schema") }.child("openAPIV3Schema");
            let has_status = if shared { new.iter().any(has_status) } else { has_status(version) };
            let is_unchanged = before
                .iter()
                .any(|old| old["name"] == version["name"] && old.pointer("/schema/openAPIV3Schema") == Some(&schema));
            let as_sent =
                as_sent.get(index).and_then(|given| given.pointer("/schema/openAPIV3Schema")).unwrap_or(&schema);
            let version = VersionSchema { schema: &schema, as_sent, has_status, is_unchanged, known_errors: &known };
            validate_schema(&version, &path, &mut errors);
        }
        if !same_fields || index == 0 {
            let path = if same_fields { &spec } else { &own }.child("selectableFields");
            if same_fields && !shared && version["selectableFields"].as_array().is_some_and(|fields| !fields.is_empty())
            {
                let detail = "may only be set when validations.schema is included";
                errors.push(FieldError::invalid(&path, "", detail));
            } else {
                errors.extend(selectable::validate(&version["selectableFields"], &schema, &path));
            }
        }
    }
    errors
}

/// Returns the messages of the tolerated errors that a schema has.
fn known_errors(schema: &Value) -> Vec<String> {
    let found = structural::validate(schema, schema, &Path::root("spec"), false);
    let errors = [found.structure, found.keywords].concat();
    let has = |tolerated: &ToleratedError| errors.iter().any(|error| tolerated.matches(error));
    TOLERATED.into_iter().filter(has).map(|tolerated| tolerated.message.to_owned()).collect()
}

/// The schema of a version, to be validated.
struct VersionSchema<'a> {
    schema: &'a Value,
    /// The schema with the empty fields that its author wrote.
    as_sent: &'a Value,
    has_status: bool,
    is_unchanged: bool,
    /// The messages of the tolerated errors that the old schemas have.
    known_errors: &'a [String],
}

fn validate_schema(version: &VersionSchema<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    let schema = version.schema;
    let structural::SchemaErrors { mut structure, mut keywords, is_structural } =
        structural::validate(schema, version.as_sent, path, version.has_status);
    let is_known = |tolerated: &ToleratedError| version.known_errors.iter().any(|known| known == tolerated.message);
    for found in [&mut structure, &mut keywords] {
        found.retain(|error| !TOLERATED.iter().any(|tolerated| tolerated.matches(error) && is_known(tolerated)));
    }
    let invalid_fields = keywords.iter().map(|error| error.field.clone()).collect();
    errors.append(&mut structure);
    errors.append(&mut keywords);
    if !is_structural {
        return;
    }
    let mut check = Check {
        errors: Vec::new(),
        total: 0,
        expensive: Vec::new(),
        count_cost: !version.is_unchanged,
        invalid_fields,
    };
    let root = Position {
        is_root: true,
        cardinality: Some(1),
        uncorrelatable: None,
        is_within_rules: false,
        is_untyped: false,
    };
    check.schema(schema, path, &root);
    check.finish(path);
    errors.append(&mut check.errors);
}

/// The position in a schema.
struct Position {
    is_root: bool,
    /// The maximum number of values of this schema; none if it is unbounded.
    cardinality: Option<u64>,
    /// The list whose items have no old value.
    uncorrelatable: Option<Path>,
    /// Whether an enclosing schema has rules.
    is_within_rules: bool,
    /// Whether an enclosing schema, within rules, has no type that expressions know: then nothing in it has.
    is_untyped: bool,
}

struct Check {
    errors: Vec<FieldError>,
    total: u64,
    expensive: Vec<(u64, Path)>,
    count_cost: bool,
    /// The paths of other errors in the schema. Rules of the schemas around them are not compiled.
    invalid_fields: Vec<String>,
}

impl Check {
    fn schema(&mut self, schema: &Value, path: &Path, position: &Position) {
        if !schema.is_object() {
            return;
        }
        let times = |bound: &Value| {
            let bound = bound.as_i64().map(|bound| u64::try_from(bound).unwrap_or(0));
            position.cardinality.zip(bound).map(|(here, bound)| here.saturating_mul(bound))
        };
        let embedded = |schema: &Value| schema["x-kubernetes-embedded-resource"] == true;
        let has_rules = schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty());
        let is_within_rules = position.is_within_rules || has_rules;
        let is_untyped =
            position.is_untyped || is_within_rules && Decl::of_schema(schema, position.is_root, SELF_TYPE).is_none();
        let map_type = &schema["x-kubernetes-map-type"];
        let is_odd = !map_type.is_null() && !["granular", "atomic"].contains(&map_type.as_str().unwrap_or_default());
        let uncorrelatable = position.uncorrelatable.clone().or_else(|| is_odd.then(|| path.clone()));
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let below = Position {
                is_root: embedded(property),
                cardinality: position.cardinality,
                uncorrelatable: uncorrelatable.clone(),
                is_within_rules,
                is_untyped,
            };
            self.schema(property, &path.child("properties").key(name), &below);
        }
        let values = &schema["additionalProperties"];
        let below = Position {
            is_root: embedded(values),
            cardinality: times(&schema["maxProperties"]),
            uncorrelatable: position.uncorrelatable.clone(),
            is_within_rules,
            is_untyped,
        };
        self.schema(values, &path.child("additionalProperties"), &below);
        let items = &schema["items"];
        let has_keys = schema["x-kubernetes-list-type"] == "map";
        let below = Position {
            is_root: embedded(items),
            cardinality: times(&schema["maxItems"]),
            uncorrelatable: position.uncorrelatable.clone().or_else(|| (!has_keys).then(|| path.clone())),
            is_within_rules,
            is_untyped,
        };
        self.schema(items, &path.child("items"), &below);
        self.rules(schema, path, position);
    }

    fn rules(&mut self, schema: &Value, path: &Path, position: &Position) {
        let validations = schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let here = path.to_string();
        let is_in_schema = |field: &String| {
            field.strip_prefix(&here).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if validations.is_empty() || self.invalid_fields.iter().any(is_in_schema) {
            return;
        }
        let decl = Decl::of_schema(schema, position.is_root, SELF_TYPE).filter(|_| !position.is_untyped);
        let Some(decl) = decl.map(Arc::new) else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: \
                          unable to convert structural schema to CEL declarations";
            return self.errors.push(FieldError::internal(&path.child("x-kubernetes-validations"), detail));
        };
        let environments = Environments::new(&decl);
        for (index, rule) in validations.iter().enumerate() {
            let here = path.child("x-kubernetes-validations").index(index);
            self.rule(rule, schema, &here, position, &decl, &environments);
        }
    }

    fn rule(
        &mut self,
        rule: &Value,
        schema: &Value,
        path: &Path,
        position: &Position,
        decl: &Decl,
        environments: &Environments,
    ) {
        let compiled = compile_rule(rule, schema, environments);
        let env = environments.of(rule["optionalOldSelf"] == true);
        let cardinality = position.cardinality.unwrap_or_else(|| max_cardinality(decl.min_size));
        match &compiled.compiled {
            Ok(program) => {
                let cost = env.estimate(program).max.saturating_mul(cardinality);
                self.cost(&path.child("rule"), cost, "estimated rule cost");
            }
            Err(detail) => {
                self.errors.push(FieldError::invalid(&path.child("rule"), rule.clone(), detail));
            }
        }
        // If a rule does not compile, its message expression is not compiled.
        match compiled.message_expression.as_ref().filter(|_| compiled.compiled.is_ok()) {
            Some(Ok(program)) => {
                let cost = env.estimate(program).max;
                self.cost(&path.child("messageExpression"), cost, "estimated messageExpression cost");
            }
            Some(Err(detail)) => {
                self.errors.push(FieldError::invalid(&path.child("messageExpression"), rule.clone(), detail))
            }
            None => {}
        }
        if compiled.uses_old() {
            if let Some(list) = &position.uncorrelatable {
                let detail =
                    format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {list}");
                self.errors.push(FieldError::invalid(&path.child("rule"), rule["rule"].clone(), detail));
            }
        } else if rule.get("optionalOldSelf").is_some_and(Value::is_boolean) {
            let detail = "may not be set if oldSelf is not used in rule";
            let value = rule["optionalOldSelf"].clone();
            self.errors.push(FieldError::invalid(&path.child("optionalOldSelf"), value, detail));
        }
    }

    fn cost(&mut self, path: &Path, cost: u64, what: &str) {
        if self.count_cost && cost > RULE_LIMIT {
            self.errors.push(FieldError::forbidden(path, exceeded(what, cost, RULE_LIMIT)));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= SCHEMA_LIMIT / 100 {
            self.expensive.push((cost, path.clone()));
        }
    }

    fn finish(&mut self, path: &Path) {
        if !self.count_cost || self.total <= SCHEMA_LIMIT {
            return;
        }
        self.expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, path) in self.expensive.iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            self.errors.push(FieldError::forbidden(path, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        self.errors.push(FieldError::forbidden(path, exceeded(what, self.total, SCHEMA_LIMIT)));
    }
}

fn exceeded(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = match factor {
        f if f > 100.0 => "more than 100x".to_owned(),
        f if f < 1.5 => format!("{f:.6}x"),
        f => format!("{f:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(spec: Value) -> Vec<String> {
        let schema = json!({ "type": "object", "properties": { "spec": spec } });
        let crd = json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": schema } }] } });
        validate(&crd, &crd, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_missing_schema_is_reported_once() {
        let fields = json!([{ "jsonPath": ".spec.a" }]);
        let crd = json!({ "spec": { "versions": [{ "name": "v1", "selectableFields": fields }] } });
        assert_eq!(validate(&crd, &crd, None), Vec::new());
    }

    #[test]
    fn a_map_of_unknown_type_has_no_old_value() {
        let property = json!({ "type": "integer", "x-kubernetes-validations": [{ "rule": "self == oldSelf" }] });
        let spec = json!({ "type": "object", "x-kubernetes-map-type": "odd", "properties": { "a": property } });
        let found = errors(spec);
        assert!(found.iter().any(|error| error.contains("uncorrelatable portion")), "{found:?}");
        let silent = json!({ "type": "integer", "default": 1, "x-kubernetes-validations": [{ "rule": "" }] });
        let found = errors(json!({ "type": "object", "properties": { "a": silent } }));
        assert!(!found.iter().any(|error| error.contains(".default")), "{found:?}");
    }

    #[test]
    fn only_tolerated_errors_may_stay() {
        let crd = |spec: Value| {
            let schema = json!({ "type": "object", "properties": { "spec": spec } });
            json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": schema } }] } })
        };
        let check = |spec: Value, new: usize, again: usize| {
            let crd = crd(spec);
            assert_eq!(validate(&crd, &crd, None).len(), new, "{crd}");
            assert_eq!(validate(&crd, &crd, Some(&crd)).len(), again, "{crd}");
        };
        let set = json!({ "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "object" } });
        check(json!({ "type": "object", "properties": { "a": set } }), 1, 0);
        let preserving = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": false });
        let [first, again] = [None, Some(())].map(|old| {
            let preserving = crd(preserving.clone());
            validate(&preserving, &preserving, old.map(|()| &preserving)).len()
        });
        assert!(first > 0 && first == again, "{first} {again}");
    }

    #[test]
    fn a_rule_that_costs_too_much_is_refused() {
        let list = |more: Value| {
            let mut list = json!({ "type": "array", "items": { "type": "string" },
                "x-kubernetes-validations": [{ "rule": "self.all(x, self.all(y, x == y || x.contains(y)))" }] });
            list.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            list
        };
        let found = errors(list(json!({})));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains(
            "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"
        ));
        assert!(found[2].contains("estimated rule cost total for entire OpenAPIv3 schema exceeds budget"));
        let bounded = json!({ "maxItems": 10, "items": { "type": "string", "maxLength": 20 } });
        assert_eq!(errors(list(bounded)), Vec::<String>::new());
    }

    #[test]
    fn rules_must_compile_and_be_formed() {
        let object = |rule: Value| json!({ "type": "object", "properties": { "x": { "type": "integer" } }, "x-kubernetes-validations": [rule] });
        for (rule, expected) in [
            (json!({ "rule": "self.y > 1" }), "undefined field 'y'"),
            (json!({ "rule": "self.x" }), "cel expression must evaluate to a bool"),
            (json!({ "rule": " " }), "rule is not specified"),
            (json!({ "rule": "true", "messageExpression": "1" }), "messageExpression must evaluate to a string"),
            (json!({ "rule": "self.x\n> 1" }), "message must be specified if rule contains line breaks"),
            (json!({ "rule": "true", "optionalOldSelf": true }), "may not be set if oldSelf is not used in rule"),
            (json!({ "rule": "true", "fieldPath": ".z" }), "must be a valid path"),
            (json!({ "rule": "true", "reason": "Because" }), "supported values"),
        ] {
            let found = errors(object(rule.clone())).join("; ");
            assert!(found.contains(expected), "{rule}: {found}");
        }
        assert_eq!(errors(object(json!({ "rule": "self.x >= oldSelf.x", "fieldPath": ".x" }))), Vec::<String>::new());
    }

    #[test]
    fn rules_are_shown_completely_and_compiled_if_the_schema_is_valid() {
        let found = errors(json!({ "type": "string", "x-kubernetes-validations": [{ "rule": "self < 1" }] }));
        let shown = r#"Invalid value: {"rule":"self \u003c 1"}: compilation failed"#;
        assert!(found[0].contains(shown), "{found:?}");
        let rules = json!([{ "rule": "self.a", "messageExpression": "1", "fieldPath": ".b" }]);
        for (schema, wanted) in [
            // In a schema that is not structural, the form of a rule is validated, and its expression is not.
            (json!({ "x-kubernetes-validations": rules }), ["].type: Required", "].fieldPath: Invalid"].as_slice()),
            // A rule is not compiled if a schema below it has errors.
            (
                json!({ "type": "object", "properties": { "l": { "type": "strin" } },
                    "x-kubernetes-validations": [{ "rule": "self.a" }] }),
                &["properties[l].type: Unsupported"],
            ),
            // If a rule does not compile, its message expression is not validated.
            (
                json!({ "type": "object", "x-kubernetes-validations": [{ "rule": "self.a", "messageExpression": "1" }] }),
                &["[0].rule: Invalid value"],
            ),
            // A default is checked by the rules.
            (
                json!({ "type": "integer", "default": 1, "x-kubernetes-validations": [{ "rule": "self > 5" }] }),
                &["].default: Invalid value: 1: failed rule: self > 5"],
            ),
            // It is also checked by the rules beside one that does not compile.
            (
                json!({ "type": "integer", "default": 1,
                    "x-kubernetes-validations": [{ "rule": "self > 5" }, { "rule": "self.x" }] }),
                &[
                    "].default: Invalid value: 1: failed rule: self > 5",
                    "].default: Invalid value: \"integer\": rule compile error",
                ],
            ),
            // Within rules, a schema below one without a type has none.
            (
                json!({ "type": "objec", "x-kubernetes-validations": [{ "rule": "true" }], "properties": {
                    "l": { "type": "integer", "x-kubernetes-validations": [{ "rule": "true" }] } } }),
                &["].type: Unsupported", "[l].x-kubernetes-validations: Internal error: internal error: failed to"],
            ),
            // A value of any type has no type that a rule could be checked against.
            (
                json!({ "type": "array", "items": { "x-kubernetes-preserve-unknown-fields": true,
                    "x-kubernetes-validations": [{ "rule": "true" }] } }),
                &["].items.x-kubernetes-validations: Internal error: internal error: failed to construct type"],
            ),
            // Unsupported keywords are the only errors of a schema that has them.
            (json!({ "type": "array", "id": "a" }), &["].id: Forbidden: id is not supported"]),
        ] {
            let found = errors(schema.clone());
            assert_eq!(found.len(), wanted.len(), "{schema}: {found:?}");
            for (found, wanted) in found.iter().zip(wanted) {
                assert!(found.contains(wanted), "{schema}: {found}");
            }
        }
    }

    #[test]
    fn items_without_keys_have_no_old_value() {
        let list = json!({ "type": "array", "items": { "type": "integer",
            "x-kubernetes-validations": [{ "rule": "self >= oldSelf" }] }, "maxItems": 3 });
        let found = errors(list).join("; ");
        assert!(found.contains("oldSelf cannot be used on the uncorrelatable portion of the schema within"), "{found}");
    }
}
