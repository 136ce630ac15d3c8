//! Text of the cluster for a terminal: without control characters, and cut to a width.

use std::fmt::Write as _;

/// Escapes the characters that a terminal obeys, or that change the order of what it shows.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\t' => cleaned.push_str("    "),
            other if is_obeyed(other) => {
                // Writing into a string cannot fail.
                let _ = write!(cleaned, "\\u{{{:x}}}", u32::from(other));
            }
            other => cleaned.push(other),
        }
    }
    cleaned
}

/// Reports whether a character is a control, a mark of direction, or has no width.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns the columns that a character takes.
fn width_of(character: char) -> usize {
    match u32::from(character) {
        0x0300..=0x036f | 0x0483..=0x0489 | 0x0591..=0x05bd | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xf900..=0xfaff | 0xfe30..=0xfe6f | 0xff00..=0xff60 => 2,
        0xffe0..=0xffe6 | 0x1f300..=0x1faff | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// Returns the columns that a text takes.
pub fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

/// Cuts a text to a number of columns, with a mark at its end if it was longer.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 0;
    for character in text.chars() {
        if used + width_of(character) >= columns {
            break;
        }
        used += width_of(character);
        cut.push(character);
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// Cuts or fills a text to exactly a number of columns.
pub fn fit(text: &str, columns: usize) -> String {
    let mut fitted = cut(text, columns);
    let missing = columns.saturating_sub(width(&fitted));
    fitted.extend(std::iter::repeat_n(' ', missing));
    fitted
}
