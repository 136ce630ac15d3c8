//! The root of all keys of the API in the store, `/registry` unless configured.

use std::borrow::Cow;

/// The root of the prefixes that kinds declare.
const DECLARED: &str = "/registry";

/// The root of all keys. Kinds declare their prefixes below `/registry`; only keys of the store have the real root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(String);

impl Root {
    /// Makes the root of a configured prefix, which begins with a slash and does not end with one.
    pub fn new(prefix: &str) -> Root {
        Root(format!("/{}", prefix.trim_matches('/')))
    }

    /// Returns the key, or the prefix of keys, of a declared one.
    pub fn key(&self, declared: &str) -> String {
        format!("{}{}", self.0, declared.strip_prefix(DECLARED).unwrap_or(declared))
    }

    /// Returns the declared form of a key; `None` if it is not below the root.
    pub fn declared<'a>(&self, key: &'a str) -> Option<Cow<'a, str>> {
        if self.0 == DECLARED {
            return Some(Cow::Borrowed(key));
        }
        key.strip_prefix(&self.0).map(|rest| Cow::Owned(format!("{DECLARED}{rest}")))
    }

    /// Returns the prefix of all keys.
    pub fn all(&self) -> String {
        format!("{}/", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_configured_root() {
        for (prefix, key) in [("/registry", "/registry/pods/a/b"), ("kubernetes.io/", "/kubernetes.io/pods/a/b")] {
            let root = Root::new(prefix);
            assert_eq!(root.key("/registry/pods/a/b"), key);
            assert_eq!(root.declared(key).as_deref(), Some("/registry/pods/a/b"));
            assert!(key.starts_with(&root.all()));
        }
        assert_eq!(Root::new("/x").declared("/registry/pods"), None);
    }
}
