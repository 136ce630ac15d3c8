//! The schemas of a definition that is being written: whether they are structural, and whether their rules compile
//! and can cost too much.

use std::sync::Arc;

use corten_cel::schema::{Decl, max_cardinality};
use corten_meta::{FieldError, Path, Value};

use super::rules::{Environments, SELF_TYPE, compile_rule};
use super::{selectable, structural};

/// The most that one rule may be estimated to cost.
const RULE_LIMIT: u64 = 10_000_000;
const RULE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule";
/// The most that all rules of a schema may.
const SCHEMA_LIMIT: u64 = 100_000_000;

/// What upstream forgives in schemas of a definition that has errors of the same sort already: the field's end, and what
/// they say.
const FORGIVEN: [(&str, &str); 5] = [
    (".type", "Unsupported value"),
    ("", "must be atomic as item of a list with x-kubernetes-list-type=set"),
    (".nullable", "cannot be nullable when x-kubernetes-list-type is "),
    ("", "this property is in x-kubernetes-list-map-keys"),
    (".default", "must not have unknown fields"),
];

/// Errors of all rules in a definition, which may have been given with more that is empty. Schemas that did not change are
/// not refused for their cost.
pub fn validate(definition: &Value, given: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let versions = |definition: &Value| definition.pointer("/spec/versions").and_then(Value::as_array).cloned();
    let new = versions(definition).unwrap_or_default();
    let given = versions(given).unwrap_or_default();
    let before = old.and_then(versions).unwrap_or_default();
    let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default();
    // Upstream checks a schema that all versions share once.
    let shared = new.iter().all(|version| schema(version) == schema(&new[0]));
    let same_fields = new.iter().all(|version| version["selectableFields"] == new[0]["selectableFields"]);
    let known: Vec<String> = before.iter().flat_map(|old| known_errors(&schema(old))).collect();
    let mut errors = Vec::new();
    for (index, version) in new.iter().enumerate() {
        let spec = Path::root("spec");
        let own = spec.child("versions").index(index);
        let schema = schema(version);
        // That it is missing has been told.
        if schema.is_null() {
            continue;
        }
        let has_status =
            |version: &Value| version.pointer("/subresources/status").is_some_and(|status| !status.is_null());
        if !shared || index == 0 {
            let path = if shared { spec.child("validation") } else { own.child("schema") }.child("openAPIV3Schema");
            let has_status = if shared { new.iter().any(has_status) } else { has_status(version) };
            let unchanged = before
                .iter()
                .any(|old| old["name"] == version["name"] && old.pointer("/schema/openAPIV3Schema") == Some(&schema));
            let given = given.get(index).and_then(|given| given.pointer("/schema/openAPIV3Schema")).unwrap_or(&schema);
            validate_schema((&schema, given), &path, has_status, (unchanged, &known), &mut errors);
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

fn is_of(error: &FieldError, (end, text): (&str, &str)) -> bool {
    error.field.ends_with(end) && format!("{}: {}", error.kind.text(), error.detail).contains(text)
}

/// Which of the errors that are forgiven a schema has.
fn known_errors(schema: &Value) -> Vec<String> {
    let judgement = structural::validate(schema, schema, &Path::root("spec"), false);
    let errors = [judgement.structure, judgement.marks].concat();
    let has = |sort: &(&str, &str)| errors.iter().any(|error| is_of(error, *sort));
    FORGIVEN.into_iter().filter(has).map(|(_, text)| text.to_owned()).collect()
}

fn validate_schema(
    (schema, given): (&Value, &Value),
    path: &Path,
    has_status: bool,
    (unchanged, known): (bool, &[String]),
    errors: &mut Vec<FieldError>,
) {
    let structural::Judgement { mut structure, mut marks, is_structural } =
        structural::validate(schema, given, path, has_status);
    for found in [&mut structure, &mut marks] {
        found.retain(|error| !FORGIVEN.iter().any(|sort| is_of(error, *sort) && known.iter().any(|k| k == sort.1)));
    }
    let wrong = marks.iter().map(|error| error.field.clone()).collect();
    errors.append(&mut structure);
    errors.append(&mut marks);
    if !is_structural {
        return;
    }
    let mut check = Check { errors: Vec::new(), total: 0, expensive: Vec::new(), count_cost: !unchanged, wrong };
    let root =
        Place { is_root: true, cardinality: Some(1), uncorrelatable: None, is_within_rules: false, is_untyped: false };
    check.schema(schema, path, &root);
    check.finish(path);
    errors.append(&mut check.errors);
}

/// Where in a schema one is.
struct Place {
    is_root: bool,
    /// How often values of this schema can occur; none if that is not bounded.
    cardinality: Option<u64>,
    /// The list whose items have no past.
    uncorrelatable: Option<Path>,
    /// Whether a schema around it has rules.
    is_within_rules: bool,
    /// Whether a schema around it, within rules, has no type that expressions can see: then nothing in it has.
    is_untyped: bool,
}

struct Check {
    errors: Vec<FieldError>,
    total: u64,
    expensive: Vec<(u64, Path)>,
    count_cost: bool,
    /// What is wrong with the schema otherwise. Rules around it are not compiled.
    wrong: Vec<String>,
}

impl Check {
    fn schema(&mut self, schema: &Value, path: &Path, place: &Place) {
        if !schema.is_object() {
            return;
        }
        let times = |bound: &Value| {
            let bound = bound.as_i64().map(|bound| u64::try_from(bound).unwrap_or(0));
            place.cardinality.zip(bound).map(|(here, bound)| here.saturating_mul(bound))
        };
        let embedded = |schema: &Value| schema["x-kubernetes-embedded-resource"] == true;
        let has_rules = schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty());
        let is_within_rules = place.is_within_rules || has_rules;
        let is_untyped =
            place.is_untyped || is_within_rules && Decl::of_schema(schema, place.is_root, SELF_TYPE).is_none();
        let map_type = &schema["x-kubernetes-map-type"];
        let is_odd = !map_type.is_null() && !["granular", "atomic"].contains(&map_type.as_str().unwrap_or_default());
        let uncorrelatable = place.uncorrelatable.clone().or_else(|| is_odd.then(|| path.clone()));
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let below = Place {
                is_root: embedded(property),
                cardinality: place.cardinality,
                uncorrelatable: uncorrelatable.clone(),
                is_within_rules,
                is_untyped,
            };
            self.schema(property, &path.child("properties").key(name), &below);
        }
        let values = &schema["additionalProperties"];
        let below = Place {
            is_root: embedded(values),
            cardinality: times(&schema["maxProperties"]),
            uncorrelatable: place.uncorrelatable.clone(),
            is_within_rules,
            is_untyped,
        };
        self.schema(values, &path.child("additionalProperties"), &below);
        let items = &schema["items"];
        let has_keys = schema["x-kubernetes-list-type"] == "map";
        let below = Place {
            is_root: embedded(items),
            cardinality: times(&schema["maxItems"]),
            uncorrelatable: place.uncorrelatable.clone().or_else(|| (!has_keys).then(|| path.clone())),
            is_within_rules,
            is_untyped,
        };
        self.schema(items, &path.child("items"), &below);
        self.rules(schema, path, place);
    }

    fn rules(&mut self, schema: &Value, path: &Path, place: &Place) {
        let given = schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let here = path.to_string();
        let is_wrong = |field: &String| {
            field.strip_prefix(&here).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        if given.is_empty() || self.wrong.iter().any(is_wrong) {
            return;
        }
        let decl = Decl::of_schema(schema, place.is_root, SELF_TYPE).filter(|_| !place.is_untyped);
        let Some(decl) = decl.map(Arc::new) else {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: \
                          unable to convert structural schema to CEL declarations";
            return self.errors.push(FieldError::internal(&path.child("x-kubernetes-validations"), detail));
        };
        let environments = Environments::new(&decl);
        for (index, rule) in given.iter().enumerate() {
            let here = path.child("x-kubernetes-validations").index(index);
            self.rule(rule, schema, &here, place, &decl, &environments);
        }
    }

    fn rule(
        &mut self,
        rule: &Value,
        schema: &Value,
        path: &Path,
        place: &Place,
        decl: &Decl,
        environments: &Environments,
    ) {
        let compiled = compile_rule(rule, schema, environments);
        let env = environments.of(rule["optionalOldSelf"] == true);
        let cardinality = place.cardinality.unwrap_or_else(|| max_cardinality(decl.min_size));
        match &compiled.compiled {
            Ok(program) => {
                let cost = env.estimate(program).max.saturating_mul(cardinality);
                self.cost(&path.child("rule"), cost, "estimated rule cost");
            }
            Err(detail) => {
                self.errors.push(refused(rule, &path.child("rule"), detail));
            }
        }
        // Of a rule that does not compile, nothing else is compiled.
        match compiled.message_expression.as_ref().filter(|_| compiled.compiled.is_ok()) {
            Some(Ok(program)) => {
                let cost = env.estimate(program).max;
                self.cost(&path.child("messageExpression"), cost, "estimated messageExpression cost");
            }
            Some(Err(detail)) => self.errors.push(refused(rule, &path.child("messageExpression"), detail)),
            None => {}
        }
        if compiled.uses_old() {
            if let Some(list) = &place.uncorrelatable {
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

/// The error of a rule that does not compile, which shows all of it.
fn refused(rule: &Value, path: &Path, detail: &str) -> FieldError {
    let printed = corten_api::schema::print_value(RULE, rule);
    FieldError { printed: Some(printed), ..FieldError::invalid(path, rule.clone(), detail) }
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
        let definition = json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": schema } }] } });
        validate(&definition, &definition, None).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_schema_that_is_missing_is_told_once() {
        let fields = json!([{ "jsonPath": ".spec.a" }]);
        let definition = json!({ "spec": { "versions": [{ "name": "v1", "selectableFields": fields }] } });
        assert_eq!(validate(&definition, &definition, None), Vec::new());
    }

    #[test]
    fn a_map_of_no_known_type_has_no_past() {
        let property = json!({ "type": "integer", "x-kubernetes-validations": [{ "rule": "self == oldSelf" }] });
        let spec = json!({ "type": "object", "x-kubernetes-map-type": "odd", "properties": { "a": property } });
        let found = errors(spec);
        assert!(found.iter().any(|error| error.contains("uncorrelatable portion")), "{found:?}");
        let silent = json!({ "type": "integer", "default": 1, "x-kubernetes-validations": [{ "rule": "" }] });
        let found = errors(json!({ "type": "object", "properties": { "a": silent } }));
        assert!(!found.iter().any(|error| error.contains(".default")), "{found:?}");
    }

    #[test]
    fn what_is_wrong_stays_wrong_but_for_little() {
        let definition = |spec: Value| {
            let schema = json!({ "type": "object", "properties": { "spec": spec } });
            json!({ "spec": { "versions": [{ "name": "v1", "schema": { "openAPIV3Schema": schema } }] } })
        };
        let check = |spec: Value, new: usize, again: usize| {
            let definition = definition(spec);
            assert_eq!(validate(&definition, &definition, None).len(), new, "{definition}");
            assert_eq!(validate(&definition, &definition, Some(&definition)).len(), again, "{definition}");
        };
        let set = json!({ "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "object" } });
        check(json!({ "type": "object", "properties": { "a": set } }), 1, 0);
        let preserving = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": false });
        let [first, again] = [None, Some(())].map(|old| {
            let preserving = definition(preserving.clone());
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
    fn rules_are_shown_whole_and_compiled_where_the_schema_is_right() {
        let found = errors(json!({ "type": "string", "x-kubernetes-validations": [{ "rule": "self < 1" }] }));
        let shown = r#"Invalid value: {"Rule":"self \u003c 1","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: compilation failed"#;
        assert!(found[0].contains(shown), "{found:?}");
        let rules = json!([{ "rule": "self.a", "messageExpression": "1", "fieldPath": ".b" }]);
        for (schema, wanted) in [
            // A schema that is not structural: what a rule looks like is judged, and not what it says.
            (json!({ "x-kubernetes-validations": rules }), ["].type: Required", "].fieldPath: Invalid"].as_slice()),
            // What is wrong below a rule keeps it from being compiled.
            (
                json!({ "type": "object", "properties": { "l": { "type": "strin" } },
                    "x-kubernetes-validations": [{ "rule": "self.a" }] }),
                &["properties[l].type: Unsupported"],
            ),
            // Of a rule that does not compile, the message is not looked at.
            (
                json!({ "type": "object", "x-kubernetes-validations": [{ "rule": "self.a", "messageExpression": "1" }] }),
                &["[0].rule: Invalid value"],
            ),
            // A default is held to the rules.
            (
                json!({ "type": "integer", "default": 1, "x-kubernetes-validations": [{ "rule": "self > 5" }] }),
                &["].default: Invalid value: 1: failed rule: self > 5"],
            ),
            // So it is to those beside a rule that does not compile.
            (
                json!({ "type": "integer", "default": 1,
                    "x-kubernetes-validations": [{ "rule": "self > 5" }, { "rule": "self.x" }] }),
                &[
                    "].default: Invalid value: 1: failed rule: self > 5",
                    "].default: Invalid value: \"integer\": rule compile error",
                ],
            ),
            // Within rules nothing has a type of which something around it has none.
            (
                json!({ "type": "objec", "x-kubernetes-validations": [{ "rule": "true" }], "properties": {
                    "l": { "type": "integer", "x-kubernetes-validations": [{ "rule": "true" }] } } }),
                &["].type: Unsupported", "[l].x-kubernetes-validations: Internal error: internal error: failed to"],
            ),
            // A value that may be anything has no type that a rule could be checked by.
            (
                json!({ "type": "array", "items": { "x-kubernetes-preserve-unknown-fields": true,
                    "x-kubernetes-validations": [{ "rule": "true" }] } }),
                &["].items.x-kubernetes-validations: Internal error: internal error: failed to construct type"],
            ),
            // What no structural schema knows is all that is told.
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
    fn items_without_keys_have_no_past() {
        let list = json!({ "type": "array", "items": { "type": "integer",
            "x-kubernetes-validations": [{ "rule": "self >= oldSelf" }] }, "maxItems": 3 });
        let found = errors(list).join("; ");
        assert!(found.contains("oldSelf cannot be used on the uncorrelatable portion of the schema within"), "{found}");
    }
}
