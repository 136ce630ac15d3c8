//! The errors of patterns that do not compile, in the words of Go.

/// Returns Go's error about a pattern; `None` if Go accepts it.
pub fn explain(pattern: &str) -> Option<String> {
    Reader { pattern, rest: pattern, depth: 0, has_argument: false, last_repeat: None }
        .read()
        .err()
        .map(|Refused { code, at }| format!("error parsing regexp: {code}: `{at}`"))
}

struct Refused {
    code: &'static str,
    at: String,
}

/// A parser of Go's dialect that only finds errors.
struct Reader<'p> {
    pattern: &'p str,
    rest: &'p str,
    depth: usize,
    /// Whether there is something that can be repeated.
    has_argument: bool,
    /// The rest of the pattern from the preceding repetition on, if one came just before.
    last_repeat: Option<&'p str>,
}

impl<'p> Reader<'p> {
    fn read(&mut self) -> Result<(), Refused> {
        while let Some(c) = self.rest.chars().next() {
            let repeat = self.last_repeat.take();
            match c {
                '(' => self.open()?,
                ')' if self.depth == 0 => return refuse("unexpected )", self.pattern),
                ')' => {
                    self.depth -= 1;
                    self.take(1, true);
                }
                '[' => self.class()?,
                '*' | '+' | '?' => self.repeat(1, repeat)?,
                '{' => match repetition(self.rest) {
                    Some((length, fits)) if fits => self.repeat(length, repeat)?,
                    Some((length, _)) => return refuse("invalid repeat count", &self.rest[..length]),
                    None => self.take(1, true),
                },
                '|' => self.take(1, false),
                '\\' => {
                    let length = escape(self.rest)?;
                    self.take(length, true);
                }
                c => self.take(c.len_utf8(), true),
            }
        }
        if self.depth > 0 { refuse("missing closing )", self.pattern) } else { Ok(()) }
    }

    fn take(&mut self, length: usize, has_argument: bool) {
        self.rest = &self.rest[length..];
        self.has_argument = has_argument;
    }

    /// Reads the opening of a group and its flags or name.
    fn open(&mut self) -> Result<(), Refused> {
        self.depth += 1;
        let Some(flags) = self.rest.strip_prefix("(?") else {
            self.take(1, false);
            return Ok(());
        };
        if let Some(name) = flags.strip_prefix("P<").or_else(|| flags.strip_prefix('<')) {
            let Some(end) = name.find('>') else { return refuse("invalid named capture", self.rest) };
            let length_so_far = self.rest.len() - name.len() + end + 1;
            let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
            if end == 0 || !name[..end].chars().all(is_word) {
                return refuse("invalid named capture", &self.rest[..length_so_far]);
            }
            self.take(length_so_far, false);
            return Ok(());
        }
        for (at, c) in flags.char_indices() {
            match c {
                'i' | 'm' | 's' | 'U' | '-' => {}
                ':' => {
                    self.take(at + 3, false);
                    return Ok(());
                }
                ')' => {
                    self.depth -= 1;
                    self.take(at + 3, false);
                    return Ok(());
                }
                c => return refuse("invalid or unsupported Perl syntax", &self.rest[..2 + at + c.len_utf8()]),
            }
        }
        refuse("missing closing )", self.pattern)
    }

    fn class(&mut self) -> Result<(), Refused> {
        let unclosed = || refuse("missing closing ]", self.rest);
        let mut at = if self.rest[1..].starts_with('^') { 2 } else { 1 };
        let mut is_first = true;
        loop {
            let inside = &self.rest[at..];
            let Some(c) = inside.chars().next() else { return unclosed() };
            if c == ']' && !is_first {
                self.take(at + 1, true);
                return Ok(());
            }
            is_first = false;
            if let Some(name) = inside.strip_prefix("[:").and_then(|name| name.find(":]")) {
                at += name + 4;
                continue;
            }
            let low = if c == '\\' { escape(inside)? } else { c.len_utf8() };
            let after = &inside[low..];
            match after.strip_prefix('-').and_then(|high| high.chars().next()) {
                Some(high) if high != ']' => {
                    let length = if high == '\\' { escape(&after[1..])? } else { high.len_utf8() };
                    let length_so_far = low + 1 + length;
                    if c != '\\' && high != '\\' && high < c {
                        return refuse("invalid character class range", &inside[..length_so_far]);
                    }
                    at += length_so_far;
                }
                _ => at += low,
            }
        }
    }

