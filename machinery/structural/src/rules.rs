//! The rules of a schema, `x-kubernetes-validations`: compiled once for each version of a CRD, and evaluated for every
//! object that is written, each at its position in the schema.
//!
//! A rule sees the value at its position as `self` and, on updates, the old value as `oldSelf`. An unchanged value is
//! not refused for a rule without `oldSelf`: a CRD may tighten its rules while stored objects violate them.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_cel::schema::Decl;
use corten_cel::value::from_json;
use corten_cel::{CompileError, Env, Error, MAX_MESSAGE_BYTES, Program, RUNTIME_BUDGET, Type, Value as Cel};
use corten_meta::{ErrorKind, FieldError, Path, Value};

use crate::correlation;
use crate::schema::ALWAYS;
use corten_cel::durations::{compiling, evaluating};

/// The type of `self`. Upstream's has a number that differs each time, so that no expression can name it.
pub const SELF_TYPE: &str = "selfType1";

/// The rules of a schema and of those below it.
pub struct Rules {
    decl: Option<Arc<Decl>>,
    kind: String,
    rules: Vec<Rule>,
    items: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
    values: Option<Box<Rules>>,
    is_root: bool,
    /// Whether there are rules of a value without a type: those of items whose parent is no list.
    is_untyped: bool,
}

/// A compiled rule.
pub struct Rule {
    expression: String,
    message: String,
    reason: String,
    field_path: Option<Path>,
    optional_old: bool,
    pub compiled: Result<Program, String>,
    /// The message expression, if the rule has one.
    pub message_expression: Option<Result<Program, String>>,
}

impl Rule {
    pub fn uses_old(&self) -> bool {
        self.compiled.as_ref().is_ok_and(|program| program.uses("oldSelf"))
    }

    /// Returns the message of the rule, or its expression.
    fn message_or_expression(&self) -> &str {
        if self.message.is_empty() { self.expression.trim() } else { self.message.trim() }
    }
}

/// The environments of the rules at one position.
pub struct Environments {
    plain: Env,
    optional: Env,
}

impl Environments {
    pub fn new(decl: &Arc<Decl>) -> Environments {
        let base = Env::new().declared("self", decl).sized_by(Arc::clone(decl));
        let optional = base.clone().variable("oldSelf", Type::optional(decl.cel_type()));
        Environments { plain: base.variable("oldSelf", decl.cel_type()), optional }
    }

    pub fn of(&self, optional_old: bool) -> &Env {
        if optional_old { &self.optional } else { &self.plain }
    }
}

/// Compiles a rule of a schema.
pub fn compile_rule(rule: &Value, schema: &Value, environments: &Environments) -> Rule {
    let string = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
    let optional_old = rule["optionalOldSelf"] == true;
    let env = environments.of(optional_old);
    let compile = |expression: &str, wanted: Type, what: &str, output: &str| match compiling(|| {
        env.compile_never_null(expression, &wanted)
    }) {
        Ok(program) => Ok(program),
        Err(CompileError::Issues(issues)) => Err(format!("{what}compilation failed: {issues}")),
        Err(CompileError::Instantiation(error)) => {
            let what = if what.is_empty() { "program " } else { what };
            Err(format!("{what}instantiation failed: {error}"))
        }
        Err(CompileError::Output(..)) => Err(output.to_owned()),
    };
    let expression = string("messageExpression");
    let message_expression = (!expression.is_empty()).then(|| {
        compile(&expression, Type::String, "messageExpression ", "messageExpression must evaluate to a string")
    });
    Rule {
        compiled: compile(&string("rule"), Type::Bool, "", "cel expression must evaluate to a bool"),
        message_expression,
        expression: string("rule"),
        message: string("message"),
        reason: string("reason"),
        field_path: rule["fieldPath"].as_str().and_then(|path| field_path(path, schema)),
        optional_old,
    }
}

