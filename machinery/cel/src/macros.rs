//! Macros: calls that stand for comprehensions and presence tests, expanded by the parser.
//!
//! There is one function per shape; the table at the top lists the calls. A call that is no macro stays a plain call.

use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Comprehension, Expr, ExprKind, Literal};
use crate::nodes::Nodes;
use crate::source::Issue;

/// The accumulator's name in older expressions.
const OLD_ACCUMULATOR: &str = "__result__";
/// The variable of a range that is not iterated.
const UNUSED: &str = "#unused";
const SORT_BY_INPUT: &str = "@__sortBy_input__";
/// The variable of the optional that `optMap` unwraps.
pub const OPTIONAL_INPUT: &str = "@optional_input";

/// Returns a call, or its expansion if it is a macro.
pub fn call(
    nodes: &mut Nodes,
    offset: u32,
    function: &str,
    target: Option<Expr>,
    args: Vec<Expr>,
) -> Result<Expr, Issue> {
    let Some(target) = target else {
        return match (function, args.len()) {
            ("has", 1) => has(nodes, offset, args),
            _ => Ok(nodes.call(offset, function, args)),
        };
    };
    let is_cel = matches!(&target.kind, ExprKind::Ident(name) if &**name == "cel");
    let mut args = args;
    if nodes.binds && is_cel && function == "bind" {
        match <[Expr; 3]>::try_from(args) {
            Ok(parts) => return bind(nodes, offset, parts),
            Err(others) => args = others,
        }
    }
    let mut build = Build { nodes, offset };
    match (function, args.len()) {
        ("all" | "exists" | "exists_one" | "existsOne", 2) => {
            let variables = build.one(&args[0], "argument must be a simple name")?;
            let predicate = args.remove(1);
            build.quantifier(function, target, variables, predicate)
        }
        ("all" | "exists" | "exists_one" | "existsOne", 3) => {
            let variables = build.two(&args)?;
            let predicate = args.remove(2);
            build.quantifier(function, target, variables, predicate)
        }
        ("map", 2 | 3) => {
            let variables = build.one(&args[0], "argument is not an identifier")?;
            build.map(target, variables, args.split_off(1))
        }
        ("filter", 2) => {
            let variables = build.one(&args[0], "argument is not an identifier")?;
            let predicate = args.remove(1);
            build.filter(target, variables, predicate)
        }
        ("transformList", 3 | 4) => {
            let variables = build.two(&args)?;
            build.map(target, variables, args.split_off(2))
        }
        ("transformMap" | "transformMapEntry", 3 | 4) => {
            let variables = build.two(&args)?;
            build.transform_map(target, variables, args.split_off(2), function == "transformMapEntry")
        }
        ("optMap" | "optFlatMap", 2) => {
            let name = build.name_of_optional(&args[0], function)?;
            let value = args.remove(1);
            build.optional_map(target, &name, value, function == "optFlatMap")
        }
        ("sortBy", 2) => build.sort_by(target, args),
        _ => Ok(build.nodes.member(offset, function, target, args)),
    }
}

fn has(nodes: &mut Nodes, offset: u32, mut args: Vec<Expr>) -> Result<Expr, Issue> {
    let arg = args.remove(0);
    match arg.kind {
        // A tested field may be tested again.
        ExprKind::Select { operand, field, .. } => {
            Ok(nodes.make(offset, ExprKind::Select { operand, field, test: true }))
        }
        _ => Err(Issue { offset: Some(arg.offset), message: "invalid argument to has() macro".to_owned() }),
    }
}

/// The variables of a comprehension.
type Variables = (Arc<str>, Option<Arc<str>>);

struct Build<'a> {
    nodes: &'a mut Nodes,
    offset: u32,
}

/// The parts of a comprehension besides its range.
struct Fold {
    init: Expr,
    condition: Expr,
    step: Expr,
    result: Expr,
}

/// Expands `cel.bind`: a name, its value, and the expression that uses it.
fn bind(nodes: &mut Nodes, offset: u32, [name, value, inside]: [Expr; 3]) -> Result<Expr, Issue> {
    let ExprKind::Ident(variable) = &name.kind else {
        let message = "cel.bind() variable names must be simple identifiers".to_owned();
        return Err(Issue { offset: Some(name.offset), message });
    };
    Ok(Build { nodes, offset }.bind(variable, value, inside))
}

