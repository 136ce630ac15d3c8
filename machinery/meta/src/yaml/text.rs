//! The characters of a document, and the reader's position.

use std::borrow::Cow;

/// A position: its index in characters, its line and its column, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mark {
    pub index: usize,
    pub line: usize,
    pub column: usize,
}

/// The characters that are still to be read. At the end is a NUL, which no document can have.
pub struct Text<'a> {
    rest: &'a str,
    pub mark: Mark,
}

impl<'a> Text<'a> {
    pub fn new(text: &'a str) -> Text<'a> {
        Text { rest: text, mark: Mark::default() }
    }

    pub fn peek(&self) -> char {
        self.rest.chars().next().unwrap_or('\0')
    }

    pub fn peek_at(&self, at: usize) -> char {
        self.rest.chars().nth(at).unwrap_or('\0')
    }

    pub fn is(&self, predicate: impl Fn(char) -> bool) -> bool {
        predicate(self.peek())
    }

    /// Reports whether `---` or `...` is alone at the beginning of a line.
    pub fn is_document_mark(&self, mark: &str) -> bool {
        self.mark.column == 0 && self.rest.starts_with(mark) && is_blank_or_end(self.peek_at(3))
    }

    /// Takes one character that is no line break.
    pub fn take(&mut self) -> char {
        let character = self.peek();
        self.rest = self.rest.get(character.len_utf8()..).unwrap_or_default();
        self.mark.index += 1;
        self.mark.column += 1;
        character
    }

    pub fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.take();
        }
    }

    pub fn skip_while(&mut self, predicate: impl Fn(char) -> bool) {
        while self.is(&predicate) {
            self.take();
        }
    }

    pub fn take_while(&mut self, predicate: impl Fn(char) -> bool) -> String {
        let mut out = String::new();
        while self.is(&predicate) {
            out.push(self.take());
        }
        out
    }

    /// Skips blanks and a comment. The end of the line must follow.
    pub fn skip_to_end_of_line(&mut self) -> bool {
        self.skip_while(is_blank);
        if self.peek() == '#' {
            self.skip_while(|character| !is_break_or_end(character));
        }
        self.is(is_break_or_end)
    }

    /// Takes a line break, if there is one, and returns its form in a value.
    pub fn take_break(&mut self) -> Option<char> {
        let character = self.peek();
        if !is_break(character) {
            return None;
        }
        let is_pair = self.rest.starts_with("\r\n");
        self.skip(1 + usize::from(is_pair));
        self.mark.line += 1;
        self.mark.column = 0;
        Some(if matches!(character, '\u{2028}' | '\u{2029}') { character } else { '\n' })
    }
}

pub fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t')
}

pub fn is_break(character: char) -> bool {
    matches!(character, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub fn is_break_or_end(character: char) -> bool {
    character == '\0' || is_break(character)
}

pub fn is_blank_or_end(character: char) -> bool {
    is_blank(character) || is_break_or_end(character)
}

pub fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

/// Decodes UTF-8, or UTF-16 if the document begins with a byte order mark.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)?),
        [0xfe, 0xff, rest @ ..] => Cow::Owned(utf16(rest, u16::from_be_bytes)?),
        _ => Cow::Borrowed(utf8(bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes))?),
    };
    let is_allowed = |character: char| matches!(character, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
    if text.chars().all(is_allowed) { Ok(text) } else { Err("control characters are not allowed") }
}

fn utf8(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let invalid = &bytes[error.valid_up_to()..];
        let length = match invalid.first() {
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf7) => 4,
            _ => return "invalid leading UTF-8 octet",
        };
        match invalid.get(1..length) {
            None => "incomplete UTF-8 octet sequence",
            Some(more) if more.iter().any(|octet| octet & 0xc0 != 0x80) => "invalid trailing UTF-8 octet",
            Some([0x80..=0x8f, ..]) if invalid[0] == 0xf0 => "invalid length of a UTF-8 sequence",
            Some([0x80..=0x9f, ..]) if invalid[0] == 0xe0 => "invalid length of a UTF-8 sequence",
            Some(_) if length == 2 => "invalid length of a UTF-8 sequence",
            Some(_) => "invalid Unicode character",
        }
    })
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, &'static str> {
    let pairs = bytes.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err("incomplete UTF-16 character");
    }
    let units: Vec<u16> = pairs.map(|pair| unit([pair[0], pair[1]])).collect();
    String::from_utf16(&units).map_err(|_| "unexpected low surrogate area")
}