/// Returns the path of a field such as `.spec['a.b']`, if the schema has it.
pub fn field_path(path: &str, schema: &Value) -> Option<Path> {
    let mut rest = path;
    let mut here = schema;
    let mut found = Path::default();
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('.') {
            Some(step) => step.split_at(step.find(['.', '[']).unwrap_or(step.len())),
            None => {
                let inside = rest.strip_prefix("['")?;
                let (name, after) = inside.split_once("']")?;
                (name, after)
            }
        };
        let name = name.replace("\\'", "'");
        (found, here) = match (here["properties"].get(&name), here["additionalProperties"].is_object()) {
            (Some(next), _) => (found.child(&name), next),
            (None, true) if !here["properties"].is_object() => (found.key(&name), &here["additionalProperties"]),
            _ => return None,
        };
        rest = after;
    }
    Some(found)
}

impl Rules {
    /// Compiles the rules of a version's schema; none if it has no rules at any depth.
    pub fn compile(schema: &Value) -> Option<Rules> {
        compile(schema, true, true)
    }

    /// Compiles the rules of a schema inside a version's schema.
    pub fn compile_below(schema: &Value) -> Option<Rules> {
        compile(schema, is_embedded(schema), true)
    }

    /// Returns the errors of a schema's rules for an object, which replaces `old`.
    pub fn check(&self, schema: &Value, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.check_at(&Path::default(), schema, object, old)
    }

    /// Returns the violations in unchanged values of an object: they are reported as warnings, and not refused.
    pub fn ratcheted(&self, schema: &Value, object: &Value, old: &Value) -> Vec<String> {
        self.run(&Path::default(), schema, object, Some(old)).ratcheted
    }

    /// Returns the errors of the rules for a value at another path.
    pub fn check_at(&self, path: &Path, schema: &Value, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.run(path, schema, value, old).errors
    }

    /// Returns the errors of the rules for a default, as an update of itself; unchanged values are refused here.
    pub fn check_default(&self, path: &Path, schema: &Value, default: &Value) -> Vec<FieldError> {
        let mut check = Check { is_ratcheting: false, ..Check::new() };
        let _ = check.position(self, path, Position { schema, value: default, old: Some(default) }, None);
        check.errors
    }

    fn run(&self, path: &Path, schema: &Value, value: &Value, old: Option<&Value>) -> Check {
        let mut check = Check::new();
        // Without budget, the remaining rules are not evaluated; the error for that is already added.
        let _ = check.position(self, path, Position { schema, value, old }, None);
        check
    }
}

fn is_embedded(schema: &Value) -> bool {
    schema["x-kubernetes-embedded-resource"] == true
}

fn compile(schema: &Value, is_root: bool, is_typed: bool) -> Option<Rules> {
    if !schema.is_object() {
        return None;
    }
    let validations = schema["x-kubernetes-validations"].as_array().map(Vec::as_slice).unwrap_or_default();
    let decl = if validations.is_empty() || !is_typed {
        None
    } else {
        Decl::of_schema(schema, is_root, SELF_TYPE).map(Arc::new)
    };
    let rules = decl.as_ref().map(Environments::new).map_or_else(Vec::new, |environments| {
        // A rule without an expression is refused elsewhere, and always holds.
        let has_expression = |rule: &&Value| !rule["rule"].as_str().unwrap_or_default().trim().is_empty();
        validations.iter().filter(has_expression).map(|rule| compile_rule(rule, schema, &environments)).collect()
    });
    let below = |schema: &Value, is_typed: bool| compile(schema, is_embedded(schema), is_typed);
    let properties: BTreeMap<String, Rules> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|_| is_typed)
        .filter_map(|(name, schema)| below(schema, true).map(|rules| (name.clone(), rules)))
        .collect();
    let kind = schema["type"].as_str().unwrap_or_default().to_owned();
    let items = below(&schema["items"], is_typed && kind == "array").map(Box::new);
    let values = below(&schema["additionalProperties"], is_typed && kind == "object").map(Box::new);
    if validations.is_empty() && properties.is_empty() && items.is_none() && values.is_none() {
        return None;
    }
    let is_untyped = !validations.is_empty() && !is_typed;
    Some(Rules { decl, kind, rules, items, properties, values, is_root, is_untyped })
}

/// The budget is used up; an error is already added.
struct OutOfBudget;

struct Check {
    budget: u64,
    /// Whether violations in unchanged values are warnings, and not errors.
    is_ratcheting: bool,
    errors: Vec<FieldError>,
    ratcheted: Vec<String>,
}

