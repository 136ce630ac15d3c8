//! The syntax tree of an expression. The parser expands macros, so only eight kinds of nodes are left.
//!
//! Every node has its own id, by which the checker records types and overloads beside the tree.

use std::sync::Arc;

/// The accumulator variable of the comprehensions that macros make; no expression can name it.
pub const ACCUMULATOR: &str = "@result";

/// The functions that only convert a value to another type.
pub const CONVERSIONS: &[&str] =
    &["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

/// A node: its id, its offset in the source (in code points), and its kind.
#[derive(Debug, Clone)]
pub struct Expr {
    pub id: u32,
    pub offset: u32,
    /// The height of the tree below, so that no walk over the tree can exhaust the stack.
    pub depth: u32,
    pub kind: ExprKind,
}

#[derive(Debug, Clone)]
pub enum ExprKind {
    Literal(Literal),
    Ident(Arc<str>),
    /// A selection `operand.field`, or the test `has(operand.field)`.
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Box<Expr>>,
        args: Vec<Expr>,
    },
    List(Vec<Element>),
    Map(Vec<Entry>),
    /// A message: `Type{field: value}`.
    Struct {
        name: Arc<str>,
        fields: Vec<Field>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// An element of a list; an optional one is present only if it has a value.
#[derive(Debug, Clone)]
pub struct Element {
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub key: Expr,
    pub value: Expr,
    pub optional: bool,
}

#[derive(Debug, Clone)]
pub struct Field {
    pub offset: u32,
    pub name: Arc<str>,
    pub value: Expr,
    pub optional: bool,
}

/// A fold of a range into an accumulator.
#[derive(Debug, Clone)]
pub struct Comprehension {
    pub range: Expr,
    pub variable: Arc<str>,
    /// The second variable; with it the first is the index or key.
    pub variable2: Option<Arc<str>>,
    pub accumulator: Arc<str>,
    pub init: Expr,
    pub condition: Expr,
    pub step: Expr,
    pub result: Expr,
}

impl Comprehension {
    /// Reports whether it only binds a name to a value.
    pub fn is_bind(&self) -> bool {
        matches!(&self.range.kind, ExprKind::List(items) if items.is_empty())
            && matches!(self.condition.kind, ExprKind::Literal(Literal::Bool(false)))
            && &*self.accumulator != ACCUMULATOR
    }
}

impl Expr {
    /// Returns the name if the node is one.
    pub fn as_ident(&self) -> Option<&Arc<str>> {
        match &self.kind {
            ExprKind::Ident(name) => Some(name),
            _ => None,
        }
    }

    /// Returns `a.b.c` as one name if the node consists only of selections from a name.
    pub fn qualified_name(&self) -> Option<String> {
        match &self.kind {
            ExprKind::Ident(name) => Some(name.to_string()),
            ExprKind::Select { operand, field, test: false } => {
                let mut name = operand.qualified_name()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }

    /// Returns the children in the order of the source.
    pub fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            ExprKind::Literal(_) | ExprKind::Ident(_) => Vec::new(),
            ExprKind::Select { operand, .. } => vec![operand],
            ExprKind::Call { target, args, .. } => target.as_deref().into_iter().chain(args).collect(),
            ExprKind::List(items) => items.iter().map(|item| &item.value).collect(),
            ExprKind::Map(entries) => entries.iter().flat_map(|e| [&e.key, &e.value]).collect(),
            ExprKind::Struct { fields, .. } => fields.iter().map(|f| &f.value).collect(),
            ExprKind::Comprehension(c) => vec![&c.range, &c.init, &c.condition, &c.step, &c.result],
        }
    }

    /// Reports whether the value is known without evaluation.
    pub fn is_constant(&self) -> bool {
        match &self.kind {
            ExprKind::Literal(_) => true,
            ExprKind::List(items) => items.iter().all(|item| !item.optional && item.value.is_constant()),
            ExprKind::Map(entries) => {
                entries.iter().all(|e| !e.optional && e.key.is_constant() && e.value.is_constant())
            }
            // Conversions of constants are constants.
            ExprKind::Call { function, target: None, args } => {
                CONVERSIONS.contains(&&**function) && args.iter().all(Expr::is_constant)
            }
            _ => false,
        }
    }

    /// Reports whether it is an attribute: a name followed by fields and indexes. An attribute costs one step more than
    /// it has links.
    pub fn is_attribute(&self) -> bool {
        match &self.kind {
            ExprKind::Ident(_) => true,
            ExprKind::Select { test, .. } => !test,
            ExprKind::Call { function, .. } => matches!(&**function, "_[_]" | "_[?_]" | "_?._"),
            _ => false,
        }
    }
}
