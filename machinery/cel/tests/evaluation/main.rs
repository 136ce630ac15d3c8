//! Tests of evaluation, in `expressions.txt`: the language, and every library of Kubernetes.

use corten_cel::schema::Decl;
use corten_cel::value::{from_json, to_json};
use corten_cel::{Env, Error, Type, Value};
use expect_test::expect_file;
use serde_json::{Value as Json, json};
use testkit_fixture::script;

fn decl() -> Decl {
    let schema = json!({ "type": "object", "properties": {
        "name": { "type": "string", "maxLength": 64 },
        "count": { "type": "integer" },
        "ratio": { "type": "number" },
        "on": { "type": "boolean" },
        "port": { "x-kubernetes-int-or-string": true },
        "at": { "type": "string", "format": "date-time" },
        "for": { "type": "string", "format": "duration" },
        "data": { "type": "string", "format": "byte" },
        "a.b-c": { "type": "string" },
        "namespace": { "type": "string" },
        "maybe": { "type": "string", "nullable": true },
        "tags": { "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } },
        "ports": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": { "type": "object", "properties": { "name": { "type": "string" }, "port": { "type": "integer" } } } },
        "labels": { "type": "object", "additionalProperties": { "type": "string" } } } });
    Decl::of_schema(&schema, true, "selfType").expect("the schema is an object")
}

fn object() -> Json {
    json!({ "apiVersion": "v1", "kind": "Thing", "metadata": { "name": "thing" },
        "name": "web", "count": 3, "ratio": 2, "on": true, "port": "http", "at": "2026-01-02T03:04:05Z", "for": "90s",
        "data": "aGk=", "a.b-c": "escaped", "namespace": "ns", "maybe": null, "tags": ["x", "y"],
        "ports": [{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }], "labels": { "app": "web", "tier": "front" } })
}

/// Returns the value as JSON, or the error as a string.
fn eval(text: &str) -> Result<Json, String> {
    let decl = decl();
    let object = object();
    let env = Env::new().declared("self", &decl).variable("any", Type::Dyn).making("JSONPatch");
    let program = env.compile(text, &[]).map_err(|error| error.to_string())?;
    let this = from_json(&object, &decl).map_err(|error| error.to_string())?;
    let variables = [("self", this), ("any", Value::json(&object))];
    let value = program.eval(&variables).value.map_err(|error: Error| error.to_string())?;
    to_json(&value).map_err(|error| error.to_string())
}

#[test]
fn every_expression_has_its_value() {
    let run = |_: &mut (), expression: &str| eval(expression).map_or_else(|error| error, |value| value.to_string());
    script::check(expect_file!["expressions.txt"], || (), run);
}
