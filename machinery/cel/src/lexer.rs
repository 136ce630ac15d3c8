//! The step from source to tokens. Offsets are counted in code points, as in the errors.

use std::sync::Arc;

use crate::source::Issue;

#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    End,
    Ident(Arc<str>),
    /// A field name in backquotes.
    Quoted(Arc<str>),
    Int(String),
    Uint(String),
    Double(String),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    /// An operator or a bracket.
    Sign(&'static str),
}

/// A token, its offset and its source.
#[derive(Debug, Clone)]
pub struct Lexeme {
    pub token: Token,
    pub offset: u32,
    pub text: String,
}

/// The signs; longer ones come before their prefixes.
const SIGNS: &[&str] = &[
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%",
];

/// Returns all tokens of a source, the end last, and the errors.
pub fn tokens(text: &str) -> (Vec<Lexeme>, Vec<Issue>) {
    let mut lexer = Lexer { text: text.chars().collect(), at: 0 };
    let mut found = Vec::new();
    let mut issues = Vec::new();
    loop {
        lexer.skip_blanks();
        let start = lexer.at;
        let token = match lexer.token() {
            Ok(token) => token,
            Err(issue) => {
                issues.push(issue);
                lexer.at = lexer.at.max(start + 1);
                continue;
            }
        };
        let end = token == Token::End;
        let text = if end { "<EOF>".to_owned() } else { lexer.text[start..lexer.at].iter().collect() };
        found.push(Lexeme { token, offset: start as u32, text });
        if end {
            return (found, issues);
        }
    }
}

