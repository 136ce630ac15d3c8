//! The environment of device selectors, shared by their validation and by the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::schema::{Decl, FieldDecl, Shape};
use crate::types::type_name;
use crate::{CompileError, Env, Program, Type};

const DEVICE: &str = "kubernetes.DRADevice";

/// The cost limit of a selector.
pub const MAX_COST: u64 = 1_000_000;

/// Returns the environment with `device`: its driver, and by domain its attributes and capacities.
pub fn environment() -> Env {
    let of_domain = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let fields = BTreeMap::from([
        ("driver".to_owned(), Type::String),
        ("attributes".to_owned(), of_domain(Type::Any)),
        ("capacity".to_owned(), of_domain(Type::named("kubernetes.Quantity"))),
        ("allowMultipleAllocations".to_owned(), Type::Bool),
    ]);
    let env = Env::new().binding().message(DEVICE, fields).variable("device", Type::named(DEVICE));
    env.sized_alone("device", Arc::new(sizes()))
}

/// Returns the limits of names, values and their number.
fn sizes() -> Decl {
    const ENTRIES: u64 = 32;
    let decl = |shape: Shape, max_elements: u64| Decl { shape, nullable: false, max_elements, min_size: 0 };
    let map = |value: Decl, key: u64| decl(Shape::Map { value: Box::new(value), key }, ENTRIES);
    let of_domain = |value: Decl| map(map(value, 32), 63);
    let field = |(name, decl): (&str, Decl)| (name.to_owned(), FieldDecl { name: name.to_owned(), decl });
    let fields = [
        ("driver", decl(Shape::String, 63)),
        ("attributes", of_domain(decl(Shape::Dyn, 64))),
        ("capacity", of_domain(decl(Shape::String, 0))),
        ("allowMultipleAllocations", decl(Shape::Bool, 1)),
    ];
    let fields = fields.into_iter().map(field).collect();
    decl(Shape::Object { name: DEVICE.into(), fields }, 0)
}

/// Compiles a selector: its value is a bool, or an attribute whose type is known only at evaluation.
pub fn compile(env: &Env, text: &str) -> Result<Program, CompileError> {
    match env.compile_never_null(text, &Type::Bool) {
        Err(CompileError::Output(_, found)) if found == type_name(&Type::Any) => env.compile(text, &[]),
        compiled => compiled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_may_bind_names_and_results_are_reported_by_their_full_name() {
        let compile = |text: &str| compile(&environment(), text).map(|_| ());
        assert_eq!(compile("device.attributes['x'].isVirtual"), Ok(()));
        assert_eq!(compile("cel.bind(a, device.attributes['x'], has(a.b) && a.b == 1)"), Ok(()));
        assert_eq!(compile("true ? 1 : device.attributes['x'].y"), Ok(()));
        let error = compile("dyn(true)");
        let wanted = "must evaluate to bool".to_owned();
        assert_eq!(error, Err(CompileError::Output(wanted, "dyn".to_owned())));
        let error = compile("device.attributes['x'].y.all(z, z == 1)");
        let error = format!("{error:?}");
        assert!(error.contains("expression of type 'any' cannot be range of a comprehension"), "{error}");
        let error = compile("[timestamp('2020-01-01T00:00:00Z')]");
        let wanted = "must evaluate to bool".to_owned();
        assert_eq!(error, Err(CompileError::Output(wanted, "list(google.protobuf.Timestamp)".to_owned())));
        let error = compile("google.protobuf.BoolValue{}");
        let wanted = "must evaluate to bool".to_owned();
        assert_eq!(error, Err(CompileError::Output(wanted, "wrapper(bool)".to_owned())));
    }

    #[test]
    fn only_the_device_has_a_known_size() {
        let env = environment();
        for (text, cheap) in [
            ("device.driver == device.driver", true),
            ("device.attributes['a'].b == device.attributes['a'].b", true),
            ("device.attributes.all(d, device.attributes[d].all(a, device.attributes[d][a] == 1))", true),
            ("type(1) == int", false),
            ("google.protobuf.Struct{}.exists(x, x == 'a')", false),
        ] {
            let program = compile(&env, text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(env.estimate(&program).max <= MAX_COST, cheap, "{text}");
        }
    }
}