impl Build<'_> {
    fn name(&self, expr: &Expr, message: &str) -> Result<Arc<str>, Issue> {
        let issue = |message: &str| Issue { offset: Some(expr.offset), message: message.to_owned() };
        match expr.as_ident() {
            None => Err(issue(message)),
            Some(name) if matches!(&**name, ACCUMULATOR | OLD_ACCUMULATOR) => {
                Err(issue("iteration variable overwrites accumulator variable"))
            }
            Some(name) => Ok(Arc::clone(name)),
        }
    }

    fn one(&self, expr: &Expr, message: &str) -> Result<Variables, Issue> {
        Ok((self.name(expr, message)?, None))
    }

    fn two(&self, args: &[Expr]) -> Result<Variables, Issue> {
        let first = self.name(&args[0], "argument must be a simple name")?;
        let second = self.name(&args[1], "argument must be a simple name")?;
        if first == second {
            let message = format!("duplicate variable name: {first}");
            return Err(Issue { offset: Some(args[1].offset), message });
        }
        Ok((first, Some(second)))
    }

    fn name_of_optional(&self, expr: &Expr, function: &str) -> Result<Arc<str>, Issue> {
        let message = format!("{function}() variable name must be a simple identifier");
        expr.as_ident().cloned().ok_or(Issue { offset: Some(expr.offset), message })
    }

    fn accumulator(&mut self) -> Expr {
        self.nodes.ident(self.offset, ACCUMULATOR)
    }

    fn bool(&mut self, value: bool) -> Expr {
        self.nodes.literal(self.offset, Literal::Bool(value))
    }

    fn int(&mut self, value: i64) -> Expr {
        self.nodes.literal(self.offset, Literal::Int(value))
    }

    fn call(&mut self, function: &str, args: Vec<Expr>) -> Expr {
        self.nodes.call(self.offset, function, args)
    }

    fn comprehension(&mut self, range: Expr, (variable, variable2): Variables, accumulator: &str, fold: Fold) -> Expr {
        let Fold { init, condition, step, result } = fold;
        let accumulator = accumulator.into();
        let kind = Comprehension { range, variable, variable2, accumulator, init, condition, step, result };
        self.nodes.make(self.offset, ExprKind::Comprehension(Box::new(kind)))
    }

    fn quantifier(&mut self, function: &str, range: Expr, variables: Variables, test: Expr) -> Result<Expr, Issue> {
        let result = self.accumulator();
        let fold = match function {
            "all" => {
                let init = self.bool(true);
                let accumulator = self.accumulator();
                let condition = self.call("@not_strictly_false", vec![accumulator]);
                let accumulator = self.accumulator();
                Fold { init, condition, step: self.call("_&&_", vec![accumulator, test]), result }
            }
            "exists" => {
                let init = self.bool(false);
                let accumulator = self.accumulator();
                let negated = self.call("!_", vec![accumulator]);
                let condition = self.call("@not_strictly_false", vec![negated]);
                let accumulator = self.accumulator();
                Fold { init, condition, step: self.call("_||_", vec![accumulator, test]), result }
            }
            _ => {
                let (init, condition, one, accumulator) =
                    (self.int(0), self.bool(true), self.int(1), self.accumulator());
                let more = self.call("_+_", vec![accumulator, one]);
                let accumulator = self.accumulator();
                let step = self.call("_?_:_", vec![test, more, accumulator]);
                let one = self.int(1);
                Fold { init, condition, step, result: self.call("_==_", vec![result, one]) }
            }
        };
        Ok(self.comprehension(range, variables, ACCUMULATOR, fold))
    }

    /// Expands `map`: appends the value of every element, optionally filtered by a predicate.
    fn map(&mut self, range: Expr, variables: Variables, mut args: Vec<Expr>) -> Result<Expr, Issue> {
        let Some(value) = args.pop() else { return Ok(range) };
        let fold = self.appending(value, args.pop());
        Ok(self.comprehension(range, variables, ACCUMULATOR, fold))
    }

    fn filter(&mut self, range: Expr, variables: Variables, predicate: Expr) -> Result<Expr, Issue> {
        let value = self.nodes.ident(self.offset, &variables.0);
        let fold = self.appending(value, Some(predicate));
        Ok(self.comprehension(range, variables, ACCUMULATOR, fold))
    }

    fn appending(&mut self, value: Expr, predicate: Option<Expr>) -> Fold {
        let item = self.nodes.list(self.offset, vec![value]);
        let accumulator = self.accumulator();
        let step = self.call("_+_", vec![accumulator, item]);
        let init = self.nodes.list(self.offset, Vec::new());
        self.collecting(init, step, predicate)
    }

    /// Collects by `step` the elements that satisfy the predicate.
    fn collecting(&mut self, init: Expr, step: Expr, predicate: Option<Expr>) -> Fold {
        let step = match predicate {
            None => step,
            Some(predicate) => {
                let accumulator = self.accumulator();
                self.call("_?_:_", vec![predicate, step, accumulator])
            }
        };
        Fold { init, condition: self.bool(true), step, result: self.accumulator() }
    }

    fn transform_map(
        &mut self,
        range: Expr,
        variables: Variables,
        mut args: Vec<Expr>,
        entries: bool,
    ) -> Result<Expr, Issue> {
        let Some(value) = args.pop() else { return Ok(range) };
        let accumulator = self.accumulator();
        let inserted = if entries {
            vec![accumulator, value]
        } else {
            let key = self.nodes.ident(self.offset, &variables.0);
            vec![accumulator, key, value]
        };
        let step = self.call("cel.@mapInsert", inserted);
        let init = self.nodes.make(self.offset, ExprKind::Map(Vec::new()));
        let fold = self.collecting(init, step, args.pop());
        Ok(self.comprehension(range, variables, ACCUMULATOR, fold))
    }

    /// Binds a name to a value within an expression.
    fn bind(&mut self, name: &str, value: Expr, inside: Expr) -> Expr {
        let range = self.nodes.list(self.offset, Vec::new());
        let condition = self.bool(false);
        let step = self.nodes.ident(self.offset, name);
        let fold = Fold { init: value, condition, step, result: inside };
        self.comprehension(range, (UNUSED.into(), None), name, fold)
    }

    /// Expands `optMap`. The target is bound to a variable: a copy of it, as cel-go makes, would double with every link
    /// of a chain.
    fn optional_map(&mut self, target: Expr, name: &str, value: Expr, flat: bool) -> Result<Expr, Issue> {
        let input = self.nodes.ident(self.offset, OPTIONAL_INPUT);
        let test = self.nodes.member(self.offset, "hasValue", input, Vec::new());
        let input = self.nodes.ident(self.offset, OPTIONAL_INPUT);
        let held = self.nodes.member(self.offset, "value", input, Vec::new());
        let mut bound = self.bind(name, held, value);
        if !flat {
            bound = self.call("optional.of", vec![bound]);
        }
        let none = self.call("optional.none", Vec::new());
        let chosen = self.call("_?_:_", vec![test, bound, none]);
        Ok(self.bind(OPTIONAL_INPUT, target, chosen))
    }

    fn sort_by(&mut self, target: Expr, mut args: Vec<Expr>) -> Result<Expr, Issue> {
        if matches!(target.kind, ExprKind::Literal(_) | ExprKind::Map(_) | ExprKind::Struct { .. }) {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Issue { offset: Some(target.offset), message: message.to_owned() });
        }
        let variables = self.one(&args[0], "argument is not an identifier")?;
        let input = self.nodes.ident(self.offset, SORT_BY_INPUT);
        let keys = self.map(input, variables, args.split_off(1))?;
        let input = self.nodes.ident(self.offset, SORT_BY_INPUT);
        let sorted = self.nodes.member(self.offset, "@sortByAssociatedKeys", input, vec![keys]);
        Ok(self.bind(SORT_BY_INPUT, target, sorted))
    }
}
