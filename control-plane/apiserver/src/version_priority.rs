//! The priority of API versions.

/// Returns the rank of a version: stable before beta before alpha, then the higher number; other names last, by name.
pub fn priority(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let name = std::cmp::Reverse(version.to_owned());
    let split = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        Some((text[..end].parse::<u32>().ok()?, text[end..].to_owned()))
    };
    let Some((major, rest)) = version.strip_prefix('v').and_then(split) else { return (0, 0, 0, name) };
    let stage = |word: &str| rest.strip_prefix(word).and_then(|n| n.parse::<u32>().ok());
    match (rest.is_empty(), stage("beta"), stage("alpha")) {
        (true, _, _) => (3, major, 0, name),
        (_, Some(minor), _) => (2, major, minor, name),
        (_, _, Some(minor)) => (1, major, minor, name),
        _ => (0, 0, 0, name),
    }
}
