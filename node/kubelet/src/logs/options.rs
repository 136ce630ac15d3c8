//! The options of `kubectl logs`, from the query of the kubelet's API.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since: Option<Timestamp>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// `Stdout` or `Stderr`; both if absent.
    pub stream: Option<super::line::Stream>,
}

impl LogOptions {
    /// Parses query parameters; the error is one for the client.
    pub fn parse(query: &HashMap<String, String>, now: Timestamp) -> Result<LogOptions, String> {
        let flag =
            |name: &str| query.get(name).is_some_and(|value| value.is_empty() || value == "true" || value == "1");
        Ok(LogOptions {
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since: since(query, now)?,
            tail_lines: number(query, "tailLines")?,
            limit_bytes: number(query, "limitBytes")?,
            stream: match query.get("stream").map(String::as_str) {
                None | Some("" | "All") => None,
                Some("Stdout") => Some(super::line::Stream::Stdout),
                Some("Stderr") => Some(super::line::Stream::Stderr),
                Some(other) => return Err(format!("invalid stream {other:?}")),
            },
        })
    }
}

fn number(query: &HashMap<String, String>, name: &str) -> Result<Option<u64>, String> {
    let value = query.get(name).filter(|value| !value.is_empty());
    value.map(|value| value.parse().map_err(|_| format!("invalid {name}: {value:?}"))).transpose()
}

fn since(query: &HashMap<String, String>, now: Timestamp) -> Result<Option<Timestamp>, String> {
    if let Some(time) = query.get("sinceTime").filter(|time| !time.is_empty()) {
        return time.parse().map(Some).map_err(|error| format!("invalid sinceTime: {error}"));
    }
    let seconds = number(query, "sinceSeconds")?;
    Ok(seconds.and_then(|seconds| {
        let ago = SignedDuration::from_secs(i64::try_from(seconds).ok()?);
        now.checked_sub(ago).ok()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)]) -> Result<LogOptions, String> {
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        LogOptions::parse(&query, Timestamp::from_second(1000).unwrap())
    }

    #[test]
    fn queries_become_options() {
        let options =
            parse(&[("follow", "true"), ("tailLines", "5"), ("sinceSeconds", "10"), ("stream", "Stderr")]).unwrap();
        assert!(options.follow && !options.previous);
        assert_eq!((options.tail_lines, options.limit_bytes), (Some(5), None));
        assert_eq!(options.since, Some(Timestamp::from_second(990).unwrap()));
        assert_eq!(parse(&[("tailLines", "-1")]), Err("invalid tailLines: \"-1\"".into()));
        assert!(parse(&[("sinceTime", "yesterday")]).is_err());
    }
}