struct Lexer {
    text: Vec<char>,
    at: usize,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> char {
        self.text.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn issue(&self, offset: usize, message: impl Into<String>) -> Issue {
        Issue { offset: Some(offset as u32), message: message.into() }
    }

    /// Makes the error for the characters from `start` to `end`, and skips them.
    fn unrecognized(&mut self, start: usize, end: usize) -> Issue {
        self.at = end.min(self.text.len());
        let text: String = self.text[start..self.at].iter().collect();
        self.issue(start, format!("Syntax error: token recognition error at: '{text}'"))
    }

    fn skip_blanks(&mut self) {
        loop {
            match self.peek(0) {
                '\t' | ' ' | '\r' | '\n' | '\u{c}' if self.at < self.text.len() => self.at += 1,
                '/' if self.peek(1) == '/' => {
                    while self.at < self.text.len() && self.peek(0) != '\n' {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn token(&mut self) -> Result<Token, Issue> {
        if self.at >= self.text.len() {
            return Ok(Token::End);
        }
        let c = self.peek(0);
        if c.is_ascii_digit() || (c == '.' && self.peek(1).is_ascii_digit()) {
            return self.number();
        }
        let start = self.at;
        match self.quoted() {
            Ok(Some(token)) => return Ok(token),
            Ok(None) => {}
            // A prefix before an unterminated quote is a name.
            Err(issue) if c.is_ascii_alphabetic() && issue.message.contains("token recognition") => self.at = start,
            Err(issue) => return Err(issue),
        }
        if c.is_ascii_alphabetic() || c == '_' {
            let start = self.at;
            while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == '_' {
                self.at += 1;
            }
            let name: String = self.text[start..self.at].iter().collect();
            return Ok(Token::Ident(name.into()));
        }
        if c == '`' {
            return self.backquoted();
        }
        for sign in SIGNS {
            if sign.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == c) {
                self.at += sign.len();
                return Ok(Token::Sign(sign));
            }
        }
        // Half an operator is shown with the following character.
        let shown = if matches!(c, '=' | '|' | '&') { 2 } else { 1 };
        Err(self.unrecognized(self.at, self.at + shown))
    }

    fn backquoted(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        self.at += 1;
        while matches!(self.peek(0), 'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' | '-' | '/' | ' ') {
            self.at += 1;
        }
        if self.peek(0) != '`' || self.at == start + 1 {
            return Err(self.unrecognized(start, self.at + 1));
        }
        let name: String = self.text[start + 1..self.at].iter().collect();
        self.at += 1;
        Ok(Token::Quoted(name.into()))
    }

    fn number(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        let digits = |lexer: &mut Lexer, hex: bool| {
            let from = lexer.at;
            while lexer.peek(0).is_ascii_digit() || (hex && lexer.peek(0).is_ascii_hexdigit()) {
                lexer.at += 1;
            }
            lexer.at > from
        };
        let mut double = false;
        if self.peek(0) == '0' && self.peek(1) == 'x' && self.peek(2).is_ascii_hexdigit() {
            self.at += 2;
            digits(self, true);
        } else {
            digits(self, false);
            if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
                self.at += 1;
                double = digits(self, false);
            }
            let signed = usize::from(matches!(self.peek(1), '+' | '-'));
            if matches!(self.peek(0), 'e' | 'E') && self.peek(1 + signed).is_ascii_digit() {
                self.at += 1 + signed;
                double = digits(self, false);
            }
        }
        let text: String = self.text[start..self.at].iter().collect();
        if double {
            return Ok(Token::Double(text));
        }
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return Ok(Token::Uint(text));
        }
        Ok(Token::Int(text))
    }

    /// Reads a string or bytes literal, if one begins here.
    fn quoted(&mut self) -> Result<Option<Token>, Issue> {
        let mut ahead = 0;
        let mut raw = false;
        let mut bytes = false;
        while ahead < 2 {
            match self.peek(ahead) {
                'r' | 'R' if !raw => raw = true,
                'b' | 'B' if !bytes && !raw => bytes = true,
                _ => break,
            }
            ahead += 1;
        }
        let quote = self.peek(ahead);
        if quote != '"' && quote != '\'' {
            return Ok(None);
        }
        let start = self.at;
        self.at += ahead + 1;
        let triple = self.peek(0) == quote && self.peek(1) == quote;
        if triple {
            self.at += 2;
        }
        let mut out = Vec::new();
        loop {
            let c = self.peek(0);
            if self.at >= self.text.len() && triple {
                // Three quotes without an end are an empty string and a quote.
                self.at = start + ahead + 2;
                out.clear();
                break;
            }
            if self.at >= self.text.len() || (!triple && matches!(c, '\n' | '\r')) {
                return Err(self.unrecognized(start, self.at));
            }
            if c == quote && (!triple || (self.peek(1) == quote && self.peek(2) == quote)) {
                self.at += if triple { 3 } else { 1 };
                break;
            }
            if c == '\\' && !raw {
                self.escape(start, bytes, &mut out)?;
                continue;
            }
            self.at += 1;
            match c {
                // Line ends are normalized.
                '\r' if self.peek(0) == '\n' => {}
                '\r' => out.push(b'\n'),
                c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if bytes {
            return Ok(Some(Token::Bytes(out.into())));
        }
        let text = String::from_utf8(out).map_err(|_| self.issue(start, "unable to unescape string"))?;
        Ok(Some(Token::String(text.into())))
    }

    /// Reads one escape sequence; in bytes, hexadecimal and octal ones are bytes and not code points.
    fn escape(&mut self, start: usize, bytes: bool, out: &mut Vec<u8>) -> Result<(), Issue> {
        let c = self.peek(1);
        let simple = match c {
            'a' => Some(7),
            'b' => Some(8),
            'f' => Some(12),
            'n' => Some(10),
            'r' => Some(13),
            't' => Some(9),
            'v' => Some(11),
            '"' | '\'' | '\\' | '?' | '`' => Some(c as u8),
            _ => None,
        };
        if let Some(byte) = simple {
            self.at += 2;
            out.push(byte);
            return Ok(());
        }
        let (skip, digits, radix) = match c {
            'x' | 'X' => (2, 2, 16),
            'u' => (2, 4, 16),
            'U' => (2, 8, 16),
            '0'..='3' => (1, 3, 8),
            _ => return Err(self.unrecognized(start, self.at + 2)),
        };
        let from = self.at + skip;
        let text: String = self.text.iter().skip(from).take(digits).collect();
        let code = u32::from_str_radix(&text, radix).ok().filter(|_| text.len() == digits && !text.starts_with('+'));
        let Some(code) = code else { return Err(self.unrecognized(start, from + digits)) };
        self.at = from + digits;
        if bytes && digits <= 3 {
            let Ok(byte) = u8::try_from(code) else { return Err(self.issue(start, "unable to unescape string")) };
            out.push(byte);
            return Ok(());
        }
        let Some(c) = char::from_u32(code) else {
            return Err(self.issue(start, "unable to unescape string, invalid unicode code point"));
        };
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }
}
