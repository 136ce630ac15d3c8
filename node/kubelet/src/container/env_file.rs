//! `fileKeyRef`: a variable from a file that an earlier container of the pod wrote into a volume. A container controls
//! the file's content, so the file is opened inside the volume only, and read up to a limit.
//!
//! The notation is a strict subset of a shell's: `NAME='value'`, the value literal and possibly over several lines,
//! with comments and blank lines between.

use std::io::Read;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use crate::error::{Error, Result};

/// The largest file: an environment could not hold more.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the value of the key in a file of the volume; `None` if the file does not have it.
pub fn value(volume: &Path, path: &str, key: &str) -> Result<Option<String>> {
    let text = read(volume, path)?;
    find(&text, key).map_err(|error| {
        tracing::warn!(error, path, "a file of variables makes no sense");
        Error::pod("couldn't parse env file")
    })
}

fn read(volume: &Path, path: &str) -> Result<String> {
    let full_path = volume.join(path);
    let failed = |errno: rustix::io::Errno| Error::file("open", &full_path)(errno.into());
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    // A pipe in place of the file must not block the kubelet.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = std::fs::File::from(rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve).map_err(failed)?);
    let is_file = file.metadata().map_err(Error::file("stat", &full_path))?.is_file();
    if !is_file {
        return Err(Error::pod(format!("{path:?} is not a file")));
    }
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(Error::file("read", &full_path))?;
    Ok(text)
}

/// Parses up to the key and ignores the rest. Pure.
pub(crate) fn find(text: &str, key: &str) -> std::result::Result<Option<String>, String> {
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let wrong = |why: &str| Err(format!("invalid environment variable format at line {}: {why}", at + 1));
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=') else { return wrong("missing '='") };
        if name.is_empty() {
            return wrong("empty variable name");
        }
        if name.ends_with([' ', '\t']) {
            return wrong("whitespace before '=' is not allowed");
        }
        if value.starts_with([' ', '\t']) || value.is_empty() {
            // Nothing is assigned, as in a shell.
            if value.is_empty() {
                return wrong("value must be enclosed in single quotes");
            }
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let Some(rest) = value.strip_prefix('\'') else { return wrong("value must be enclosed in single quotes") };
        let mut value = String::new();
        let mut rest = rest;
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break after.trim_start_matches([' ', '\t']);
            }
            value.push_str(rest);
            value.push('\n');
            match lines.next() {
                Some((_, next)) => rest = next,
                None => return wrong("unclosed single quote"),
            }
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong("unexpected content after closing quote");
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_as_upstream_finds_them() {
        let text = "# comment\n\n  A='one' # note\nB='two\nlines'\nC= 'nothing'\nD='$A \"x\"'\n";
        for (key, expected) in
            [("A", Some("one")), ("B", Some("two\nlines")), ("C", None), ("D", Some("$A \"x\"")), ("E", None)]
        {
            assert_eq!(find(text, key).unwrap().as_deref(), expected, "{key}");
        }
        for (text, expected) in [
            ("A", "line 1: missing '='"),
            ("=x", "line 1: empty variable name"),
            ("A ='x'", "line 1: whitespace before '=' is not allowed"),
            ("\nA=x", "line 2: value must be enclosed in single quotes"),
            ("A='x' y", "line 1: unexpected content after closing quote"),
            ("A='x\ny", "line 1: unclosed single quote"),
        ] {
            assert!(find(text, "Z").unwrap_err().ends_with(expected), "{text}");
        }
    }

    #[test]
    fn a_link_never_leads_out_of_the_volume() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(root.path().join("secret"), "A='secret'\n").unwrap();
        std::fs::write(volume.join("good"), "A='good'\n").unwrap();
        for (link, target) in
            [("up", "../secret"), ("far", root.path().join("secret").to_str().unwrap()), ("in", "good")]
        {
            std::os::unix::fs::symlink(target, volume.join(link)).unwrap();
        }
        assert_eq!(value(&volume, "good", "A").unwrap().as_deref(), Some("good"));
        assert_eq!(value(&volume, "in", "A").unwrap().as_deref(), Some("good"));
        for outside in ["up", "far", "../secret"] {
            assert!(value(&volume, outside, "A").is_err(), "{outside}");
        }
    }
}