    fn repeat(&mut self, length: usize, before: Option<&'p str>) -> Result<(), Refused> {
        let lazy = usize::from(self.rest[length..].starts_with('?'));
        let begin = self.rest;
        if let Some(before) = before {
            let end = before.len() - self.rest.len() + length + lazy;
            return refuse("invalid nested repetition operator", &before[..end]);
        }
        if !self.has_argument {
            return refuse("missing argument to repetition operator", &self.rest[..length + lazy]);
        }
        self.take(length + lazy, true);
        self.last_repeat = Some(begin);
        Ok(())
    }
}

fn refuse<T>(code: &'static str, at: &str) -> Result<T, Refused> {
    Err(Refused { code, at: at.to_owned() })
}

/// Returns the length of the `{n,m}` at the start of a string, and whether the count is allowed.
fn repetition(text: &str) -> Option<(usize, bool)> {
    let (inside, _) = text.strip_prefix('{')?.split_once('}')?;
    let (least, most) = inside.split_once(',').unwrap_or((inside, inside));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(least) || !(most.is_empty() || is_number(most)) {
        return None;
    }
    let least: u32 = least.parse().unwrap_or(u32::MAX);
    let most: u32 = if most.is_empty() { least } else { most.parse().unwrap_or(u32::MAX) };
    Some((inside.len() + 2, most <= 1000 && least <= most))
}

/// Returns the length of the escape at the start of a string.
fn escape(text: &str) -> Result<usize, Refused> {
    let Some(c) = text[1..].chars().next() else {
        return refuse("trailing backslash at end of expression", "");
    };
    let length = 1 + c.len_utf8();
    match c {
        'x' => {
            let digits = text[2..].bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
            match text[2..].strip_prefix('{').and_then(|inside| inside.find('}')) {
                Some(end) => Ok(4 + end),
                None if digits == 2 => Ok(4),
                None => refuse("invalid escape sequence", &text[..(2 + digits + 1).min(text.len())]),
            }
        }
        'p' | 'P' => match text[2..].strip_prefix('{').and_then(|inside| inside.find('}')) {
            Some(end) => Ok(4 + end),
            None => Ok(text[2..].chars().next().map_or(2, |c| 2 + c.len_utf8())),
        },
        '0'..='7' => Ok(length),
        'A' | 'b' | 'B' | 'z' | 'Q' | 'E' | 'C' => Ok(length),
        'a' | 'f' | 'n' | 'r' | 't' | 'v' | 'd' | 'D' | 's' | 'S' | 'w' | 'W' => Ok(length),
        c if c.is_ascii_alphanumeric() => refuse("invalid escape sequence", &text[..length]),
        _ => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use super::explain;

    #[test]
    fn refusals_in_the_words_of_go() {
        for (pattern, wanted) in [
            ("[", "missing closing ]: `[`"),
            ("a[b-", "missing closing ]: `[b-`"),
            ("(a", "missing closing ): `(a`"),
            ("a)", "unexpected ): `a)`"),
            ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("\\y", "invalid escape sequence: `\\y`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("(?P<a b>c)", "invalid named capture: `(?P<a b>`"),
        ] {
            assert_eq!(explain(pattern), Some(format!("error parsing regexp: {wanted}")), "{pattern}");
        }
        for pattern in ["", "^a+?[]a-z\\d[:alpha:]]{2,3}$", "(?i:a|b)(?P<n>c)*", "{a}", "\\x{10}\\p{Greek}\\.", "(?s)a"]
        {
            assert_eq!(explain(pattern), None, "{pattern}");
        }
    }
}
