//! Tests of evaluation, by table: the language, and every library of Kubernetes.

use corten_cel::schema::Decl;
use corten_cel::value::{from_json, to_json};
use corten_cel::{Env, Error, Type, Value};
use serde_json::{Value as Json, json};

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

fn all_true(expressions: &[&str]) {
    for expression in expressions {
        assert_eq!(eval(expression), Ok(json!(true)), "{expression}");
    }
}

/// A message of protobuf is at once the value that it represents.
#[test]
fn messages_represent_values() {
    all_true(&[
        "google.protobuf.BoolValue{value: true}",
        "google.protobuf.Int64Value{value: 1} == 1 && google.protobuf.Int64Value{} != null",
        "google.protobuf.UInt32Value{} == 0u && google.protobuf.StringValue{} == '' && google.protobuf.BytesValue{} == b''",
        "[google.protobuf.Int64Value{value: 2}, 1].sum() == 3 && type(google.protobuf.Int32Value{}) == int",
        "google.protobuf.Value{} == null && google.protobuf.Value{number_value: 1.5} == 1.5",
        "google.protobuf.Struct{fields: {'a': 1}}.a == 1 && type(google.protobuf.Struct{fields: {'a': 1}}.a) == double",
        "google.protobuf.ListValue{values: [9007199254740993]}[0] == '9007199254740993'",
        "google.protobuf.Duration{seconds: 1, nanos: 500000000} == duration('1.5s')",
        "google.protobuf.Timestamp{} == timestamp('1970-01-01T00:00:00Z')",
        "google.protobuf.Empty{} == google.protobuf.Empty{} && type(google.protobuf.Empty{}) == google.protobuf.Empty",
        "google.protobuf.NullValue.NULL_VALUE == 0",
        "google.protobuf.Any{type_url: 'a/google.protobuf.Int32Value', value: b'\\x08\\x05\\x12\\x00\\x08\\x06'} == 6",
        "google.protobuf.Any{type_url: 'google.protobuf.UInt64Value'} == 0u",
        "google.protobuf.Any{type_url: '/google.protobuf.StringValue', value: b'\\x0a\\x02ab'} == 'ab'",
        "google.protobuf.Any{type_url: '/google.protobuf.FloatValue', value: b'\\x0d\\x00\\x00\\xc0\\x3f'} == 1.5",
        "google.protobuf.Any{type_url: '/google.protobuf.Duration', value: b'\\x08\\x05'} == duration('5s')",
        "google.protobuf.Any{type_url: '/google.protobuf.Struct', value: b'\\x0a\\x07\\x0a\\x01a\\x12\\x02\\x20\\x01'}.a",
        "google.protobuf.Any{type_url: '/google.protobuf.ListValue', value: b'\\x0a\\x03\\x1a\\x01z'} == ['z']",
        "google.protobuf.Any{type_url: '/google.protobuf.Value'} == null",
        "google.protobuf.Any{type_url: '/google.protobuf.Empty'} == google.protobuf.Empty{}",
        "(true ? null : google.protobuf.Int64Value{value: 1}) == null",
    ]);
}

#[test]
fn the_language() {
    all_true(&[
        "1 + 2 * 3 == 7",
        "-(2) == -2 && !false && !!true",
        "7 / 2 == 3 && 7 % 2 == 1 && -7 / 2 == -3",
        "1 < 2u && 2u > 1 && dyn(1) == 1.0 && dyn(1u) == 1 && 1.5 > 1",
        "'a' + 'b' == \"ab\" && r'\\d' == '\\\\d' && '\\u00e9' == 'é'",
        "b'a' + b'b' == b'ab' && size(b'\\xff') == 1",
        "[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2] && !(5 in [1])",
        "{'a': 1}.a == 1 && {'a': 1}['a'] == 1 && 'a' in {'a': 1} && {1: 'x'}[dyn(1u)] == 'x'",
        "true ? 1 == 1 : 1 / 0 == 0",
        "true || 1 / 0 == 0",
        "1 / 0 == 0 || true",
        "!(1 / 0 == 0 && false)",
        "[1, 2, 3].all(x, x > 0) && [1, 2].exists(x, x == 2) && [1, 2, 2].exists_one(x, x == 1)",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6] && [1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "[1, 2, 3].filter(x, x > 1) == [2, 3] && {'a': 1}.all(k, k == 'a')",
        "[[1, 2], [3]].all(l, l.all(x, x > 0)) && [[1], [2]].map(l, l.map(x, x + 1)) == [[2], [3]]",
        "['a', 'b'].all(i, v, (i == 0) == (v == 'a')) && {'k': 5}.exists(k, v, k == 'k' && v == 5)",
        "[1, 2].transformList(i, v, i + v) == [1, 3] && {'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "{'a': 'b'}.transformMapEntry(k, v, {v: k}) == {'b': 'a'} && [1, 2, 3].transformList(i, v, v > 1, v) == [2, 3]",
        "type(1) == int && type('') == string && type([]) == list && type(null) == null_type && type(int) == type",
        "int('42') == 42 && string(42) == '42' && double('1.5') == 1.5 && uint(3) == 3u && bool('true')",
        "string(1.0) == '1' && string(1000000.0) == '1e+06' && string(0.00001) == '1e-05' && string(1.5) == '1.5'",
        "bytes('é').size() == 2 && string(b'hi') == 'hi' && size('é') == 1",
        "dyn([1, 'a'.size()]) == [1, 1] && [1, 2].size() == 2",
    ]);
}

