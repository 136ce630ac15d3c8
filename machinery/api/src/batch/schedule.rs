//! The syntax of cron schedules: five fields, or a well-known name. It computes no times; controllers do.

use corten_meta::quote::quote;

/// Returns the error message of an invalid schedule.
pub(super) fn schedule_error(schedule: &str) -> Option<String> {
    if let Some(name) = schedule.strip_prefix('@') {
        let known = ["yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly"];
        let every = name.strip_prefix("every ").is_some_and(|d| !d.is_empty());
        return (!known.contains(&name) && !every).then(|| format!("unrecognized descriptor: @{name}"));
    }
    const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let bounds: [(u32, u32, &[&str]); 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 6, DAYS)];
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != bounds.len() {
        return Some(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    fields.iter().zip(bounds).find_map(|(field, bounds)| field.split(',').find_map(|part| range_error(part, bounds)))
}

/// Returns the error of a range: `*`, `n`, `n-m`, each with an optional `/step`.
fn range_error(part: &str, (low, high, names): (u32, u32, &[&str])) -> Option<String> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    if let Some(step) = step {
        match step.parse::<u32>() {
            Ok(0) => return Some(format!("step of range should be a positive number: {part}")),
            Ok(_) => {}
            Err(_) => {
                return Some(format!(
                    "failed to parse int from {step}: strconv.Atoi: parsing {}: invalid syntax",
                    quote(step)
                ));
            }
        }
    }
    if range == "*" || range == "?" {
        return None;
    }
    let value = |text: &str| -> Result<u32, String> {
        let base = if low == 1 { 1 } else { 0 };
        if let Some(at) = names.iter().position(|n| n.eq_ignore_ascii_case(text)) {
            return Ok(at as u32 + base);
        }
        text.parse().map_err(|_| {
            format!("failed to parse int from {text}: strconv.Atoi: parsing {}: invalid syntax", quote(text))
        })
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = match (value(first), value(last)) {
        (Ok(first), Ok(last)) => (first, last),
        (Err(error), _) | (_, Err(error)) => return Some(error),
    };
    if first < low {
        return Some(format!("beginning of range ({first}) below minimum ({low}): {part}"));
    }
    if last > high {
        return Some(format!("end of range ({last}) above maximum ({high}): {part}"));
    }
    (first > last).then(|| format!("beginning of range ({first}) beyond end of range ({last}): {part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for good in ["*/5 * * * *", "0 0 1 JAN sun", "1-5,7 */2 ? * 1-5", "@hourly", "@every 1h"] {
            assert_eq!(schedule_error(good), None, "{good}");
        }
        for (bad, wanted) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@often", "unrecognized descriptor: @often"),
        ] {
            assert_eq!(schedule_error(bad).as_deref(), Some(wanted), "{bad}");
        }
    }
}
