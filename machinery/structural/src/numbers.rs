//! The bounds of numbers, compared as upstream's validator does: integers with the truncated bound, all others as
//! floats. Pure.

use corten_meta::Value;

/// A schema's constraint on a number.
#[derive(Clone, Copy)]
pub enum Bound {
    MultipleOf,
    Minimum { exclusive: bool },
    Maximum { exclusive: bool },
}

/// The greatest integer below which every integer has an exact float.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;

const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

/// Reports whether a float represents an integer. A positive one may differ by a rounding error.
pub fn is_integer(number: f64) -> bool {
    const EPSILON: f64 = 1e-9;
    let integer = number.trunc();
    let is_near = || integer > 0.0 && (number - integer) / (number + integer) < EPSILON;
    number.abs() <= MAX_EXACT_INTEGER && (number == integer || is_near())
}

/// Reports whether a number has the type and format of a schema.
pub fn fits(number: &Value, kind: &str, format: Option<&str>) -> bool {
    let string = match number.as_i64() {
        Some(integer) => integer.to_string(),
        None => number.as_f64().unwrap_or_default().to_string(),
    };
    match (kind, format) {
        ("integer", Some("int32")) => string.parse::<i32>().is_ok(),
        ("integer", _) => string.parse::<i64>().is_ok(),
        ("number", Some("float")) => number.as_f64().is_none_or(|n| n.abs() <= f64::from(f32::MAX)),
        _ => true,
    }
}

/// Returns the error of a number beyond a bound. `native` means that the bound has the type of the schema.
pub fn bound_error(number: &Value, bound: Bound, limit: f64, native: bool) -> Option<String> {
    match number.as_i64().filter(|_| native) {
        // The comparison truncates on purpose; a limit out of range becomes the minimum integer.
        Some(integer) => {
            let is_within = (-TWO_TO_63..TWO_TO_63).contains(&limit);
            integer_error(integer, bound, if is_within { limit as i64 } else { i64::MIN })
        }
        None => float_error(number.as_f64()?, bound, limit),
    }
}

fn integer_error(number: i64, bound: Bound, limit: i64) -> Option<String> {
    let failed = match bound {
        // A factor below one is truncated to zero.
        Bound::MultipleOf => limit > 0 && number % limit != 0,
        Bound::Minimum { exclusive } => number < limit || (exclusive && number == limit),
        Bound::Maximum { exclusive } => number > limit || (exclusive && number == limit),
    };
    failed.then(|| words(bound, &limit.to_string()))
}

fn float_error(number: f64, bound: Bound, limit: f64) -> Option<String> {
    let failed = match bound {
        Bound::MultipleOf if limit <= 0.0 => false,
        Bound::MultipleOf if limit < 1.0 => !is_integer(1.0 / limit * number),
        Bound::MultipleOf => !is_integer(number / limit),
        Bound::Minimum { exclusive } => number < limit || (exclusive && number == limit),
        Bound::Maximum { exclusive } => number > limit || (exclusive && number == limit),
    };
    failed.then(|| words(bound, &corten_meta::go::float(limit)))
}

fn words(bound: Bound, limit: &str) -> String {
    match bound {
        Bound::MultipleOf => format!("should be a multiple of {limit}"),
        Bound::Minimum { exclusive: true } => format!("should be greater than {limit}"),
        Bound::Minimum { exclusive: false } => format!("should be greater than or equal to {limit}"),
        Bound::Maximum { exclusive: true } => format!("should be less than {limit}"),
        Bound::Maximum { exclusive: false } => format!("should be less than or equal to {limit}"),
    }
}

/// Reports whether a number equals a number of an enum, after conversion to its type.
pub fn same(number: &Value, listed: &Value) -> bool {
    match (number.as_i64(), number.as_f64(), listed.as_i64()) {
        (None, Some(number), Some(listed)) => number as i64 == listed,
        (Some(_), Some(number), None) => listed.as_f64() == Some(number),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn integers_are_compared_exactly() {
        let maximum = Bound::Maximum { exclusive: false };
        assert_eq!(bound_error(&json!(10), maximum, 9.5, true).as_deref(), Some("should be less than or equal to 9"));
        assert_eq!(
            bound_error(&json!(9.6), maximum, 9.5, true).as_deref(),
            Some("should be less than or equal to 9.5")
        );
        assert_eq!(
            bound_error(&json!(5), Bound::Minimum { exclusive: true }, 5.0, true).as_deref(),
            Some("should be greater than 5")
        );
        assert_eq!(bound_error(&json!(0.3), Bound::MultipleOf, 0.1, true), None);
        assert!(bound_error(&json!(7), Bound::MultipleOf, 5.0, true).is_some());
        assert_eq!(bound_error(&json!(7), Bound::Minimum { exclusive: false }, 1e19, true), None);
        assert_eq!(
            bound_error(&json!(5e9), maximum, 3e9, false).as_deref(),
            Some("should be less than or equal to 3e+09")
        );
        let of_seven = |number: f64| bound_error(&json!(number), Bound::MultipleOf, 7.0, true).is_none();
        assert!(of_seven(1.5e9) && !of_seven(-1.5e9) && of_seven(-14.0));
    }

    #[test]
    fn a_number_fits_its_format() {
        assert!(fits(&json!(5.0), "integer", None) && !fits(&json!(1.5), "integer", None));
        assert!(!fits(&json!(3_000_000_000_i64), "integer", Some("int32")));
        assert!(!fits(&json!(1e30), "integer", None) && fits(&json!(1e30), "number", None));
        assert!(is_integer(5.0) && !is_integer(1e30) && !is_integer(0.5));
        assert!(same(&json!(1.5), &json!(1)) && !same(&json!(2), &json!(1)));
    }
}
