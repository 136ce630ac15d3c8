//! Lists of indexes as a Job's status and success policy write them: `1,3-5,7`, in ascending order.

use corten_meta::quote::quote;

/// Returns the intervals of a list, each with its ends.
fn intervals(text: &str, completions: i64) -> impl Iterator<Item = Result<(i64, i64), String>> {
    text.split(',').filter(move |_| !text.is_empty()).map(move |part| interval(part, completions))
}

fn interval(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let index = |text: &str| {
        let number = text.parse::<i64>();
        let number = number.map_err(|_| format!("cannot convert string to integer for index: {}", quote(text)))?;
        if number >= completions { Err(format!("too large index: {}", quote(text))) } else { Ok(number) }
    };
    let ends: Vec<&str> = part.split('-').collect();
    match ends.as_slice() {
        [one] => index(one).map(|n| (n, n)),
        [first, last] => match (index(first)?, index(last)?) {
            (first, last) if first >= last => Err(format!("non-increasing order, previous: {first}, current: {last}")),
            ends => Ok(ends),
        },
        _ => Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by '-'",
            quote(part)
        )),
    }
}

/// Returns the number of indexes in a list.
pub(super) fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let mut total = 0;
    let mut last = None;
    for interval in intervals(text, completions) {
        let (first, end) = interval?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first index that two lists share; other rules report an invalid list.
pub(super) fn overlap(a: &str, b: &str, completions: i64) -> Option<i64> {
    let b: Vec<(i64, i64)> = intervals(b, completions).flatten().collect();
    intervals(a, completions).flatten().find_map(|(first, last)| {
        let shared = b.iter().find(|(start, end)| first <= *end && *start <= last);
        shared.map(|(start, _)| first.max(*start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(count_indexes("", 5), Ok(0));
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        for (text, wanted) in [
            ("5", "too large index: \"5\""),
            ("x", "cannot convert string to integer for index: \"x\""),
            ("3-1", "non-increasing order, previous: 3, current: 1"),
            ("3,1", "non-increasing order, previous: 3, current: 1"),
        ] {
            assert_eq!(count_indexes(text, 5), Err(wanted.to_string()), "{text}");
        }
        assert_eq!(overlap("0,2-4", "1,3", 5), Some(3));
        assert_eq!(overlap("0,2", "1,3", 5), None);
    }
}