#[test]
fn objects_are_seen_by_their_schema() {
    all_true(&[
        "self.name == 'web' && self.count == 3 && self.ratio == 2.0 && type(self.ratio) == double",
        "self.metadata.name == 'thing' && self.kind == 'Thing'",
        "has(self.name) && !has(self.metadata.generateName) && has(self.labels.app) && !has(self.labels.none)",
        "has(has(self.name))",
        "self.a__dot__b__dash__c == 'escaped' && self.__namespace__ == 'ns'",
        "type(self.port) == string && self.port == 'http'",
        "self.at.getFullYear() == 2026 && self.at.getMonth() == 0 && self.at.getDate() == 2 && self.at.getHours('+01:00') == 4",
        "self.__for__.getSeconds() == 90 && self.__for__ > duration('1m') && string(self.__for__) == '90s'",
        "self.data == b'hi'",
        "self.tags == ['y', 'x'] && self.tags + ['y', 'z'] == ['x', 'y', 'z']",
        "self.ports[0].port == 1 && (self.ports + self.ports).size() == 2",
        "self.labels.map(k, self.labels[k]) == ['web', 'front']",
        "self.ports.exists(p, p.name == 'b' && p.port == 2)",
        "any.count == 3 && any.ports[1].name == 'b' && has(any.maybe) && any.maybe == null && type(any.ratio) == int",
        "!has(self.maybe) && [self].all(x, !has(x.maybe))",
        "self.at + self.__for__ > self.at && self.at - duration('1h') < self.at",
        "timestamp('2026-01-02T03:04:05Z') == self.at && int(self.at) == 1767323045",
    ]);
}

#[test]
fn optionals() {
    all_true(&[
        "self.?name.orValue('x') == 'web' && self.metadata.?generateName.orValue('x') == 'x'",
        "optional.of(1).hasValue() && !optional.none().hasValue() && optional.of(3).value() == 3",
        "self.labels[?'app'].orValue('') == 'web' && !self.labels[?'none'].hasValue() && [1][?5].orValue(9) == 9",
        "optional.ofNonZeroValue('').or(optional.of('x')).value() == 'x'",
        "[?optional.of(1), ?optional.none()] == [1] && {?'a': optional.none(), 'b': 1} == {'b': 1}",
        "optional.of(2).optMap(x, x * 2).value() == 4 && !optional.none().optMap(x, x).hasValue()",
        "optional.of(2).optFlatMap(x, optional.of(x + 1)).value() == 3",
        "self.?metadata.?generateName.orValue('none') == 'none' && any.?nothing.?at.all == optional.none()",
        "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && optional.unwrap([optional.of(1), optional.none()]) == [1]",
    ]);
}

