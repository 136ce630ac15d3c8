//! What a selector of devices can speak of. One place for those who judge a selector and those who select by it.

use std::collections::BTreeMap;

use crate::env::type_name;
use crate::{CompileError, Env, Program, Type};

/// The environment with `device`: its driver, and by domain its attributes and capacities.
pub fn environment() -> Env {
    const DEVICE: &str = "kubernetes.DRADevice";
    let of_domain = |of: Type| Type::map(Type::String, Type::map(Type::String, of));
    let fields = BTreeMap::from([
        ("driver".to_owned(), Type::String),
        ("attributes".to_owned(), of_domain(Type::Any)),
        ("capacity".to_owned(), of_domain(Type::named("kubernetes.Quantity"))),
        ("allowMultipleAllocations".to_owned(), Type::Bool),
    ]);
    Env::new().binding().message(DEVICE, fields).variable("device", Type::named(DEVICE))
}

/// Compiles a selector: true or false, or an attribute alone, whose type shows when there is a device.
pub fn compile(env: &Env, text: &str) -> Result<Program, CompileError> {
    match env.compile(text, &[Type::Bool]) {
        Err(CompileError::Output(_, found)) if found == type_name(&Type::Any) => env.compile(text, &[]),
        compiled => compiled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_may_name_values_and_results_are_told_by_their_full_name() {
        let compile = |text: &str| compile(&environment(), text).map(|_| ());
        assert_eq!(compile("device.attributes['x'].isVirtual"), Ok(()));
        assert_eq!(compile("cel.bind(a, device.attributes['x'], has(a.b) && a.b == 1)"), Ok(()));
        assert_eq!(compile("true ? 1 : device.attributes['x'].y"), Ok(()));
        let wrong = compile("dyn(true)");
        let wanted = "must evaluate to bool".to_owned();
        assert_eq!(wrong, Err(CompileError::Output(wanted, "dyn".to_owned())));
        let wrong = compile("device.attributes['x'].y.all(z, z == 1)");
        let wrong = format!("{wrong:?}");
        assert!(wrong.contains("expression of type 'any' cannot be range of a comprehension"), "{wrong}");
        let wrong = compile("[timestamp('2020-01-01T00:00:00Z')]");
        let wanted = "must evaluate to bool".to_owned();
        assert_eq!(wrong, Err(CompileError::Output(wanted, "list(google.protobuf.Timestamp)".to_owned())));
    }
}
