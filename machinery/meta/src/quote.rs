//! Text quoted as Go's `%q` writes it: error messages of the API hold names and values in this form.

use std::fmt::Write as _;

/// `text` in double quotes, with Go's escapes.
pub fn quote<T: AsRef<str> + ?Sized>(text: &T) -> String {
    let text = text.as_ref();
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

/// A list of texts in the same way: `["a" "b"]`.
pub fn quote_list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts.iter().map(quote).collect();
    format!("[{}]", texts.join(" "))
}

/// Go prints letters, marks, numbers, punctuation, symbols and the ASCII space as they are, and so does the standard
/// library, but for marks that open a text: these have nothing to stand on.
fn is_printable(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic() || (!c.is_ascii() && !format!("a{c}").escape_debug().any(|shown| shown == '\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        for (text, expected) in [
            ("web", r#""web""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("a\nb\tc", r#""a\nb\tc""#),
            ("\u{1}\u{7f}", r#""\x01\x7f""#),
            ("é日", "\"é日\""),
            ("\u{a0}\u{feff}", r#""\u00a0\ufeff""#),
            ("\0\u{85}\u{2028}\u{e000}", r#""\x00\u0085\u2028\ue000""#),
            ("\u{301}e\u{301}\u{200d}", "\"\u{301}e\u{301}\\u200d\""),
            ("\u{378}\u{fffe}\u{e0001}\u{10ffff}", r#""\u0378\ufffe\U000e0001\U0010ffff""#),
            ("😀'`", "\"😀'`\""),
        ] {
            assert_eq!(quote(text), expected, "{text:?}");
        }
        assert_eq!(quote_list::<&str>(&[]), "[]");
        assert_eq!(quote_list(&["a", "b\n"]), r#"["a" "b\n"]"#);
    }
}