/// A value, its schema, and its old value, if that is known.
#[derive(Clone, Copy)]
struct Position<'a> {
    schema: &'a Value,
    value: &'a Value,
    old: Option<&'a Value>,
}

impl Position<'_> {
    fn is_unchanged(self) -> bool {
        self.old.is_some_and(|old| correlation::is_unchanged(self.schema, self.value, old))
    }
}

impl Check {
    fn new() -> Check {
        Check { budget: RUNTIME_BUDGET, is_ratcheting: true, errors: Vec::new(), ratcheted: Vec::new() }
    }

    /// Evaluates the rules at one position and below it. `around` is the nearest enclosing position whose old value is
    /// known.
    fn position(
        &mut self,
        rules: &Rules,
        path: &Path,
        position: Position<'_>,
        around: Option<Position<'_>>,
    ) -> Result<(), OutOfBudget> {
        let Position { schema, value, old } = position;
        if value.is_null() {
            return Ok(());
        }
        let around = if old.is_some() { Some(position) } else { around };
        self.rules(rules, path, position, around)?;
        match value {
            Value::Array(items) => {
                let Some(below) = &rules.items else { return Ok(()) };
                let keys = correlation::list_keys(schema);
                for (index, item) in items.iter().enumerate() {
                    let old = correlation::item(&keys, item, old);
                    let position = Position { schema: &schema["items"], value: item, old };
                    self.position(below, &path.index(index), position, around)?;
                }
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    if rules.is_root && ALWAYS.contains(&name.as_str()) {
                        continue;
                    }
                    let schema = correlation::field(schema, name).unwrap_or(&Value::Null);
                    let position = Position { schema, value: field, old: old.and_then(|old| old.get(name)) };
                    if let Some(below) = rules.properties.get(name) {
                        self.position(below, &path.child(name), position, around)?;
                    } else if let Some(below) = &rules.values {
                        self.position(below, &path.key(name), position, around)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Evaluates the rules at one position.
    fn rules(
        &mut self,
        rules: &Rules,
        path: &Path,
        position: Position<'_>,
        around: Option<Position<'_>>,
    ) -> Result<(), OutOfBudget> {
        if rules.is_untyped {
            let detail = "rule compiler initialization error: failed to convert to declType for CEL validation rules";
            self.errors.push(FieldError::invalid(path, rules.kind.as_str(), detail));
        }
        let Some(decl) = &rules.decl else { return Ok(()) };
        let value = position.value;
        let old = position.old.filter(|old| !old.is_null());
        for rule in &rules.rules {
            let program = match &rule.compiled {
                Ok(program) => program,
                Err(error) => {
                    let detail = format!("rule compile error: {error}");
                    self.errors.push(FieldError::invalid(path, rules.kind.as_str(), detail));
                    continue;
                }
            };
            if rule.uses_old() && old.is_none() && !rule.optional_old {
                continue;
            }
            let variables = match variables(decl, value, old, rule.optional_old) {
                Ok(variables) => variables,
                // An expression that does not use a value does not fail because of its type.
                Err(_) if !program.uses("self") && !rule.uses_old() => Vec::new(),
                Err(error) => {
                    let detail = format!("{error} evaluating rule: {}", rule.message_or_expression());
                    self.errors.push(FieldError::invalid(path, rules.kind.as_str(), detail));
                    continue;
                }
            };
            let outcome = evaluating(|| program.eval(&variables.as_slice()));
            self.spend(outcome.cost, path, &rules.kind)?;
            match outcome.value {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => {
                    let error = self.refusal(rules, rule, path, value, &variables)?;
                    let is_spared = self.is_ratcheting && around.is_some_and(Position::is_unchanged);
                    if is_spared && !rule.uses_old() {
                        self.ratcheted.push(error.to_string());
                    } else {
                        self.errors.push(error);
                    }
                }
                Err(error) => self.failed(rules, rule, path, &error)?,
            }
        }
        Ok(())
    }

    fn spend(&mut self, cost: u64, path: &Path, kind: &str) -> Result<(), OutOfBudget> {
        match self.budget.checked_sub(cost) {
            Some(rest) => {
                self.budget = rest;
                Ok(())
            }
            None => {
                let detail =
                    "validation failed due to running out of cost budget, no further validation rules will be run";
                self.errors.push(FieldError::invalid(path, kind, detail));
                Err(OutOfBudget)
            }
        }
    }

    fn failed(&mut self, rules: &Rules, rule: &Rule, path: &Path, error: &Error) -> Result<(), OutOfBudget> {
        let message_or_expression = rule.message_or_expression();
        let (detail, stop) = match error {
            Error::NoSuchOverload(_) => (
                format!(
                    "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {message_or_expression}"
                ),
                false,
            ),
            Error::CostLimit => (
                format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {message_or_expression}"
                ),
                true,
            ),
            error => (format!("{error} evaluating rule: {message_or_expression}"), false),
        };
        self.errors.push(FieldError::invalid(path, rules.kind.as_str(), detail));
        if stop { Err(OutOfBudget) } else { Ok(()) }
    }

    /// Returns the error of a rule that does not hold.
    fn refusal(
        &mut self,
        rules: &Rules,
        rule: &Rule,
        path: &Path,
        value: &Value,
        variables: &[(&str, Cel<'_>)],
    ) -> Result<FieldError, OutOfBudget> {
        let path = match &rule.field_path {
            Some(below) => path.child(below.to_string()),
            None => path.clone(),
        };
        let expression = rule.message_expression.as_ref().and_then(|compiled| compiled.as_ref().ok());
        let message = match expression {
            Some(program) => {
                let outcome = evaluating(|| program.eval(&variables));
                self.spend(outcome.cost, &path, &rules.kind)?;
                outcome.value.ok().and_then(|value| value.as_str().and_then(valid_message))
            }
            None => None,
        };
        let detail = message.unwrap_or_else(|| match rule.message.is_empty() {
            true => format!("failed rule: {}", rule.message_or_expression()),
            false => rule.message.trim().to_owned(),
        });
        let omitted = matches!(rules.kind.as_str(), "object" | "array");
        let mut error = FieldError::invalid(&path, if omitted { Value::Null } else { value.clone() }, detail.clone());
        error.value_omitted = omitted;
        match rule.reason.as_str() {
            "FieldValueForbidden" => error = FieldError::forbidden(&path, detail),
            "FieldValueRequired" => error = FieldError::required(&path, detail),
            "FieldValueDuplicate" => {
                error.kind = ErrorKind::Duplicate;
                error.detail = String::new();
            }
            _ => {}
        }
        Ok(error)
    }
}

/// Returns the result of a message expression, if it is a valid message.
pub fn valid_message(string: &str) -> Option<String> {
    let string = string.trim();
    (!string.is_empty() && string.len() <= MAX_MESSAGE_BYTES && !string.contains('\n')).then(|| string.to_owned())
}

fn variables<'a>(
    decl: &'a Decl,
    value: &'a Value,
    old: Option<&'a Value>,
    optional_old: bool,
) -> Result<Vec<(&'static str, Cel<'a>)>, Error> {
    let mut variables = vec![("self", from_json(value, decl)?)];
    let old = old.map(|old| from_json(old, decl)).transpose()?;
    if optional_old {
        variables.push(("oldSelf", old.map_or_else(Cel::none, Cel::some)));
    } else if let Some(old) = old {
        variables.push(("oldSelf", old));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, object: Value, old: Option<Value>) -> String {
        let rules = Rules::compile(&schema).expect("there are rules");
        rules.check(&schema, &object, old.as_ref()).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn spec(rule: Value) -> Value {
        json!({ "type": "object", "properties": { "spec": { "type": "object", "x-kubernetes-validations": [rule],
            "properties": { "min": { "type": "integer" }, "max": { "type": "integer" }, "name": { "type": "string" } } } } })
    }

    #[test]
    fn a_violated_rule_is_an_error() {
        let object = |min: i64, max: i64| json!({ "spec": { "min": min, "max": max } });
        let rule = json!({ "rule": "self.min <= self.max" });
        assert_eq!(check(spec(rule.clone()), object(1, 2), None), "");
        assert_eq!(check(spec(rule), object(3, 2), None), "spec: Invalid value: failed rule: self.min <= self.max");
        let rule = json!({ "rule": "self.min <= self.max", "fieldPath": ".min", "reason": "FieldValueForbidden",
                           "messageExpression": "'%d is more than %d'.format([self.min, self.max])" });
        assert_eq!(check(spec(rule), object(3, 2), None), "spec.min: Forbidden: 3 is more than 2");
        let rule = json!({ "rule": "self.name == 'x'", "message": "call it x" });
        assert_eq!(
            check(spec(rule), object(1, 2), None),
            "spec: Invalid value: \"object\": no such key: name evaluating rule: call it x"
        );
    }

    #[test]
    fn old_values_are_compared() {
        let object = |name: &str| json!({ "spec": { "name": name } });
        let transition = json!({ "rule": "self.name == oldSelf.name", "message": "name is immutable" });
        assert_eq!(check(spec(transition.clone()), object("a"), None), "");
        assert_eq!(check(spec(transition.clone()), object("a"), Some(object("a"))), "");
        assert_eq!(check(spec(transition), object("b"), Some(object("a"))), "spec: Invalid value: name is immutable");
        let tightened = json!({ "rule": "self.name == 'good'" });
        assert_eq!(check(spec(tightened.clone()), object("bad"), Some(object("bad"))), "", "unchanged");
        let rules = Rules::compile(&spec(tightened.clone())).expect("there are rules");
        let schema = spec(tightened.clone());
        assert_eq!(rules.ratcheted(&schema, &object("bad"), &object("bad")).len(), 1, "it is told");
        assert_eq!(rules.ratcheted(&schema, &object("bad"), &object("worse")).len(), 0, "it is refused");
        let strange = json!({ "spec": { "name": "bad", "odd": 1 } });
        let refused = check(spec(tightened.clone()), strange.clone(), Some(strange));
        assert_eq!(refused, "spec: Invalid value: failed rule: self.name == 'good'");
        assert!(check(spec(tightened), object("worse"), Some(object("bad"))).contains("failed rule"));
        let optional = json!({ "rule": "oldSelf.hasValue() || self.name == 'first'", "optionalOldSelf": true });
        assert_eq!(check(spec(optional.clone()), object("first"), None), "");
        assert!(check(spec(optional), object("second"), None).contains("failed rule"));
    }

    #[test]
    fn items_of_a_value_that_is_no_list_have_no_type() {
        let item = json!({ "type": "object", "x-kubernetes-validations": [{ "rule": "true" }] });
        let schema = json!({ "type": "object", "properties": { "o": { "type": "object", "items": item } } });
        let wanted = "o[0]: Invalid value: \"object\": rule compiler initialization error: failed to convert to declType for CEL validation rules";
        assert_eq!(check(schema.clone(), json!({ "o": [{}] }), None), wanted);
        assert_eq!(check(schema, json!({ "o": {} }), None), "");
        // An expression that does not use the value does not fail because of its type.
        let unseen = |rule: &str| check(spec(json!({ "rule": rule })), json!({ "spec": 5 }), None);
        assert_eq!(unseen("true"), "");
        assert_ne!(unseen("self == self"), "");
    }

    #[test]
    fn items_are_correlated_by_their_keys() {
        let schema = json!({ "type": "object", "properties": { "list": { "type": "array", "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k"], "items": { "type": "object",
                "x-kubernetes-validations": [{ "rule": "self.v >= oldSelf.v" }],
                "properties": { "k": { "type": "string" }, "v": { "type": "integer" } } } } } });
        let list = |items: &[(&str, i64)]| json!({ "list": items.iter().map(|(k, v)| json!({ "k": k, "v": v })).collect::<Vec<_>>() });
        let old = list(&[("a", 5), ("b", 7)]);
        assert_eq!(check(schema.clone(), list(&[("b", 7), ("a", 6), ("c", 0)]), Some(old.clone())), "");
        assert_eq!(
            check(schema, list(&[("b", 6)]), Some(old)),
            "list[0]: Invalid value: failed rule: self.v >= oldSelf.v"
        );
    }
}
