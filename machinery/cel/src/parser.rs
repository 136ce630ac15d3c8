//! The step from tokens to the tree, by recursive descent. It expands macros.
//!
//! Nesting is bounded, so that no source can exhaust the stack of this or of any later walk.

use std::sync::Arc;

use corten_meta::names::CEL_WORDS;

use crate::ast::{Element, Entry, Expr, ExprKind, Field, Literal};
use crate::lexer::{Lexeme, Token, tokens};
use crate::macros;
use crate::nodes::Nodes;
use crate::source::{Issue, Issues, MAX_CODE_POINTS};

/// The maximal height of an expression's tree.
pub const MAX_DEPTH: u32 = 250;
/// The maximal nesting of brackets: parsing them takes more of the stack than walking the tree does.
const MAX_NESTING: u32 = 80;

/// Parses a source.
pub fn parse(text: &str, binds: bool) -> Result<Expr, Issues> {
    let length = text.chars().count();
    if length > MAX_CODE_POINTS {
        let message = format!("expression code point size exceeds limit: size: {length}, limit {MAX_CODE_POINTS}");
        return Err(Issues::new(text, vec![Issue { offset: None, message }]));
    }
    let (tokens, mut issues) = tokens(text);
    match (read(tokens, binds), issues.is_empty()) {
        (Ok(expr), true) => Ok(expr),
        (Ok(_), false) => Err(Issues::new(text, issues)),
        (Err(mut found), _) => {
            issues.append(&mut found);
            Err(Issues::new(text, issues))
        }
    }
}

fn read(tokens: Vec<Lexeme>, binds: bool) -> Result<Expr, Vec<Issue>> {
    let nodes = Nodes::new(binds);
    let mut parser = Parser { tokens, at: 0, nodes, nesting: 0 };
    let read = parser.expr().and_then(|expr| match parser.peek() {
        Token::End => Ok(expr),
        _ => Err(parser.unexpected()),
    });
    let mut issues = parser.nodes.issues;
    match read {
        Ok(expr) if issues.is_empty() => return Ok(expr),
        Ok(_) => {}
        Err(issue) => issues.push(issue),
    }
    Err(issues)
}

struct Parser {
    tokens: Vec<Lexeme>,
    at: usize,
    nodes: Nodes,
    nesting: u32,
}

/// Returns the precedence and function of a binary operator; `&&` and `||` are parsed separately.
fn operator(token: &Token) -> Option<(u8, &'static str)> {
    match token {
        Token::Sign("<") => Some((1, "_<_")),
        Token::Sign("<=") => Some((1, "_<=_")),
        Token::Sign(">") => Some((1, "_>_")),
        Token::Sign(">=") => Some((1, "_>=_")),
        Token::Sign("==") => Some((1, "_==_")),
        Token::Sign("!=") => Some((1, "_!=_")),
        Token::Ident(word) if &**word == "in" => Some((1, "@in")),
        Token::Sign("+") => Some((2, "_+_")),
        Token::Sign("-") => Some((2, "_-_")),
        Token::Sign("*") => Some((3, "_*_")),
        Token::Sign("/") => Some((3, "_/_")),
        Token::Sign("%") => Some((3, "_%_")),
        _ => None,
    }
}

impl Parser {
    fn peek(&self) -> &Token {
        &self.here().token
    }

