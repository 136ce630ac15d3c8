//! The factory of nodes, which the parser and its macros share.

use crate::ast::{Element, Expr, ExprKind, Literal};
use crate::source::Issue;

/// Makes nodes, each with its own id.
#[derive(Default)]
pub struct Nodes {
    next: u32,
    /// Whether `cel.bind` is a macro.
    pub binds: bool,
    /// The errors of macros, after which parsing continues.
    pub issues: Vec<Issue>,
}

impl Nodes {
    pub fn new(binds: bool) -> Nodes {
        Nodes { binds, ..Nodes::default() }
    }

    pub fn make(&mut self, offset: u32, kind: ExprKind) -> Expr {
        let mut expr = Expr { id: self.next, offset, depth: 0, kind };
        self.next += 1;
        expr.depth = 1 + expr.children().iter().map(|child| child.depth).max().unwrap_or(0);
        expr
    }

    pub fn call(&mut self, offset: u32, function: &str, args: Vec<Expr>) -> Expr {
        self.make(offset, ExprKind::Call { function: function.into(), target: None, args })
    }

    pub fn member(&mut self, offset: u32, function: &str, target: Expr, args: Vec<Expr>) -> Expr {
        self.make(offset, ExprKind::Call { function: function.into(), target: Some(Box::new(target)), args })
    }

    pub fn ident(&mut self, offset: u32, name: &str) -> Expr {
        self.make(offset, ExprKind::Ident(name.into()))
    }

    pub fn literal(&mut self, offset: u32, literal: Literal) -> Expr {
        self.make(offset, ExprKind::Literal(literal))
    }

    pub fn list(&mut self, offset: u32, items: Vec<Expr>) -> Expr {
        let items = items.into_iter().map(|value| Element { value, optional: false }).collect();
        self.make(offset, ExprKind::List(items))
    }
}
