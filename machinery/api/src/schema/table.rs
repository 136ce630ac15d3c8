//! The parser of the schema table. The table is part of the program, so an invalid line is a bug and panics; the test
//! below reads every line.

use std::collections::BTreeMap;

use corten_meta::Value;

use super::defaults::{is_real, written_zero};
use super::quantities::holds_quantities;
use super::{Field, FieldType, ListType, Presence, Schema, Type, TypeId, beginning};
use super::{gated, introduced};

const INVALID: &str = "the schema table is well formed";

/// Builds the schema; names are numbered first, so that a type may refer to a later one.
pub(super) fn parse(table: &str) -> Schema {
    let lines = || table.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let mut by_name = BTreeMap::new();
    for (number, name) in lines().filter_map(type_name).enumerate() {
        by_name.insert(name, TypeId(number));
    }
    let mut types: Vec<Type> = Vec::with_capacity(by_name.len());
    for line in lines() {
        match line.strip_prefix("T ") {
            Some(rest) => types.push(parse_type(rest, &by_name)),
            None => types.last_mut().expect(INVALID).fields.push(parse_field(line, &by_name)),
        }
    }
    for t in &mut types {
        t.declared = declared_order(&mut t.fields);
        t.beginnings = t.fields.iter().map(|field| beginning(&field.name)).collect();
        let has_default = |at: &usize| is_real(&t.fields[*at]);
        t.defaults = (0..t.fields.len()).filter(has_default).collect();
    }
    mark(&mut types, |t| &mut t.zeros, |_, field| written_zero(field).is_some());
    mark(&mut types, |t| &mut t.quantities, |_, field| holds_quantities(&field.kind));
    mark(&mut types, |t| &mut t.gated, |t, field| gated::fields_of(&t.name).contains(&field.name.as_str()));
    mark(&mut types, |t| &mut t.introduced, |t, field| introduced::since(&t.name, &field.name).is_some());
    Schema { types, by_name }
}

/// Sorts fields by name, for lookups, and returns their original order.
fn declared_order(fields: &mut Vec<Field>) -> Vec<usize> {
    let mut by_name: Vec<(usize, Field)> = std::mem::take(fields).into_iter().enumerate().collect();
    by_name.sort_unstable_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let mut declared = vec![0; by_name.len()];
    for (now, (before, field)) in by_name.into_iter().enumerate() {
        declared[before] = now;
        fields.push(field);
    }
    declared
}

/// Finds for every type the fields that a walk must visit: its targets, and the fields that lead to them. Types refer
/// to each other in cycles, so this repeats until nothing is added.
fn mark(types: &mut [Type], marks: fn(&mut Type) -> &mut Vec<usize>, is_meant: fn(&Type, &Field) -> bool) {
    loop {
        let leads: Vec<bool> = types.iter_mut().map(|t| !marks(t).is_empty()).collect();
        let mut changed = false;
        for t in types.iter_mut() {
            let looks =
                |field: &Field| is_meant(t, field) || innermost(&field.kind).is_some_and(|TypeId(id)| leads[id]);
            let found: Vec<usize> = (0..t.fields.len()).filter(|at| looks(&t.fields[*at])).collect();
            changed |= found != *marks(t);
            *marks(t) = found;
        }
        if !changed {
            return;
        }
    }
}

/// Returns the innermost type of a field's values.
fn innermost(kind: &FieldType) -> Option<TypeId> {
    match kind {
        FieldType::Ref(id) => Some(*id),
        FieldType::List(inner) | FieldType::Map(inner) => innermost(inner),
        _ => None,
    }
}

fn type_name(line: &str) -> Option<String> {
    line.strip_prefix("T ").and_then(|rest| rest.split(' ').next()).map(full)
}

/// Returns the full name of a type: a leading dot stands for the package of most types.
fn full(name: &str) -> String {
    match name.strip_prefix('.') {
        Some(rest) => format!("io.k8s.api.{rest}"),
        None => name.to_string(),
    }
}

fn parse_type(line: &str, names: &BTreeMap<String, TypeId>) -> Type {
    let (name, marks) = line.split_once(' ').unwrap_or((line, ""));
    let mut parsed = Type {
        name: full(name),
        fields: Vec::new(),
        beginnings: Vec::new(),
        declared: Vec::new(),
        scalar: None,
        atomic: false,
        gvk: None,
        unions: None,
        zeros: Vec::new(),
        quantities: Vec::new(),
        gated: Vec::new(),
        introduced: Vec::new(),
        defaults: Vec::new(),
    };
    for mark in marks.split(' ').filter(|m| !m.is_empty()) {
        match mark.split_once('=') {
            Some(("map", kind)) => parsed.atomic = kind == "atomic",
            Some(("gvk", gvk)) => {
                let mut parts = gvk.split('/').map(str::to_string);
                let mut part = || parts.next().expect(INVALID);
                parsed.gvk = Some((part(), part(), part()));
            }
            Some(("unions", json)) => parsed.unions = Some(serde_json::from_str(json).expect(INVALID)),
            _ => parsed.scalar = Some(well_known(&parsed.name).unwrap_or_else(|| parse_shape(mark, names).0)),
        }
    }
    parsed
}