    fn here(&self) -> &Lexeme {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn offset(&self) -> u32 {
        self.here().offset
    }

    fn advance(&mut self) -> Lexeme {
        let lexeme = self.here().clone();
        self.at += 1;
        lexeme
    }

    /// Takes a sign if it is next.
    fn accept(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        if found {
            self.at += 1;
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<u32, Issue> {
        let offset = self.offset();
        if self.accept(sign) {
            return Ok(offset);
        }
        Err(self.unexpected())
    }

    /// Returns the error of the current token, which no expression may have here.
    fn unexpected(&self) -> Issue {
        self.issue(self.offset(), format!("Syntax error: unexpected '{}'", self.here().text))
    }

    fn issue(&self, offset: u32, message: impl Into<String>) -> Issue {
        Issue { offset: Some(offset), message: message.into() }
    }

    /// Refuses an expression that nests too deep.
    fn bounded(&self, expr: Expr) -> Result<Expr, Issue> {
        if expr.depth > MAX_DEPTH {
            return Err(Issue { offset: None, message: "max recursion depth exceeded".to_owned() });
        }
        Ok(expr)
    }

    fn expr(&mut self) -> Result<Expr, Issue> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            let message = format!("expression recursion limit exceeded: {MAX_NESTING}");
            return Err(Issue { offset: None, message });
        }
        // `a ? b : c ? d : e` is parsed from the left and assembled from the right.
        let mut choices = Vec::new();
        let mut expr = self.chain("||", "_||_")?;
        loop {
            let offset = self.offset();
            if !self.accept("?") {
                break;
            }
            let yes = self.chain("||", "_||_")?;
            self.expect(":")?;
            choices.push((offset, expr, yes));
            expr = self.chain("||", "_||_")?;
        }
        for (offset, condition, yes) in choices.into_iter().rev() {
            expr = self.nodes.call(offset, "_?_:_", vec![condition, yes, expr]);
            expr = self.bounded(expr)?;
        }
        self.nesting -= 1;
        self.bounded(expr)
    }

    /// Parses terms joined by `||` or `&&` into a balanced tree: long conditions are common and would nest deep.
    fn chain(&mut self, sign: &str, function: &str) -> Result<Expr, Issue> {
        let or = sign == "||";
        let term = |parser: &mut Parser| if or { parser.chain("&&", "_&&_") } else { parser.binary(1) };
        let mut terms = vec![term(self)?];
        let mut offsets = Vec::new();
        loop {
            let offset = self.offset();
            if !self.accept(sign) {
                break;
            }
            offsets.push(offset);
            terms.push(term(self)?);
        }
        let mut terms: Vec<Option<Expr>> = terms.into_iter().map(Some).collect();
        let last = terms.len() - 1;
        let balanced = self.balance(function, &mut terms, &offsets, 0, last);
        self.bounded(balanced)
    }

    fn balance(
        &mut self,
        function: &str,
        terms: &mut [Option<Expr>],
        offsets: &[u32],
        low: usize,
        high: usize,
    ) -> Expr {
        if low == high {
            return terms[low].take().unwrap_or_else(|| self.nodes.literal(0, Literal::Null));
        }
        let middle = low + (high - low).div_ceil(2);
        let left = self.balance(function, terms, offsets, low, middle - 1);
        let right = self.balance(function, terms, offsets, middle, high);
        self.nodes.call(offsets[middle - 1], function, vec![left, right])
    }

    /// Parses operators of at least this precedence, left-associative.
    fn binary(&mut self, strength: u8) -> Result<Expr, Issue> {
        let mut left = self.unary()?;
        while let Some((binds, function)) = operator(self.peek()).filter(|(binds, _)| *binds >= strength) {
            let offset = self.advance().offset;
            let right = self.binary(binds + 1)?;
            left = self.nodes.call(offset, function, vec![left, right]);
            left = self.bounded(left)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, Issue> {
        for (sign, function) in [("!", "!_"), ("-", "-_")] {
            let offset = self.offset();
            let mut count = 0;
            // A minus before a number belongs to the number.
            while matches!(self.peek(), Token::Sign(s) if *s == sign) && !(sign == "-" && self.is_negative_number()) {
                self.at += 1;
                count += 1;
            }
            if count > 0 {
                let operand = self.member()?;
                let negated = count % 2 == 1;
                return if negated { Ok(self.nodes.call(offset, function, vec![operand])) } else { Ok(operand) };
            }
        }
        self.member()
    }

    fn is_negative_number(&self) -> bool {
        let next = self.tokens.get(self.at + 1).map(|lexeme| &lexeme.token);
        matches!(self.peek(), Token::Sign("-")) && matches!(next, Some(Token::Int(_) | Token::Double(_)))
    }

    fn member(&mut self) -> Result<Expr, Issue> {
        let mut expr = self.primary()?;
        loop {
            let offset = self.offset();
            expr = if self.accept(".") {
                self.selection(expr, offset)?
            } else if self.accept("[") {
                let optional = self.accept("?");
                let index = self.expr()?;
                self.expect("]")?;
                let function = if optional { "_[?_]" } else { "_[_]" };
                self.nodes.call(offset, function, vec![expr, index])
            } else {
                return Ok(expr);
            };
            expr = self.bounded(expr)?;
        }
    }

    /// Parses what follows a dot: a field, an optional field, or a call.
    fn selection(&mut self, operand: Expr, offset: u32) -> Result<Expr, Issue> {
        let optional = self.accept("?");
        let at = self.offset();
        let quoted = matches!(self.peek(), Token::Quoted(_));
        let name = match self.peek() {
            Token::Ident(name) if !matches!(&**name, "true" | "false" | "null" | "in") => Arc::clone(name),
            Token::Quoted(_) => return Err(self.issue(at, "unsupported syntax: '`'")),
            _ => return Err(self.unexpected()),
        };
        self.at += 1;
        if optional {
            let field = self.nodes.literal(at, Literal::String(name));
            return Ok(self.nodes.call(offset, "_?._", vec![operand, field]));
        }
        let open = self.offset();
        if !quoted && self.accept("(") {
            let args = self.list(")", Parser::expr)?;
            return Ok(self.expanded(open, &name, Some(operand), args));
        }
        Ok(self.nodes.make(offset, ExprKind::Select { operand: Box::new(operand), field: name, test: false }))
    }

    /// Returns a call, or its expansion if it is a macro; for an invalid macro, a null literal.
    fn expanded(&mut self, offset: u32, function: &str, target: Option<Expr>, args: Vec<Expr>) -> Expr {
        macros::call(&mut self.nodes, offset, function, target, args).unwrap_or_else(|issue| {
            self.nodes.issues.push(issue);
            self.nodes.literal(offset, Literal::Null)
        })
    }

    /// Parses items up to the closing sign, separated by commas.
    fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Parser) -> Result<T, Issue>) -> Result<Vec<T>, Issue> {
        let mut items = Vec::new();
        // A single comma also ends an empty list.
        if close != ")" && matches!(self.peek(), Token::Sign(",")) && self.is_followed_by(close) {
            self.at += 2;
            return Ok(items);
        }
        while !self.accept(close) {
            if !items.is_empty() {
                self.expect(",")?;
                // Lists and maps may end with a comma, argument lists may not.
                if close != ")" && self.accept(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    fn is_followed_by(&self, sign: &str) -> bool {
        matches!(self.tokens.get(self.at + 1), Some(Lexeme { token: Token::Sign(next), .. }) if *next == sign)
    }

    fn primary(&mut self) -> Result<Expr, Issue> {
        let offset = self.offset();
        if self.accept("(") {
            let expr = self.expr()?;
            self.expect(")")?;
            return Ok(expr);
        }
        if self.accept("[") {
            let items = self.list("]", |parser| {
                let optional = parser.accept("?");
                Ok(Element { value: parser.expr()?, optional })
            })?;
            let list = self.nodes.make(offset, ExprKind::List(items));
            return self.bounded(list);
        }
        if self.accept("{") {
            let entries = self.list("}", |parser| {
                let optional = parser.accept("?");
                let key = parser.expr()?;
                parser.expect(":")?;
                Ok(Entry { key, value: parser.expr()?, optional })
            })?;
            let map = self.nodes.make(offset, ExprKind::Map(entries));
            return self.bounded(map);
        }
        let leading_dot = self.accept(".");
        match self.peek().clone() {
            Token::Ident(word) if !matches!(&*word, "true" | "false" | "null" | "in") => {
                self.named(offset, leading_dot)
            }
            _ if leading_dot => Err(self.unexpected()),
            _ => self.constant(),
        }
    }

    /// Parses a name: a variable, a call or the type of a message.
    fn named(&mut self, offset: u32, leading_dot: bool) -> Result<Expr, Issue> {
        let lexeme = self.advance();
        let word = lexeme.text;
        let open = self.offset();
        if self.accept("(") {
            self.check_reserved(offset, &word)?;
            let args = self.list(")", Parser::expr)?;
            return Ok(self.expanded(open, &word, None, args));
        }
        if let Some(name) = self.message_name(&word) {
            return self.message(name);
        }
        self.check_reserved(offset, &word)?;
        let at = if leading_dot { offset + 1 } else { offset };
        Ok(self.nodes.ident(at, &word))
    }

    fn check_reserved(&self, offset: u32, word: &str) -> Result<(), Issue> {
        // A field may have this name, a variable may not.
        if CEL_WORDS.contains(&word) {
            return Err(self.issue(offset, format!("reserved identifier: {word}")));
        }
        Ok(())
    }

    /// Looks ahead for `a.b.C{`; the position moves only if there is one.
    fn message_name(&mut self, first: &str) -> Option<String> {
        let mut name = first.to_owned();
        let mut at = self.at;
        loop {
            match self.tokens.get(at).map(|l| &l.token)? {
                Token::Sign("{") => {
                    self.at = at;
                    return Some(name);
                }
                Token::Sign(".") => match self.tokens.get(at + 1).map(|l| &l.token)? {
                    Token::Ident(part) => {
                        name.push('.');
                        name.push_str(part);
                        at += 2;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    fn message(&mut self, name: String) -> Result<Expr, Issue> {
        let offset = self.expect("{")?;
        let fields = self.list("}", |parser| {
            let optional = parser.accept("?");
            let Token::Ident(name) = parser.peek().clone() else {
                return Err(parser.unexpected());
            };
            parser.at += 1;
            let offset = parser.expect(":")?;
            Ok(Field { offset, name, value: parser.expr()?, optional })
        })?;
        let message = self.nodes.make(offset, ExprKind::Struct { name: name.into(), fields });
        self.bounded(message)
    }

    fn constant(&mut self) -> Result<Expr, Issue> {
        let offset = self.offset();
        let negative = self.is_negative_number() && self.accept("-");
        let sign = if negative { "-" } else { "" };
        let literal = match self.peek().clone() {
            Token::Int(text) => match parse_int(&text, negative) {
                Some(number) => Literal::Int(number),
                None => return Err(self.issue(offset, "invalid int literal")),
            },
            Token::Uint(text) => match parse_uint(&text) {
                Some(number) => Literal::Uint(number),
                None => return Err(self.issue(offset, "invalid uint literal")),
            },
            Token::Double(text) => match format!("{sign}{text}").parse::<f64>() {
                Ok(number) if number.is_finite() => Literal::Double(number),
                _ => return Err(self.issue(offset, "invalid double literal")),
            },
            Token::String(text) => Literal::String(text),
            Token::Bytes(bytes) => Literal::Bytes(bytes),
            Token::Ident(word) if &*word == "true" => Literal::Bool(true),
            Token::Ident(word) if &*word == "false" => Literal::Bool(false),
            Token::Ident(word) if &*word == "null" => Literal::Null,
            _ => return Err(self.unexpected()),
        };
        self.at += 1;
        Ok(self.nodes.literal(offset, literal))
    }
}

fn parse_int(text: &str, negative: bool) -> Option<i64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
    i64::from_str_radix(&signed, radix).ok()
}

fn parse_uint(text: &str) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_syntax_error_names_the_token_where_parsing_stops() {
        for (text, column, token) in [
            ("", 0, "<EOF>"),
            (")", 1, ")"),
            ("a.", 3, "<EOF>"),
            ("a..b", 3, "."),
            ("a b", 3, "b"),
            ("f(,)", 3, ","),
            ("f(a b)", 5, "b"),
            ("[1,", 4, "<EOF>"),
            ("{:1}", 2, ":"),
            ("A{b", 4, "<EOF>"),
            ("a.true", 3, "true"),
        ] {
            let issues = parse(text, false).expect_err(text).to_string();
            let wanted = format!("ERROR: <input>:1:{column}: Syntax error: unexpected '{token}'");
            assert!(issues.starts_with(&wanted), "{text}: {issues}");
        }
    }
}
