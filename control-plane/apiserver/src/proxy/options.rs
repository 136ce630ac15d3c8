//! The options of a connection: their errors, which precede the search for a backend, and their object for admission:
//! PodExecOptions and its kin.

use corten_api::Role;
use corten_meta::quote::quote;
use corten_meta::{FieldError, GroupKind, Path, Status, Value};
use serde_json::json;

use crate::request::Query;
use crate::write::Scope;

/// Refuses options that are invalid or exclude each other.
pub fn check(target: &Scope<'_>, role: Role) -> Result<(), Status> {
    let query = &target.context.info.query;
    match role {
        Role::Log => {
            let errors = log_errors(query).map_err(Status::bad_request)?;
            let kind = GroupKind { group: String::new(), kind: "PodLogOptions".to_owned() };
            if errors.is_empty() { Ok(()) } else { Err(Status::invalid(&kind, target.name, errors)) }
        }
        Role::PortForward => {
            let broken = ports(query).find_map(|port| parse_number::<u16>("ParseUint", port).err());
            broken.map_or(Ok(()), |why| Err(Status::bad_request(format!("cannot convert to []int32: {why}"))))
        }
        _ => Ok(()),
    }
}

/// Returns the ports to forward: repeated parameters, or several in one.
fn ports(query: &Query) -> impl Iterator<Item = &str> {
    query.all("ports").flat_map(|ports| ports.split(','))
}

/// Returns the errors of a log's options; fails if one of them is no number or time at all.
fn log_errors(query: &Query) -> Result<Vec<FieldError>, String> {
    let number = |name: &str| query.raw(name).map(|value| parse_number::<i64>("ParseInt", value)).transpose();
    let since_seconds = number("sinceSeconds")?;
    let since_time = query.get("sinceTime");
    since_time.map(|value| corten_meta::go::parse_time(value, false)).transpose()?;
    let tail_lines = number("tailLines")?;
    let limit_bytes = number("limitBytes")?;
    let mut errors = Vec::new();
    let mut bound = |name: &str, value: Option<i64>, least: i64, detail: &str| {
        if let Some(value) = value.filter(|value| *value < least) {
            errors.push(FieldError::invalid(&Path::root(name), value, detail));
        }
    };
    bound("tailLines", tail_lines, 0, "must be greater than or equal to 0");
    bound("limitBytes", limit_bytes, 1, "must be greater than 0");
    if since_time.is_none() {
        bound("sinceSeconds", since_seconds, 1, "must be greater than 0");
    } else if since_seconds.is_some() {
        let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&Path::root("[]"), detail));
    }
    // Selecting a stream needs a feature gate that is off by default.
    if query.raw("stream").is_some() {
        errors.push(FieldError::forbidden(&Path::root("stream"), "may not be specified"));
    }
    Ok(errors)
}

/// Parses a number, or returns upstream's error.
fn parse_number<N: std::str::FromStr>(parser: &str, value: &str) -> Result<N, String> {
    let digits = value.strip_prefix(['-', '+']).filter(|_| parser == "ParseInt").unwrap_or(value);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    value.parse().ok().filter(|_| is_number).ok_or_else(|| format!("strconv.{parser}: parsing {}: {why}", quote(value)))
}

/// Returns the options object of a request's query.
pub fn of_request(target: &Scope<'_>, role: Role) -> Value {
    let info = &target.context.info;
    let kind = target.resource.kind.subresource(&info.subresource).map(|sub| sub.kind.clone()).unwrap_or_default();
    let mut options = json!({ "kind": kind, "apiVersion": "v1" });
    match role {
        Role::Exec | Role::Attach => {
            for stream in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|stream| info.query.flag(stream)) {
                options[stream] = true.into();
            }
            if let Some(container) = info.query.get("container") {
                options["container"] = container.into();
            }
            let command: Vec<&str> = info.query.all("command").collect();
            if !command.is_empty() {
                options["command"] = json!(command);
            }
        }
        Role::PortForward => {
            let ports: Vec<u16> = ports(&info.query).filter_map(|port| port.parse().ok()).collect();
            if !ports.is_empty() {
                options["ports"] = json!(ports);
            }
        }
        _ => {
            let path = info.query.get("path").unwrap_or(&info.remainder);
            if !path.is_empty() {
                options["path"] = path.into();
            }
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_repeated_or_in_one_parameter() {
        for (query, expected) in [("", vec![]), ("ports=1&ports=2", vec!["1", "2"]), ("ports=1,2", vec!["1", "2"])] {
            assert_eq!(ports(&Query::parse(query)).collect::<Vec<&str>>(), expected, "{query}");
        }
    }

    #[test]
    fn options_of_a_log_are_validated_as_upstream() {
        for (query, wanted) in [
            ("tailLines=0&limitBytes=1&sinceSeconds=1&follow=maybe", ""),
            ("sinceTime=2026-01-01T00:00:00Z", ""),
            ("sinceTime=", ""),
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=-3", "sinceSeconds: Invalid value: -3: must be greater than 0"),
            ("stream=Stdout", "stream: Forbidden: may not be specified"),
            (
                "sinceSeconds=3&sinceTime=2026-01-01T00:00:00Z",
                "[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            ("tailLines=abc", "strconv.ParseInt: parsing \"abc\": invalid syntax"),
            ("tailLines=", "strconv.ParseInt: parsing \"\": invalid syntax"),
            (
                "limitBytes=99999999999999999999",
                "strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
            ),
        ] {
            let outcome = match log_errors(&Query::parse(query)) {
                Ok(errors) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
                Err(why) => why,
            };
            assert_eq!(outcome, wanted, "{query}");
        }
    }

    #[test]
    fn a_port_has_16_bits() {
        for (value, wanted) in [
            ("80", None),
            ("x", Some("strconv.ParseUint: parsing \"x\": invalid syntax")),
            ("-1", Some("strconv.ParseUint: parsing \"-1\": invalid syntax")),
            ("70000", Some("strconv.ParseUint: parsing \"70000\": value out of range")),
        ] {
            assert_eq!(parse_number::<u16>("ParseUint", value).err().as_deref(), wanted, "{value}");
        }
    }
}