#[test]
fn strings_and_lists() {
    all_true(&[
        "'hello'.charAt(4) == 'o' && 'hello'.charAt(5) == '' && 'hello'.indexOf('l') == 2 && 'hello'.indexOf('l', 3) == 3",
        "'hello'.lastIndexOf('l') == 3 && 'hello'.lastIndexOf('l', 2) == 2 && 'x'.indexOf('') == 0",
        "'Ab'.lowerAscii() == 'ab' && 'Ab'.upperAscii() == 'AB' && ' x '.trim() == 'x'",
        "'aaa'.replace('a', 'b') == 'bbb' && 'aaa'.replace('a', 'b', 2) == 'bba' && 'ab'.replace('', '-') == '-a-b-'",
        "'a,b,c'.split(',') == ['a', 'b', 'c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c'] && 'ab'.split('') == ['a', 'b']",
        "'tacocat'.substring(4) == 'cat' && 'tacocat'.substring(0, 4) == 'taco' && ['a', 'b'].join('-') == 'a-b'",
        "strings.quote('a\"b') == '\"a\\\\\"b\"'",
        "'%s is %d, %.2f, %x, %b, %s'.format([dyn('a'), 5, 1.234, 255, 5, [1, 2]]) == 'a is 5, 1.23, ff, 101, [1, 2]'",
        "'%f, %.0f, %e'.format([-1234567.5, 999.5, 0.0012]) == '-1,234,567.500000, 1,000, 1.200000×10⁻⁰³'",
        "'%f %.5e|%s'.format([1.0 / 0.0, 'NaN', -1.0 / 0.0]) == '∞   NaN|-Inf'",
        "'%s'.format([['a', 'b']]) == '[\"a\", \"b\"]' && '%s'.format([{'b': 2.0, 'a': 1.5}]) == '{\"a\":1.500000, \"b\":2.000000}'",
        "'%s'.format([[duration('90s')]]) == '[duration(\"90s\")]' && '%s'.format([[type(1), null]]) == '[int, null]'",
        "'abc'.contains('b') && 'abc'.startsWith('ab') && 'abc'.endsWith('c') && 'abc'.matches('^a.c$')",
        "'abc 123'.find('[0-9]+') == '123' && '1 2'.findAll('[0-9]') == ['1', '2'] && '1 2'.findAll('[0-9]', 1) == ['1']",
        "[1, 2, 3].isSorted() && ![2, 1].isSorted() && [1, 2].sum() == 3 && [1.5, 2.0].sum() == 3.5",
        "[1, 3, 2].max() == 3 && ['b', 'a'].min() == 'a' && [1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2",
        "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2]].flatten() == [1, 2] && [2, 1].sort() == [1, 2]",
        "[{'n': 2}, {'n': 1}].sortBy(x, x.n)[0].n == 1 && lists.range(3) == [0, 1, 2] && [1, 2].reverse() == [2, 1]",
        "[1, 1, 2].distinct() == [1, 2]",
        "sets.contains([1, 2], [2]) && sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1], [1, 2])",
    ]);
}

#[test]
fn kubernetes_types() {
    all_true(&[
        "quantity('1.5Gi').isGreaterThan(quantity('1Gi')) && quantity('1k') == quantity('1000') && isQuantity('5m')",
        "quantity('500m').add(quantity('500m')) == quantity('1') && quantity('3').sub(1).asInteger() == 2",
        "!quantity('500m').isInteger() && quantity('500m').asApproximateFloat() == 0.5 && sign(quantity('-1')) == -1",
        "quantity('1').compareTo(quantity('2')) == -1 && quantity('50M').isLessThan(quantity('50Mi')) && !isQuantity('x')",
        "ip('127.0.0.1').isLoopback() && ip('::1').family() == 6 && isIP('1.2.3.4') && !isIP('1.2.3') && !isIP('fe80::1%eth0')",
        "ip.isCanonical('::1') && !ip.isCanonical('0:0::1') && string(ip('1.2.3.4')) == '1.2.3.4'",
        "ip('8.8.8.8').isGlobalUnicast() && ip('169.254.0.1').isLinkLocalUnicast() && ip('0.0.0.0').isUnspecified()",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3')) && isCIDR('10.0.0.0/8')",
        "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
        "cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8') && cidr('10.0.0.0/8').prefixLength() == 8 && cidr('10.0.0.0/8').ip() == ip('10.0.0.0')",
        "url('https://u@example.com:80/a/b?x=1&x=2').getHost() == 'example.com:80' && isURL('/path') && !isURL('../x')",
        "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80' && url('https://a/b c').getEscapedPath() == '/b%20c'",
        "url('http://a/?x=1&x=2').getQuery() == {'x': ['1', '2']} && url('http://a').getScheme() == 'http'",
        "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').compareTo(semver('1.0.0')) == -1 && isSemver('1.0.0')",
        "!isSemver('v1.0') && isSemver('v1.0', true) && semver('v01.02', true).minor() == 2 && semver('1.2.3').patch() == 3",
        "!format.dns1123Label().validate('web').hasValue() && format.dns1123Label().validate('We').hasValue()",
        "format.named('uuid').value().validate('x').value() == ['does not match the UUID format'] && !format.named('x').hasValue()",
        "!format.dns1123LabelPrefix().validate('web-').hasValue() && !format.uri().validate('http://a').hasValue()",
        "jsonpatch.escapeKey('a/b~c') == 'a~1b~0c'",
    ]);
}

