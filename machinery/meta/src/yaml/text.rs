//! The characters of a document, and where in it the reader is.

use std::borrow::Cow;

/// A place: how many characters are before it in all, its line and its column, from nought.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mark {
    pub index: usize,
    pub line: usize,
    pub column: usize,
}

/// What is still to be read. At the end stands a NUL, which no document can hold.
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

    pub fn is(&self, what: impl Fn(char) -> bool) -> bool {
        what(self.peek())
    }

    /// Whether `---` or `...` stands alone at the beginning of a line.
    pub fn is_document_mark(&self, mark: &str) -> bool {
        self.mark.column == 0 && self.rest.starts_with(mark) && is_blank_or_end(self.peek_at(3))
    }

    /// Takes one character that ends no line.
    pub fn take(&mut self) -> char {
        let letter = self.peek();
        self.rest = self.rest.get(letter.len_utf8()..).unwrap_or_default();
        self.mark.index += 1;
        self.mark.column += 1;
        letter
    }

    pub fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.take();
        }
    }

    pub fn skip_while(&mut self, what: impl Fn(char) -> bool) {
        while self.is(&what) {
            self.take();
        }
    }

    pub fn take_while(&mut self, what: impl Fn(char) -> bool) -> String {
        let mut out = String::new();
        while self.is(&what) {
            out.push(self.take());
        }
        out
    }

    /// Skips blanks and a comment. The end of the line must follow.
    pub fn skip_to_end_of_line(&mut self) -> bool {
        self.skip_while(is_blank);
        if self.peek() == '#' {
            self.skip_while(|letter| !is_break_or_end(letter));
        }
        self.is(is_break_or_end)
    }

    /// Takes the end of a line, if here is one, as what it means in a value.
    pub fn take_break(&mut self) -> Option<char> {
        let letter = self.peek();
        if !is_break(letter) {
            return None;
        }
        let is_pair = self.rest.starts_with("\r\n");
        self.skip(1 + usize::from(is_pair));
        self.mark.line += 1;
        self.mark.column = 0;
        Some(if matches!(letter, '\u{2028}' | '\u{2029}') { letter } else { '\n' })
    }
}

pub fn is_blank(letter: char) -> bool {
    matches!(letter, ' ' | '\t')
}

pub fn is_break(letter: char) -> bool {
    matches!(letter, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub fn is_break_or_end(letter: char) -> bool {
    letter == '\0' || is_break(letter)
}

pub fn is_blank_or_end(letter: char) -> bool {
    is_blank(letter) || is_break_or_end(letter)
}

pub fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')
}

/// The characters of a document in UTF-8, or in UTF-16 if it begins with a mark that says so.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)?),
        [0xfe, 0xff, rest @ ..] => Cow::Owned(utf16(rest, u16::from_be_bytes)?),
        _ => Cow::Borrowed(utf8(bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes))?),
    };
    let is_allowed = |letter: char| matches!(letter, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
    if text.chars().all(is_allowed) { Ok(text) } else { Err("control characters are not allowed") }
}

fn utf8(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let wrong = &bytes[error.valid_up_to()..];
        let length = match wrong.first() {
            Some(0xc0..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf7) => 4,
            _ => return "invalid leading UTF-8 octet",
        };
        match wrong.get(1..length) {
            None => "incomplete UTF-8 octet sequence",
            Some(more) if more.iter().any(|octet| octet & 0xc0 != 0x80) => "invalid trailing UTF-8 octet",
            Some([0x80..=0x8f, ..]) if wrong[0] == 0xf0 => "invalid length of a UTF-8 sequence",
            Some([0x80..=0x9f, ..]) if wrong[0] == 0xe0 => "invalid length of a UTF-8 sequence",
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
