//! Versions of plugins: `1.0.0`, `v1`, `0.3`. Pure.

/// Returns the highest version with this major number; pre-releases count as their release.
pub fn highest(versions: &[String], major: u64) -> Option<String> {
    let parsed = versions.iter().filter_map(|text| Some((numbers(text)?, text)));
    let fits = parsed.filter(|(numbers, _)| numbers[0] == major);
    fits.max_by(|a, b| a.0.cmp(&b.0)).map(|(_, text)| text.clone())
}

/// Reports whether the first is older than the second; an invalid one is the oldest.
pub fn is_less(first: &str, second: &str) -> bool {
    numbers(first) < numbers(second)
}

fn numbers(text: &str) -> Option<[u64; 3]> {
    let plain = text.trim().trim_start_matches('v').split(['-', '+']).next()?;
    let mut numbers = [0; 3];
    for (at, part) in plain.split('.').enumerate() {
        *numbers.get_mut(at)? = part.parse().ok()?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_version_of_the_interface_is_chosen() {
        for (versions, expected) in [
            (&["1.0.0"][..], Some("1.0.0")),
            (&["0.3.0", "1.2.0", "1.10.0"], Some("1.10.0")),
            (&["v1"], Some("v1")),
            (&["0.3.0", "2.0.0"], None),
            (&["nonsense", ""], None),
            (&[], None),
        ] {
            let versions: Vec<String> = versions.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(highest(&versions, 1).as_deref(), expected, "{versions:?}");
        }
        assert!(is_less("1.9.0", "1.10.0") && !is_less("1.0.0", "v1"));
    }
}
