//! The parser of JSON paths, with the error messages of kubectl's templates, whose language this is.
//!
//! A path is the part between the braces of a template: `.spec.replicas` of `{.spec.replicas}`. A brace inside closes
//! it early; the rest is text with further paths, which must be valid too.

use super::{JsonPath, Slice, Step};
use corten_meta::{Value, quote::quote};

type Read<T> = Result<T, String>;

/// Returns the steps of a path.
pub(super) fn steps(text: &str) -> Read<Vec<Step>> {
    let template = format!("{text}}}");
    let mut reader = Reader(&template);
    let steps = reader.steps()?;
    while let Some((_, next)) = reader.0.split_once('{') {
        reader.0 = next;
        reader.steps()?;
    }
    Ok(steps)
}

fn path(text: &str) -> Read<JsonPath> {
    steps(text).map(JsonPath)
}

/// The characters that are left to read.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    /// Reads to the closing brace.
    fn steps(&mut self) -> Read<Vec<Step>> {
        let mut out = Vec::new();
        loop {
            if self.skips("}") {
                return Ok(out);
            }
            if self.skips("[?(") {
                out.push(self.filter()?);
                continue;
            }
            if self.0.starts_with("..") {
                if out.last() == Some(&Step::Deep) {
                    return Err("invalid multiple recursive descent".to_owned());
                }
                self.skips("..");
                out.push(Step::Deep);
                if self.0.starts_with(is_word) {
                    out.push(self.field());
                }
                continue;
            }
            match self.0.chars().next() {
                None | Some('\r' | '\n') => return Err("unclosed action".to_owned()),
                Some(' ' | '@' | '$') => drop(self.take(1)),
                Some('[') => self.brackets(&mut out)?,
                Some(mark @ ('"' | '\'')) => out.push(Step::Literal(self.quoted(mark)?.into())),
                Some('.') => {
                    self.take(1);
                    out.push(self.field());
                }
                Some(c) if c == '+' || c == '-' || c.is_numeric() => out.push(self.number()?),
                Some(c) if is_word(c) => out.push(self.word()),
                Some(c) => {
                    let shown = quote(c.encode_utf8(&mut [0; 4]));
                    let shown = if shown.contains('\\') && c != '\\' { String::new() } else { format!(" '{c}'") };
                    return Err(format!("unrecognized character in action: U+{:04X}{shown}", u32::from(c)));
                }
            }
        }
    }

    fn skips(&mut self, prefix: &str) -> bool {
        let rest = self.0.strip_prefix(prefix);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    /// Takes the characters before the first one that ends them.
    fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        self.take(self.0.find(ends).unwrap_or(self.0.len()))
    }

    /// Reads a name; a backslash makes the next character part of it.
    fn field(&mut self) -> Step {
        let mut characters = self.0.char_indices();
        let mut end = self.0.len();
        while let Some((at, c)) = characters.next() {
            if c == '\\' {
                characters.next();
            } else if is_end(c) {
                end = at;
                break;
            }
        }
        match self.take(end) {
            "*" => Step::Every,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    /// Reads a word without a dot: a boolean, or a word that only templates have.
    fn word(&mut self) -> Step {
        let word = self.until(is_end);
        word.parse::<bool>().map_or(Step::Word, |boolean| Step::Literal(boolean.into()))
    }

    fn number(&mut self) -> Read<Step> {
        let sign = usize::from(self.0.starts_with(['+', '-']));
        let digits = self.0[sign..].find(|c: char| c != '.' && !c.is_numeric());
        let text = self.take(digits.map_or(self.0.len(), |end| sign + end));
        let float = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from);
        let number = text.parse::<i64>().ok().map(Value::from).or_else(float);
        number.map(Step::Literal).ok_or_else(|| format!("cannot parse number {text}"))
    }

    fn quoted(&mut self, mark: char) -> Read<String> {
        let closes = |at: usize, c: char| at > 0 && c == mark && !self.0[..at].ends_with('\\');
        let found = self.0.char_indices().find(|(at, c)| *c == '\n' || closes(*at, *c));
        let Some((end, _)) = found.filter(|(_, c)| *c == mark) else {
            return Err("unterminated quoted string".to_owned());
        };
        let text = self.take(end + 1);
        unquoted(&text[1..end], mark).ok_or_else(|| format!("unquote string {text} error invalid syntax"))
    }

    /// Reads the content of brackets: a key, a slice, or several of them.
    fn brackets(&mut self, out: &mut Vec<Step>) -> Read<()> {
        let Some(end) = self.0.find([']', '\n']).filter(|end| self.0[*end..].starts_with(']')) else {
            return Err("unterminated array".to_owned());
        };
        let inside = &self.take(end + 1)[1..end];
        if inside.contains(',') {
            let all = inside.split(',').map(|one| path(&format!("[{}]", one.trim_matches(' '))));
            out.push(Step::Union(all.collect::<Read<_>>()?));
        } else if let Some(key) = key(inside) {
            // The key is parsed as a path again, so its dots must be escaped.
            out.extend(steps(&format!(".{key}"))?);
        } else {
            out.push(Step::Slice(slice(if inside == "*" { ":" } else { inside })?));
        }
        Ok(())
    }

    /// Reads a filter after its `[?(`. A parenthesis within the first quotes does not end it.
    fn filter(&mut self) -> Read<Step> {
        let mut opened = None;
        let mut closed = false;
        let end = self.0.char_indices().find(|(at, c)| {
            match (c, opened) {
                ('"' | '\'', None) => opened = Some(*c),
                ('"' | '\'', Some(mark)) => closed |= mark == *c && !self.0[..*at].ends_with('\\'),
                _ => {}
            }
            *c == '\n' || *c == ')' && opened.is_some() == closed
        });
        let Some((end, ')')) = end else { return Err("unterminated filter".to_owned()) };
        let inside = self.take(end);
        if !self.skips(")]") {
            return Err("unclosed array expect ]".to_owned());
        }
        let is_operator = |c: char| "!<>=".contains(c);
        let split = inside.find(is_operator).filter(|at| *at > 0).and_then(|at| {
            let (left, rest) = inside.split_at(at);
            let operators = rest.find(|c| !is_operator(c)).unwrap_or(rest.len() - 1);
            (operators > 0).then(|| (left, rest.split_at(operators)))
        });
        Ok(match split {
            Some((left, (operator, right))) => Step::Compare(path(left)?, operator.to_owned(), path(right)?),
            None => Step::Has(path(inside)?),
        })
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Reports whether a character ends a name.
fn is_end(c: char) -> bool {
    " \t\r\n.,[]$@{}".contains(c)
}

/// Returns the key in single quotes.
fn key(inside: &str) -> Option<&str> {
    inside.strip_prefix('\'')?.strip_suffix('\'').filter(|key| !key.contains('\''))
}

/// Reads `[from:to:step]`, each of which may be left out.
fn slice(text: &str) -> Read<Slice> {
    let is_number = |part: &str| part.strip_prefix('-').unwrap_or(part).bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 || !parts.iter().all(|part| is_number(part)) {
        return Err(format!("invalid array index {text}"));
    }
    let number = |at: usize| match parts.get(at) {
        None | Some(&"") => Ok(None),
        Some(part) => part.parse::<i64>().map(Some).map_err(|_| format!("array index {part} is not a number")),
    };
    let from = number(0)?.unwrap_or(0);
    let is_index = parts.len() == 1;
    let to = if is_index { Some(from.wrapping_add(1)) } else { number(1)? };
    Ok(Slice { from, to, is_index, step: number(2)? })
}

/// Removes the quotes and Go's escapes of a string.
fn unquoted(text: &str, mark: char) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '\\' {
            out.extend((c != mark).then_some(c)?.encode_utf8(&mut [0; 4]).bytes());
            continue;
        }
        let escape = rest.chars().next()?;
        let (digits, base) = match escape {
            'x' => (1..3, 16),
            'u' => (1..5, 16),
            'U' => (1..9, 16),
            '0'..='7' => (0..3, 8),
            'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' => (0..0, 0),
            other if other == mark => (0..0, 0),
            _ => return None,
        };
        if digits.is_empty() {
            out.push(match escape {
                'a' => 7,
                'b' => 8,
                'f' => 12,
                'n' => b'\n',
                'r' => b'\r',
                't' => b'\t',
                'v' => 11,
                other => u8::try_from(other).ok()?,
            });
            rest = &rest[escape.len_utf8()..];
            continue;
        }
        let end = digits.end;
        let digits = rest.get(digits)?;
        let number = u32::from_str_radix(digits.strip_prefix('+').map_or(digits, |_| ""), base).ok()?;
        match escape {
            'u' | 'U' => out.extend(char::from_u32(number)?.encode_utf8(&mut [0; 4]).bytes()),
            _ => out.push(u8::try_from(number).ok()?),
        }
        rest = &rest[end..];
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::steps;

    #[test]
    fn invalid_paths_are_reported() {
        for (text, wanted) in [
            ("spec.validations[0].expression", ""),
            (".a} and {.b", ""),
            ("", ""),
            ("range .items[*]", ""),
            (".a[]", ""),
            (r".a['b\.c'][1:2:3]", ""),
            (r#""\x41\u00e9\101\t\"""#, ""),
            (r#".a[?(@.b==")")]"#, ""),
            ("10.0.0.5/24", "cannot parse number 10.0.0.5"),
            ("-", "cannot parse number -"),
            ("1/2", "unrecognized character in action: U+002F '/'"),
            ("=", "unrecognized character in action: U+003D '='"),
            ("\\", "unrecognized character in action: U+005C '\\'"),
            ("\u{7}", "unrecognized character in action: U+0007"),
            ("\t", "unrecognized character in action: U+0009"),
            ("..", ""),
            ("....", "invalid multiple recursive descent"),
            (".a\nb", "unclosed action"),
            (r".a\", "unclosed action"),
            (".a} {=", "unrecognized character in action: U+003D '='"),
            (".a[", "unterminated array"),
            (".a[b]", "invalid array index b"),
            (".a[1:2:3:4]", "invalid array index 1:2:3:4"),
            (".a[-]", "array index - is not a number"),
            (".a[1,b]", "invalid array index b"),
            ("'a", "unterminated quoted string"),
            (r#""\q""#, r#"unquote string "\q" error invalid syntax"#),
            (".a[?(@.b", "unterminated filter"),
            (".a[?(@.b)", "unclosed array expect ]"),
            (".a[?(@.b==)]", "unrecognized character in action: U+003D '='"),
            (".a[?(@.b==/)]", "unrecognized character in action: U+002F '/'"),
        ] {
            assert_eq!(steps(text).err().unwrap_or_default(), wanted, "{text}");
        }
    }
}
