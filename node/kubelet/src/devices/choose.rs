//! Which devices a container gets. Pure: what is healthy, what is taken and what may be used again go in.

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// What can be given to a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub wanted: usize,
    /// Devices of an earlier init container of the pod, which it gets in any case.
    pub reused: BTreeSet<String>,
    /// Healthy devices that nobody has.
    pub available: BTreeSet<String>,
}

pub fn wish(
    resource: &str,
    wanted: usize,
    healthy: &BTreeSet<String>,
    in_use: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
) -> Result<Wish> {
    if healthy.is_empty() {
        return Err(Error::pod(format!("no healthy devices present; cannot allocate unhealthy devices {resource}")));
    }
    let reused: BTreeSet<String> = reusable.iter().take(wanted).cloned().collect();
    let available: BTreeSet<String> = healthy.difference(in_use).cloned().collect();
    let missing = wanted - reused.len();
    if available.len() < missing {
        return Err(Error::pod(format!(
            "requested number of devices unavailable for {resource}. Requested: {missing}, Available: {}",
            available.len()
        )));
    }
    Ok(Wish { wanted, reused, available })
}

/// What is used again, then what the plugin prefers, then any in the order of their names.
pub fn choose(wish: &Wish, preferred: &BTreeSet<String>) -> BTreeSet<String> {
    let liked = wish.available.intersection(preferred);
    let others = wish.available.difference(preferred);
    let missing = wish.wanted - wish.reused.len();
    wish.reused.iter().chain(liked.chain(others).take(missing)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> BTreeSet<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn reused_then_preferred_then_any() {
        for (wanted, healthy, in_use, reusable, preferred, expected) in [
            (2, "a b c", "", "", "", "a b"),
            (2, "a b c", "", "", "c", "a c"),
            (2, "a b c", "a", "", "a", "b c"),
            (2, "a b c", "a", "a", "c", "a c"),
            (1, "a b", "a b", "b", "", "b"),
        ] {
            let wish = wish("r", wanted, &set(healthy), &set(in_use), &set(reusable)).unwrap();
            assert_eq!(choose(&wish, &set(preferred)), set(expected), "{healthy} {in_use} {reusable} {preferred}");
        }
    }

    #[test]
    fn a_shortage_is_told_in_upstreams_words() {
        let error = wish("e.com/d", 2, &set("a b"), &set("b"), &set("")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "requested number of devices unavailable for e.com/d. Requested: 2, Available: 1"
        );
        let error = wish("e.com/d", 1, &set(""), &set(""), &set("")).unwrap_err();
        assert_eq!(error.to_string(), "no healthy devices present; cannot allocate unhealthy devices e.com/d");
    }
}
