//! An integer or a string: a port by number or name, a count or a percentage.

use crate::Error;
use crate::quote::quote;
use serde_json::Value;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum IntOrString {
    Int(i32),
    String(String),
}

impl IntOrString {
    /// Reads a JSON value; `None` if it is neither.
    pub fn from_value(value: &Value) -> Option<IntOrString> {
        match value {
            Value::String(text) => Some(IntOrString::String(text.clone())),
            Value::Number(number) => number.as_i64().and_then(|n| i32::try_from(n).ok()).map(IntOrString::Int),
            _ => None,
        }
    }

    pub fn to_value(&self) -> Value {
        match self {
            IntOrString::Int(number) => (*number).into(),
            IntOrString::String(text) => text.as_str().into(),
        }
    }

    /// Reads a command line argument. A string that is an integer becomes one.
    pub fn parse(text: &str) -> IntOrString {
        text.parse().map(IntOrString::Int).unwrap_or_else(|_| IntOrString::String(text.to_owned()))
    }

    /// Returns a number as it is, and a percentage as its share of `total`.
    pub fn scaled_value(&self, total: i32, round_up: bool) -> Result<i32, Error> {
        let text = match self {
            IntOrString::Int(number) => return Ok(*number),
            IntOrString::String(text) => text,
        };
        let invalid = |why: String| Error::IntOrString(format!("invalid value for IntOrString: {why}"));
        let Some(number) = text.strip_suffix('%') else {
            return Err(invalid("invalid type: string is not a percentage".into()));
        };
        let percent: i64 = number.parse::<i32>().map(i64::from).map_err(|_| {
            let reason = format!("strconv.Atoi: parsing {}: invalid syntax", quote(number));
            invalid(format!("invalid value {}: {reason}", quote(text)))
        })?;
        let product = percent * i64::from(total);
        let share = product.div_euclid(100) + i64::from(round_up && product.rem_euclid(100) != 0);
        Ok(share.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32)
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntOrString::Int(number) => number.fmt(f),
            IntOrString::String(text) => text.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scales() {
        for (value, total, round_up, expected) in [
            (json!(3), 10, true, 3),
            (json!("25%"), 10, false, 2),
            (json!("25%"), 10, true, 3),
            (json!("100%"), 7, true, 7),
            (json!("0%"), 7, true, 0),
            (json!("-10%"), 15, false, -2),
            (json!("-10%"), 15, true, -1),
        ] {
            let scaled = IntOrString::from_value(&value).unwrap().scaled_value(total, round_up);
            assert_eq!(scaled.unwrap(), expected, "{value} of {total}");
        }
    }

    #[test]
    fn refuses() {
        let text = |t: &str| IntOrString::String(t.into()).scaled_value(1, true).unwrap_err().to_string();
        assert_eq!(text("3"), "invalid value for IntOrString: invalid type: string is not a percentage");
        assert!(text("x%").starts_with("invalid value for IntOrString: invalid value \"x%\""));
        assert_eq!(IntOrString::from_value(&json!(null)), None);
        assert_eq!(IntOrString::from_value(&json!(1.5)), None);
        assert_eq!(IntOrString::parse("http").to_string(), "http");
        assert_eq!(IntOrString::parse("80"), IntOrString::Int(80));
    }
}
