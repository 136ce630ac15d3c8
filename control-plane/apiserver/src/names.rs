//! Names that the server generates.

/// Returns a name of the form `<base><five characters>`, at most 63 long.
pub fn generated_name(base: &str) -> String {
    const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let random = uuid::Uuid::new_v4();
    let suffix: String =
        random.as_bytes().iter().take(5).map(|b| CHARACTERS[usize::from(*b) % CHARACTERS.len()] as char).collect();
    let kept: String = base.chars().take(58).collect();
    format!("{kept}{suffix}")
}
