//! The tokens with content: plain, quoted and block scalars, directives and tags.

use super::Failed;
use super::scanner::{Kind, Scanner};
use super::text::{Mark, is_blank, is_blank_or_end, is_break, is_break_or_end, is_word};

type Scanned<T> = Result<T, Failed>;

/// The white space between two parts of a scalar.
#[derive(Default)]
struct Gap {
    blanks: String,
    /// The first line break and the others, as they count in the value.
    first: Option<char>,
    others: String,
    /// Whether a new line has begun, whose leading blanks do not count.
    folds: bool,
}

impl Gap {
    /// Joins lines by a blank, or by the empty lines between them.
    fn join(&mut self, out: &mut String) {
        let gap = std::mem::take(self);
        match gap.first {
            _ if !gap.folds => out.push_str(&gap.blanks),
            Some('\n') if gap.others.is_empty() => out.push(' '),
            Some('\n') => out.push_str(&gap.others),
            first => {
                out.extend(first);
                out.push_str(&gap.others);
            }
        }
    }
}

impl Scanner<'_> {
    /// Skips blanks and line breaks. A tab where `refuses` returns true is an error.
    fn gap(&mut self, gap: &mut Gap, refuses: impl Fn(&Scanner<'_>) -> bool, start: Mark) -> Scanned<()> {
        loop {
            if self.text.is(is_blank) {
                if gap.folds && self.text.peek() == '\t' && refuses(self) {
                    return self.fail(start, "found a tab character that violates indentation");
                }
                let blank = self.text.take();
                if !gap.folds {
                    gap.blanks.push(blank);
                }
            } else if let Some(line) = self.text.take_break() {
                if gap.folds {
                    gap.others.push(line);
                } else {
                    (gap.first, gap.folds) = (Some(line), true);
                }
            } else {
                return Ok(());
            }
        }
    }

    fn is_at_document_mark(&self) -> bool {
        self.text.is_document_mark("---") || self.text.is_document_mark("...")
    }

    pub(super) fn plain(&mut self) -> Scanned<String> {
        let start = self.text.mark;
        let least = self.indent + 1;
        let is_shallow = |scanner: &Scanner<'_>| (scanner.text.mark.column as isize) < least;
        let mut out = String::new();
        let mut gap = Gap::default();
        while !self.is_at_document_mark() && self.text.peek() != '#' {
            while !self.text.is(is_blank_or_end) {
                let character = self.text.peek();
                let next = self.text.peek_at(1);
                if character == ':' && is_blank_or_end(next) || self.in_flow() && ",?[]{}".contains(character) {
                    break;
                }
                gap.join(&mut out);
                out.push(self.text.take());
            }
            if !self.text.is(|character| is_blank(character) || is_break(character)) {
                break;
            }
            self.gap(&mut gap, is_shallow, start)?;
            if !self.in_flow() && is_shallow(self) {
                break;
            }
        }
        // A scalar on the next line may be a key.
        self.key_allowed |= gap.folds;
        Ok(out)
    }

    pub(super) fn quoted(&mut self, mark: char) -> Scanned<String> {
        let start = self.text.mark;
        self.text.take();
        let mut out = String::new();
        loop {
            if self.is_at_document_mark() {
                return self.fail(start, "found unexpected document indicator");
            }
            if self.text.peek() == '\0' {
                return self.fail(start, "found unexpected end of stream");
            }
            let mut gap = Gap::default();
            while !self.text.is(is_blank_or_end) {
                match (self.text.peek(), self.text.peek_at(1)) {
                    ('\'', '\'') if mark == '\'' => {
                        self.text.skip(2);
                        out.push('\'');
                    }
                    (character, _) if character == mark => break,
                    ('\\', next) if mark == '"' && is_break(next) => {
                        self.text.take();
                        self.text.take_break();
                        gap.folds = true;
                        break;
                    }
                    ('\\', next) if mark == '"' => out.push(self.escape(next, start)?),
                    _ => out.push(self.text.take()),
                }
            }
            if self.text.peek() == mark {
                self.text.take();
                return Ok(out);
            }
            let escaped = gap.folds;
            self.gap(&mut gap, |_| false, start)?;
            if escaped {
                out.push_str(&gap.others);
            } else {
                gap.join(&mut out);
            }
        }
    }

    fn escape(&mut self, character: char, start: Mark) -> Scanned<char> {
        let digits = match character {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let meant = match character {
            '0' | 'x' | 'u' | 'U' => '\0',
            'a' => '\u{7}',
            'b' => '\u{8}',
            't' | '\t' => '\t',
            'n' => '\n',
            'v' => '\u{b}',
            'f' => '\u{c}',
            'r' => '\r',
            'e' => '\u{1b}',
            ' ' | '"' | '\'' | '\\' => character,
            'N' => '\u{85}',
            '_' => '\u{a0}',
            'L' => '\u{2028}',
            'P' => '\u{2029}',
            _ => return self.fail(start, "found unknown escape character"),
        };
        self.text.skip(2);
        if digits == 0 {
            return Ok(meant);
        }
        let mut code = 0;
        for at in 0..digits {
            let Some(digit) = self.text.peek_at(at).to_digit(16) else {
                return self.fail(start, "did not find expected hexdecimal number");
            };
            code = code << 4 | digit;
        }
        match char::from_u32(code) {
            Some(character) => {
                self.text.skip(digits);
                Ok(character)
            }
            None => self.fail(start, "found invalid Unicode character escape code"),
        }
    }

    /// Reads `|` and `>`: lines that are indented deeper than the block around them.
    pub(super) fn block_scalar(&mut self, literal: bool) -> Scanned<String> {
        let start = self.text.mark;
        self.text.take();
        let (chomping, deeper) = self.block_header(start)?;
        if !self.text.skip_to_end_of_line() {
            return self.fail(start, "did not find expected comment or line break");
        }
        self.text.take_break();
        let mut indent = deeper.map(|deeper| usize::try_from(self.indent).unwrap_or(0) + deeper);
        let mut out = String::new();
        let mut line_end = None;
        let mut was_indented = false;
        let mut empty = self.empty_lines(&mut indent, start)?;
        while Some(self.text.mark.column) == indent && self.text.peek() != '\0' {
            let is_indented = self.text.is(is_blank);
            // Adjacent lines are folded into one, except indented ones.
            if !literal && !was_indented && !is_indented && line_end == Some('\n') {
                if empty.is_empty() {
                    out.push(' ');
                }
            } else {
                out.extend(line_end);
            }
            out.push_str(&empty);
            was_indented = is_indented;
            out.push_str(&self.text.take_while(|character| !is_break_or_end(character)));
            line_end = self.text.take_break();
            empty = self.empty_lines(&mut indent, start)?;
        }
        if chomping != '-' {
            out.extend(line_end);
        }
        if chomping == '+' {
            out.push_str(&empty);
        }
        Ok(out)
    }

    /// Reads the chomping indicator and the indentation indicator, in either order.
    fn block_header(&mut self, start: Mark) -> Scanned<(char, Option<usize>)> {
        let mut chomping = ' ';
        let mut deeper = None;
        for _ in 0..2 {
            match self.text.peek() {
                sign @ ('+' | '-') if chomping == ' ' => chomping = sign,
                '0' if deeper.is_none() => return self.fail(start, "found an indentation indicator equal to 0"),
                digit @ '1'..='9' if deeper.is_none() => deeper = digit.to_digit(10).map(|digit| digit as usize),
                _ => break,
            }
            self.text.take();
        }
        Ok((chomping, deeper))
    }

    /// Skips indentation and empty lines; the first line with content determines the indentation.
    fn empty_lines(&mut self, indent: &mut Option<usize>, start: Mark) -> Scanned<String> {
        let mut out = String::new();
        let mut deepest = 0;
        loop {
            let is_shallow = |column: usize| indent.is_none_or(|indent| column < indent);
            while is_shallow(self.text.mark.column) && self.text.peek() == ' ' {
                self.text.take();
            }
            deepest = deepest.max(self.text.mark.column);
            if is_shallow(self.text.mark.column) && self.text.peek() == '\t' {
                return self.fail(start, "found a tab character where an indentation space is expected");
            }
            match self.text.take_break() {
                Some(line) => out.push(line),
                None => break,
            }
        }
        let least = usize::try_from(self.indent + 1).unwrap_or(0).max(1);
        indent.get_or_insert(deepest.max(least));
        Ok(out)
    }

    /// Reads `%YAML 1.1` or `%TAG !e! tag:example.com,2000:`.
    pub(super) fn directive(&mut self, start: Mark) -> Scanned<Kind> {
        self.text.take();
        let name = self.text.take_while(is_word);
        if name.is_empty() {
            return self.fail(start, "could not find expected directive name");
        }
        if !self.text.is(is_blank_or_end) {
            return self.fail(start, "found unexpected non-alphabetical character");
        }
        self.text.skip_while(|character| is_blank(character) && matches!(name.as_str(), "YAML" | "TAG"));
        let kind = match name.as_str() {
            "YAML" => {
                let major = self.version_number(start)?;
                if self.text.peek() != '.' {
                    return self.fail(start, "did not find expected digit or '.' character");
                }
                self.text.take();
                Kind::Version(major, self.version_number(start)?)
            }
            "TAG" => {
                let handle = self.tag_handle(true, start)?;
                if !self.text.is(is_blank) {
                    return self.fail(start, "did not find expected whitespace");
                }
                self.text.skip_while(is_blank);
                let prefix = self.tag_uri(None, start)?;
                if !self.text.is(is_blank_or_end) {
                    return self.fail(start, "did not find expected whitespace or line break");
                }
                Kind::TagDirective(handle, prefix)
            }
            _ => return self.fail(start, "found unknown directive name"),
        };
        if !self.text.skip_to_end_of_line() {
            return self.fail(start, "did not find expected comment or line break");
        }
        self.text.take_break();
        Ok(kind)
    }

    fn version_number(&mut self, start: Mark) -> Scanned<String> {
        let mut number = String::new();
        while self.text.is(|character| character.is_ascii_digit()) {
            if number.len() == 2 {
                return self.fail(start, "found extremely long version number");
            }
            number.push(self.text.take());
        }
        if number.is_empty() { self.fail(start, "did not find expected version number") } else { Ok(number) }
    }

    /// Reads `!<tag>`, `!suffix`, `!handle!suffix` or `!` alone.
    pub(super) fn tag(&mut self) -> Scanned<Kind> {
        let start = self.text.mark;
        let (handle, suffix) = if self.text.peek_at(1) == '<' {
            self.text.skip(2);
            let uri = self.tag_uri(None, start)?;
            if self.text.peek() != '>' {
                return self.fail(start, "did not find the expected '>'");
            }
            self.text.take();
            (String::new(), uri)
        } else {
            let handle = self.tag_handle(false, start)?;
            if handle.len() > 1 && handle.ends_with('!') {
                let suffix = self.tag_uri(None, start)?;
                (handle, suffix)
            } else {
                match self.tag_uri(Some(&handle[1..]), start)? {
                    suffix if suffix.is_empty() => (suffix, "!".to_owned()),
                    suffix => ("!".to_owned(), suffix),
                }
            }
        };
        if !self.text.is(is_blank_or_end) {
            return self.fail(start, "did not find expected whitespace or line break");
        }
        Ok(Kind::Tag(handle, suffix))
    }

    fn tag_handle(&mut self, in_directive: bool, start: Mark) -> Scanned<String> {
        if self.text.peek() != '!' {
            return self.fail(start, "did not find expected '!'");
        }
        let mut handle = String::from(self.text.take());
        handle.push_str(&self.text.take_while(is_word));
        if self.text.peek() == '!' {
            handle.push(self.text.take());
        } else if in_directive && handle != "!" {
            return self.fail(start, "did not find expected '!'");
        }
        Ok(handle)
    }

    /// Reads a tag after the part that is known already.
    fn tag_uri(&mut self, head: Option<&str>, start: Mark) -> Scanned<String> {
        let mut uri = head.unwrap_or_default().as_bytes().to_vec();
        while self.text.is(|character| is_word(character) || ";/?:@&=+$,.!~*'()[]%".contains(character)) {
            let character = self.text.take();
            if character != '%' {
                uri.extend(character.encode_utf8(&mut [0; 4]).bytes());
                continue;
            }
            let digits = (self.text.peek().to_digit(16), self.text.peek_at(1).to_digit(16));
            let (Some(high), Some(low)) = digits else { return self.fail(start, "did not find URI escaped octet") };
            self.text.skip(2);
            uri.extend(u8::try_from(high << 4 | low));
        }
        if uri.is_empty() && head.is_none() {
            return self.fail(start, "did not find expected tag URI");
        }
        Ok(String::from_utf8_lossy(&uri).into_owned())
    }
}
