//! Keys: the bytes of a terminal as what the user pressed.

/// A key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    Character(char),
    Control(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Backspace,
    Tab,
    Escape,
}

/// The sequences after ESC, as terminals send them in their modes.
const SEQUENCES: &[(&str, Key)] = &[
    ("[A", Key::Up),
    ("OA", Key::Up),
    ("[B", Key::Down),
    ("OB", Key::Down),
    ("[C", Key::Right),
    ("OC", Key::Right),
    ("[D", Key::Left),
    ("OD", Key::Left),
    ("[H", Key::Home),
    ("OH", Key::Home),
    ("[1~", Key::Home),
    ("[7~", Key::Home),
    ("[F", Key::End),
    ("OF", Key::End),
    ("[4~", Key::End),
    ("[8~", Key::End),
    ("[5~", Key::PageUp),
    ("[6~", Key::PageDown),
];

/// Parses what a terminal sent at once. Unknown sequences are skipped whole.
pub fn parse(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut keys = Vec::new();
    let mut rest = text.as_ref();
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        if first == '\u{1b}' {
            let (key, used) = escaped(after);
            keys.extend(key);
            rest = &after[used..];
            continue;
        }
        keys.extend(plain(first));
        rest = after;
    }
    keys
}

fn plain(character: char) -> Option<Key> {
    Some(match character {
        '\r' | '\n' => Key::Enter,
        '\t' => Key::Tab,
        '\u{7f}' | '\u{8}' => Key::Backspace,
        control @ '\u{1}'..='\u{1a}' => Key::Control(char::from(b'a' - 1 + control as u8)),
        other if other.is_control() || other == '\u{fffd}' => return None,
        other => Key::Character(other),
    })
}

/// Returns the key of a sequence, and the bytes of it after ESC.
fn escaped(after: &str) -> (Option<Key>, usize) {
    if let Some((sequence, key)) = SEQUENCES.iter().find(|(sequence, _)| after.starts_with(sequence)) {
        return (Some(key.clone()), sequence.len());
    }
    if !after.starts_with('[') {
        return (Some(Key::Escape), 0);
    }
    // A sequence that is not known ends with its first letter or tilde.
    let end = after[1..].find(|one: char| one.is_ascii_alphabetic() || one == '~');
    (None, end.map_or(after.len(), |end| end + 2))
}
