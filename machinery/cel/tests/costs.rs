//! Tests of the estimated and actual costs of expressions against upstream's, for the same schema and object.

use std::sync::Arc;

use corten_cel::Env;
use corten_cel::schema::Decl;
use corten_cel::value::from_json;
use serde_json::{Value as Json, json};

fn schema() -> Json {
    json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 64}, "long": {"type": "string"}, "count": {"type": "integer"}, "ratio": {"type": "number"}, "on": {"type": "boolean"}, "port": {"x-kubernetes-int-or-string": true}, "at": {"type": "string", "format": "date-time"}, "for": {"type": "string", "format": "duration"}, "data": {"type": "string", "format": "byte"}, "a.b-c": {"type": "string"}, "namespace": {"type": "string"}, "mode": {"type": "string", "enum": ["a", "bbb"]}, "tags": {"type": "array", "maxItems": 10, "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 20}}, "nums": {"type": "array", "items": {"type": "integer"}}, "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "maxItems": 16, "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "port": {"type": "integer"}}, "required": ["name"]}}, "labels": {"type": "object", "maxProperties": 8, "additionalProperties": {"type": "string", "maxLength": 63}}, "free": {"type": "object", "additionalProperties": {"type": "string"}}, "emb": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}, "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

fn object() -> Json {
    json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": "thing"}, "name": "web", "long": "lorem ipsum dolor", "count": 3, "ratio": 2.5, "on": true, "port": "http", "at": "2026-01-02T03:04:05Z", "for": "90s", "data": "aGk=", "a.b-c": "e", "namespace": "ns", "mode": "a", "tags": ["x", "y"], "nums": [3, 1, 2], "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}], "labels": {"app": "web", "tier": "front"}, "free": {"k": "v"}, "emb": {"kind": "Pod", "apiVersion": "v1"}, "any": {"z": 1}})
}

#[test]
fn costs_are_those_of_upstream() {
    let decl = Arc::new(Decl::of_schema(&schema(), true, "self").expect("the schema is an object"));
    let object = object();
    let env = Env::new().declared("self", &decl).sized_by(decl.clone());
    for (expression, estimated, actual) in [
        ("self.name == 'web'", 3, 3),
        ("self.tags.all(t, t.size() < 5)", 63, 15),
        ("self.ports.all(p, p.name.matches('^[a-z]+$'))", 243, 17),
        ("self.ports.map(p, p.name).join(',') == 'a,b'", 1844674407370955502, 33),
        ("self.labels.all(k, self.labels[k].startsWith('w') || self.labels[k].size() > 3)", 115, 22),
        ("self.free.all(k, self.free[k].contains('v'))", 123697574703, 10),
        ("self.long.contains(self.name)", 8178902, 6),
        ("self.long.matches('a*b')", 314575, 4),
        ("self.long.replace('o', 'xx').size() > 0", 629150, 8),
        ("self.long + self.long == self.name", 629178, 11),
        ("self.name in ['a','web']", 14, 2),
        ("isQuantity(self.long)", 314575, 4),
        ("cidr('10.0.0.0/8').containsIP(self.name)", 33, 5),
        ("self.mode == 'a'", 3, 3),
        ("self.labels == {'app':'web','tier':'front'}", 33, 3),
        ("self.ports.sortBy(p, p.name)[0].name == 'a'", 801, 56),
        ("self.tags.isSorted()", 92, 2),
        ("self.long.find('o+') == 'o'", 314576, 5),
        ("self.labels.transformMap(k, v, v + 'x').size() == 2", 275, 15),
        ("self.?name.optMap(n, n + 'x').orValue('') == 'webx'", 1844674407370955284, 10),
        ("format.dns1123Label().validate(self.name).hasValue()", 836, 12),
        ("sets.contains(self.tags, ['x'])", 23, 5),
        ("self.tags.all(a, self.tags.all(b, a == b || a != b))", 2363, 45),
        ("(self.on ? self.tags : ['z']).all(x, x.size() > 0)", 73, 16),
        ("self.labels.exists(k, v, k == v)", 51, 17),
        ("self.at > timestamp('2020-01-01T00:00:00Z')", 4, 3),
        ("self.labels[?'app'].orValue('none') == 'web'", 5, 4),
    ] {
        let program = env.compile(expression, &[]).unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert_eq!(env.estimate(&program).max, estimated, "{expression}");
        let this = from_json(&object, &decl).expect("the object follows the schema");
        assert_eq!(program.eval(&[("self", this)]).cost, actual, "{expression}");
    }
}
