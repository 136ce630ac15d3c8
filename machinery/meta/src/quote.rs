//! Text quoted as Go's `%q` writes it: error messages of the API hold names and values in this form.

use std::fmt::Write as _;

/// `text` in double quotes, with Go's escapes.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x1_0000 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => {
                let _ = write!(out, "\\U{:08x}", c as u32);
            }
        }
    }
    out.push('"');
    out
}

/// Go prints letters, marks, numbers, punctuation, symbols and the ASCII space as they are.
fn is_printable(c: char) -> bool {
    !(c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}'))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_as_go_does() {
        for (text, expected) in [
            ("web", r#""web""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("a\nb\tc", r#""a\nb\tc""#),
            ("\u{1}\u{7f}", r#""\x01\x7f""#),
            ("é日", "\"é日\""),
            ("\u{a0}\u{feff}", r#""\u00a0\ufeff""#),
        ] {
            assert_eq!(quote(text), expected, "{text:?}");
        }
    }
}