fn parse_field(line: &str, names: &BTreeMap<String, TypeId>) -> Field {
    let mut words = line.split(' ');
    let name = words.next().expect(INVALID).to_string();
    let (kind, item_default) = parse_shape(words.next().expect(INVALID), names);
    let mut field = Field {
        name,
        kind,
        required: false,
        default: None,
        item_default,
        list_type: None,
        atomic: false,
        granular: false,
        patch_merge_key: None,
        patch_strategy: Vec::new(),
        presence: Presence::default(),
        type_name: None,
        inlined_from: None,
        values: Vec::new(),
    };
    for mark in words {
        match mark.split_once('=') {
            None if mark.starts_with('~') => {
                let (presence, name) = mark.split_once(':').unwrap_or((mark, ""));
                field.presence = parse_presence(presence);
                field.type_name = Some(name).filter(|n| !n.is_empty()).map(str::to_string);
            }
            None if mark.starts_with('^') => field.inlined_from = mark.get(1..).map(str::to_string),
            None => field.required = true,
            Some(("", json)) => field.default = Some(serde_json::from_str(json).expect(INVALID)),
            Some(("list", "atomic")) => field.list_type = Some(ListType::Atomic),
            Some(("list", "set")) => field.list_type = Some(ListType::Set),
            Some(("list", _)) => field.list_type = Some(ListType::Map(Vec::new())),
            Some(("keys", keys)) => {
                field.list_type = Some(ListType::Map(keys.split(',').map(str::to_string).collect()));
            }
            Some(("strategy", all)) => field.patch_strategy = all.split(',').map(str::to_string).collect(),
            Some(("enum", all)) => field.values = all.split(',').map(|value| value.replace('_', " ")).collect(),
            Some(("merge", key)) => field.patch_merge_key = Some(key.to_string()),
            Some(("map", kind)) => {
                field.atomic = kind == "atomic";
                field.granular = kind == "granular";
            }
            Some(_) => unreachable!("{INVALID}: {line}"),
        }
    }
    field
}

fn parse_presence(mark: &str) -> Presence {
    Presence { is_pointer: mark.contains('*'), is_always_written: mark.contains('0'), omits_zero: mark.contains('z') }
}

/// Parses a shape and the default inside it.
fn parse_shape(text: &str, names: &BTreeMap<String, TypeId>) -> (FieldType, Option<Value>) {
    if let Some(items) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let (kind, default) = parse_shape(items, names);
        return (FieldType::List(Box::new(kind)), default);
    }
    if let Some(values) = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        let (kind, default) = parse_shape(values, names);
        return (FieldType::Map(Box::new(kind)), default);
    }
    let (shape, default) = match text.split_once('=') {
        Some((shape, json)) => (shape, Some(serde_json::from_str(json).expect(INVALID))),
        None => (text, None),
    };
    let kind = match shape {
        "string" => FieldType::String,
        "int32" => FieldType::Integer("int32"),
        "int64" => FieldType::Integer("int64"),
        "integer" => FieldType::Integer(""),
        "double" => FieldType::Number("double"),
        "number" => FieldType::Number(""),
        "bool" => FieldType::Boolean,
        "bytes" => FieldType::Bytes,
        "date-time" => FieldType::Time,
        "object" => FieldType::Object,
        "any" => FieldType::Any,
        _ => {
            let name = full(shape.strip_prefix('@').expect(INVALID));
            well_known(&name).unwrap_or_else(|| FieldType::Ref(*names.get(&name).expect(INVALID)))
        }
    };
    (kind, default)
}

/// Returns the shape of a well-known type.
fn well_known(name: &str) -> Option<FieldType> {
    Some(match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => FieldType::Quantity,
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => FieldType::IntOrString,
        "io.k8s.apimachinery.pkg.apis.meta.v1.Time" => FieldType::Time,
        "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime" => FieldType::MicroTime,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::schema::{FieldType, ListType, schema};

    #[test]
    fn every_kind_and_its_list_has_a_type() {
        for kind in crate::kinds() {
            let found = schema().type_(&kind.schema).unwrap_or_else(|| panic!("{}", kind.schema));
            let gvk = (kind.group.clone(), kind.version.clone(), kind.kind.clone());
            assert_eq!(found.gvk, Some(gvk));
            assert!(found.field("metadata").is_some(), "{}", kind.schema);
        }
    }

    #[test]
    fn marks_are_read() {
        let spec = schema().type_("io.k8s.api.core.v1.PodSpec").expect("PodSpec");
        let containers = spec.field("containers").expect("containers");
        assert!(containers.required);
        assert_eq!(containers.patch_merge_key.as_deref(), Some("name"));
        assert_eq!(containers.list_type, Some(ListType::Map(vec!["name".to_string()])));
        assert_eq!(spec.field("volumes").expect("volumes").patch_strategy, ["merge", "retainKeys"]);
        let container = schema().type_("io.k8s.api.core.v1.ContainerPort").expect("ContainerPort");
        assert_eq!(container.field("protocol").expect("protocol").default, Some("TCP".into()));
        let limits = schema().type_("io.k8s.api.core.v1.ResourceRequirements").expect("type");
        assert_eq!(limits.field("limits").expect("limits").kind, FieldType::Map(Box::new(FieldType::Quantity)));
    }

    #[test]
    fn fields_are_sorted_so_that_they_can_be_found() {
        for t in schema().types() {
            assert!(t.fields.is_sorted_by(|a, b| a.name < b.name), "{}", t.name);
            for field in &t.fields {
                assert_eq!(t.field(&field.name).map(|found| &found.name), Some(&field.name), "{}", t.name);
                assert!(t.field(&format!("{}\0", field.name)).is_none(), "{}", t.name);
            }
            assert!(t.field("").is_none() && t.field("\0").is_none() && t.field("zzzzzzzzz").is_none(), "{}", t.name);
        }
    }
}