#[test]
fn errors_are_those_of_upstream() {
    for (expression, error) in [
        ("{'a': 1}['b'] == 1", "no such key: b"),
        ("any.missing == 1", "no such key: missing"),
        ("[1][5] == 1", "index out of bounds: 5"),
        ("1 / 0 == 1", "division by zero"),
        ("1 % 0 == 1", "modulus by zero"),
        ("9223372036854775807 + 1 == 0", "integer overflow"),
        ("any.name + 1 == 2", "no such overload: _+_(string, int)"),
        ("[].max() == 1", "max called on empty list"),
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("lists.range(1000000000).size() == 1", "operation cancelled: actual cost limit exceeded"),
        (
            "lists.range(100000).all(x, lists.range(100000).all(y, true))",
            "operation cancelled: actual cost limit exceeded",
        ),
    ] {
        assert_eq!(eval(expression), Err(error.to_owned()), "{expression}");
    }
}

#[test]
fn compile_errors_have_a_position() {
    for (expression, error) in [
        ("self.nme == 'x'", "ERROR: <input>:1:5: undefined field 'nme'\n | self.nme == 'x'\n | ....^"),
        (
            "self.count == 'x'",
            "ERROR: <input>:1:12: found no matching overload for '_==_' applied to '(int, string)'\n | self.count == 'x'\n | ...........^",
        ),
        (
            "nothing > 1",
            "ERROR: <input>:1:1: undeclared reference to 'nothing' (in container '')\n | nothing > 1\n | ^",
        ),
        (
            "self.count.x == 1",
            "ERROR: <input>:1:11: type 'int' does not support field selection\n | self.count.x == 1\n | ..........^",
        ),
        (
            "self.foo(1)",
            "ERROR: <input>:1:9: undeclared reference to 'foo' (in container '')\n | self.foo(1)\n | ........^",
        ),
        (
            "'%d'.format([[1]]) == ''",
            "ERROR: <input>:1:14: error during formatting: decimal clause can only be used on integers, was given list\n | '%d'.format([[1]]) == ''\n | .............^",
        ),
        (
            "'%s'.format([[optional.none()]]) == ''",
            "ERROR: <input>:1:28: error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given optional_type\n | '%s'.format([[optional.none()]]) == ''\n | ...........................^",
        ),
        (
            "'a'.format([1]) == ''",
            "ERROR: <input>:1:11: too many arguments supplied to string.format (expected 0, got 1)\n | 'a'.format([1]) == ''\n | ..........^",
        ),
        (
            "'%s'.format([]) == ''",
            "ERROR: <input>:1:12: index 0 out of range\n | '%s'.format([]) == ''\n | ...........^",
        ),
        ("'a'.find('[') == ''", "error parsing regexp: unclosed character class: `[`"),
        ("[1, 'a'] == []", "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a'] == []\n | ....^"),
        (
            "[1, dyn(2)] == []",
            "ERROR: <input>:1:8: expected type 'int' but found 'dyn'\n | [1, dyn(2)] == []\n | .......^",
        ),
        // The types of literals' elements are checked only without other errors.
        (
            "[1, 'a'] == x",
            "ERROR: <input>:1:13: undeclared reference to 'x' (in container '')\n | [1, 'a'] == x\n | ............^",
        ),
        (
            "1u.format(['a']) == ''",
            "ERROR: <input>:1:10: found no matching overload for 'format' applied to 'uint.(list(string))'\n | 1u.format(['a']) == ''\n | .........^",
        ),
        (
            "quantity('1').x == 1",
            "ERROR: <input>:1:14: unexpected failed resolution of 'kubernetes.Quantity'\n | quantity('1').x == 1\n | .............^",
        ),
        (
            "has(1) || has(2)",
            "ERROR: <input>:1:5: invalid argument to has() macro\n | has(1) || has(2)\n | ....^\nERROR: <input>:1:15: invalid argument to has() macro\n | has(1) || has(2)\n | ..............^",
        ),
        (
            "cel.bind(x, 1, x) == 1",
            "ERROR: <input>:1:1: undeclared reference to 'cel' (in container '')\n | cel.bind(x, 1, x) == 1\n | ^\nERROR: <input>:1:9: undeclared reference to 'bind' (in container '')\n | cel.bind(x, 1, x) == 1\n | ........^\nERROR: <input>:1:10: undeclared reference to 'x' (in container '')\n | cel.bind(x, 1, x) == 1\n | .........^\nERROR: <input>:1:16: undeclared reference to 'x' (in container '')\n | cel.bind(x, 1, x) == 1\n | ...............^",
        ),
        (
            "self.name.matches('(') == true",
            "ERROR: <input>:1:19: invalid matches argument\n | self.name.matches('(') == true\n | ..................^",
        ),
        ("has(self)", "ERROR: <input>:1:5: invalid argument to has() macro\n | has(self)\n | ....^"),
        (
            "self.count && true",
            "ERROR: <input>:1:5: expected type 'bool' but found 'int'\n | self.count && true\n | ....^",
        ),
        (
            "google.protobuf.Int64Value{value: 'a'} == 1",
            "ERROR: <input>:1:33: expected type of field 'value' is 'int' but provided type is 'string'\n | google.protobuf.Int64Value{value: 'a'} == 1\n | ................................^",
        ),
        (
            "google.protobuf.BoolValue{foo: 1}",
            "ERROR: <input>:1:30: undefined field 'foo'\n | google.protobuf.BoolValue{foo: 1}\n | .............................^",
        ),
        (
            "google.protobuf.Foo{} == 1",
            "ERROR: <input>:1:20: undeclared reference to 'google.protobuf.Foo' (in container '')\n | google.protobuf.Foo{} == 1\n | ...................^",
        ),
        (
            "google.protobuf.BoolValue{} == 'a'",
            "ERROR: <input>:1:29: found no matching overload for '_==_' applied to '(wrapper(bool), string)'\n | google.protobuf.BoolValue{} == 'a'\n | ............................^",
        ),
        (
            "int{a: 1}",
            "ERROR: <input>:1:4: 'int' is not a message type\n | int{a: 1}\n | ...^\nERROR: <input>:1:6: undefined field 'a'\n | int{a: 1}\n | .....^",
        ),
        ("self{}", "ERROR: <input>:1:5: 'selfType' is not a type\n | self{}\n | ....^"),
        ("google.protobuf.BoolValue == bool", "reference to undefined type: google.protobuf.BoolValue"),
        ("timestamp == int", "reference to undefined type: timestamp"),
        (
            "google.protobuf.Int32Value{value: 2147483648} == 1",
            "field type conversion error for google.protobuf.Int32Value.value value type: integer overflow",
        ),
        (
            "google.protobuf.BoolValue{value: dyn(1)}",
            "field type conversion error for google.protobuf.BoolValue.value value type: unsupported type conversion from 'int' to bool",
        ),
        (
            "google.protobuf.Any{type_url: 'a'} == 1",
            "unsupported conversion to ref.Val: (*dynamicpb.Message)type_url:\"a\"",
        ),
        ("duration{} == duration('0s')", "unknown type 'duration'"),
        // An unknown type variable is shown by its number.
        (
            "[] || {}",
            "ERROR: <input>:1:1: expected type 'bool' but found 'list(_var0)'\n | [] || {}\n | ^\nERROR: <input>:1:7: expected type 'bool' but found 'map(_var1, _var2)'\n | [] || {}\n | ......^",
        ),
        // An unterminated string begins at the quote; the prefix before it is a name.
        ("b'ab", "ERROR: <input>:1:2: Syntax error: token recognition error at: ''ab'\n | b'ab\n | .^"),
        ("type && true", "ERROR: <input>:1:1: expected type 'bool' but found 'type(type)'\n | type && true\n | ^"),
        (
            "self.count.all(x, x)",
            "ERROR: <input>:1:5: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | self.count.all(x, x)\n | ....^",
        ),
    ] {
        assert_eq!(eval(expression), Err(error.to_owned()), "{expression}");
    }
}
