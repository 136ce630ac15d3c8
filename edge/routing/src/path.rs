//! Paths as rules see them: as the client wrote them, without dot segments.
//!
//! Percent-encoded characters stay encoded, as Envoy has it: a path with `%2F` is another path than one with a slash, and
//! the backend sees the same bytes that were matched. Dot segments would let a client leave a prefix that a rule protects.

use std::borrow::Cow;

/// The error of a path that leaves its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsafePath;

/// Returns a path without dot segments, written plainly or percent-encoded. A backslash is a slash to some servers, so a
/// path with one beside a dot segment is refused.
pub fn normalize(path: &str) -> Result<Cow<'_, str>, UnsafePath> {
    if !may_have_dot_segment(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match dots(segment) {
            Some(1) if is_last => kept.push(""),
            Some(1) => {}
            Some(_) => {
                kept.pop().ok_or(UnsafePath)?;
                if is_last {
                    kept.push("");
                }
            }
            None if segment.contains('\\') && segment.split('\\').any(|part| dots(part).is_some()) => {
                return Err(UnsafePath);
            }
            None => kept.push(segment),
        }
    }
    Ok(Cow::Owned(format!("/{}", kept.join("/"))))
}

/// Reports whether a path may have a dot segment: a dot after a slash or backslash.
fn may_have_dot_segment(path: &[u8]) -> bool {
    path.windows(2).any(|pair| matches!(pair, [b'/' | b'\\', b'.' | b'%']))
}

/// Returns the number of dots of a dot segment.
fn dots(segment: &str) -> Option<usize> {
    let mut rest = segment;
    let mut dots = 0;
    while !rest.is_empty() {
        rest = rest.strip_prefix('.').or_else(|| rest.strip_prefix("%2e")).or_else(|| rest.strip_prefix("%2E"))?;
        dots += 1;
        if dots > 2 {
            return None;
        }
    }
    (dots > 0).then_some(dots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dot_segments_are_resolved() {
        for (path, expected) in [
            ("/", Ok("/")),
            ("/a/b", Ok("/a/b")),
            ("/a/./b", Ok("/a/b")),
            ("/a/../b", Ok("/b")),
            ("/a/%2e%2E/b", Ok("/b")),
            ("/a/.%2e/b", Ok("/b")),
            ("/a/b/..", Ok("/a/")),
            ("/a/b/.", Ok("/a/b/")),
            ("/a//b", Ok("/a//b")),
            ("/a//../b", Ok("/a/b")),
            ("/.well-known/x", Ok("/.well-known/x")),
            ("/...", Ok("/...")),
            ("/a/%2F..", Ok("/a/%2F..")),
            ("/..", Err(UnsafePath)),
            ("/a/../../b", Err(UnsafePath)),
            ("/a/..\\b", Err(UnsafePath)),
            ("*", Ok("*")),
        ] {
            assert_eq!(normalize(path).as_deref(), expected.as_deref(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_normalized_path_has_no_dot_segment_and_stays(path in "(/(a|b|\\.|\\.\\.|%2e|%2E\\.|\\.\\.\\.|))*") {
            if let Ok(normalized) = normalize(&path) {
                prop_assert!(normalized.split('/').all(|segment| dots(segment).is_none()));
                prop_assert_eq!(normalize(&normalized), Ok(normalized.clone()));
            }
        }
    }
}
