//! Strings quoted as Go's `%q` does, for error messages of the API.

use std::fmt::Write as _;

/// Returns `text` in double quotes, with Go's escapes.
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

/// Returns a list of quoted strings: `["a" "b"]`.
pub fn quote_list<T: AsRef<str>>(strings: &[T]) -> String {
    let strings: Vec<String> = strings.iter().map(quote).collect();
    format!("[{}]", strings.join(" "))
}

/// Reports whether Go prints a character as it is: letters, marks, numbers, punctuation, symbols and the ASCII space.
/// The standard library does too, except for a combining mark at the beginning of a string, and it knows a newer
/// Unicode.
pub fn is_printable(c: char) -> bool {
    let is_shown = || !format!("a{c}").escape_debug().any(|shown| shown == '\\');
    c == ' ' || c.is_ascii_graphic() || (!c.is_ascii() && is_shown() && !is_new(c))
}

/// Reports whether a character is newer than Unicode 15.0, which Go uses. A range may contain characters that neither
/// prints.
fn is_new(c: char) -> bool {
    matches!(c,
        '\u{88f}'..='\u{897}' | '\u{c5c}' | '\u{cdc}' | '\u{1acf}'..='\u{1aeb}' | '\u{1b4e}'..='\u{1b4f}' | '\u{1b7f}'
        | '\u{1c89}'..='\u{1c8a}' | '\u{20c1}' | '\u{2427}'..='\u{2429}' | '\u{2b96}' | '\u{2ffc}'..='\u{2fff}'
        | '\u{31e4}'..='\u{31ef}' | '\u{a7cb}'..='\u{a7cf}' | '\u{a7d2}' | '\u{a7d4}' | '\u{a7da}'..='\u{a7f1}'
        | '\u{fbc3}'..='\u{fbd2}' | '\u{fd90}'..='\u{fd91}' | '\u{fdc8}'..='\u{fdce}' | '\u{105c0}'..='\u{105f3}'
        | '\u{10940}'..='\u{10959}' | '\u{10d40}'..='\u{10d8f}' | '\u{10ec2}'..='\u{10efc}'
        | '\u{11380}'..='\u{113e2}' | '\u{116d0}'..='\u{116e3}' | '\u{11b60}'..='\u{11bf9}'
        | '\u{11db0}'..='\u{11de9}' | '\u{11f5a}' | '\u{13460}'..='\u{143fa}' | '\u{16100}'..='\u{16139}'
        | '\u{16d40}'..='\u{16d79}' | '\u{16ea0}'..='\u{16ed3}' | '\u{16ff2}'..='\u{16ff6}'
        | '\u{187f8}'..='\u{187ff}' | '\u{18cff}' | '\u{18d09}'..='\u{18df2}' | '\u{1cc00}'..='\u{1cef0}'
        | '\u{1e5d0}'..='\u{1e6ff}' | '\u{1f6d8}' | '\u{1f777}'..='\u{1f77a}' | '\u{1f8b2}'..='\u{1f8d8}'
        | '\u{1fa54}'..='\u{1fa57}' | '\u{1fa89}'..='\u{1fa8f}' | '\u{1fabe}' | '\u{1fac6}'..='\u{1facd}'
        | '\u{1fadc}'..='\u{1fadf}' | '\u{1fae9}'..='\u{1faef}' | '\u{1fbcb}'..='\u{1fbef}' | '\u{1fbfa}'
        | '\u{2b73a}'..='\u{2b73f}' | '\u{2cea2}'..='\u{2cead}' | '\u{2ebf0}'..='\u{2ee5d}'
        | '\u{323b0}'..='\u{33479}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected count is that of Go 1.26.
    #[test]
    fn as_many_characters_are_printable_as_in_go() {
        let printed = ('\0'..=char::MAX).filter(|c| is_printable(*c)).count();
        assert_eq!(printed, 148_998);
        assert_eq!(quote("\u{1c89}\u{2ffc}\u{1fae9}\u{1c88}"), "\"\\u1c89\\u2ffc\\U0001fae9\u{1c88}\"");
    }

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
