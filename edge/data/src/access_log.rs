//! The access log: one line for each request, when its response ended.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use corten_routing::ObjectName;
use http::StatusCode;

/// The most bytes of a value that a client chose.
const MAX_VALUE: usize = 2048;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// An object of JSON.
    Json,
    /// The combined log format of web servers.
    Combined,
}

/// Where lines go and how they look.
#[derive(Clone)]
pub struct AccessLog {
    format: LogFormat,
    out: Arc<Mutex<dyn std::io::Write + Send>>,
}

impl std::fmt::Debug for AccessLog {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("AccessLog").field("format", &self.format).finish_non_exhaustive()
    }
}

impl AccessLog {
    pub fn new(format: LogFormat, out: Arc<Mutex<dyn std::io::Write + Send>>) -> AccessLog {
        AccessLog { format, out }
    }

    fn write(&self, entry: &Entry) {
        let line = match self.format {
            LogFormat::Json => entry.json(),
            LogFormat::Combined => entry.combined(),
        };
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not stop requests.
        let _ = out.write_all(line.as_bytes());
    }
}

/// A request as the log shows it. It is written when it is dropped: with the end of the response, or of its client.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) log: AccessLog,
    pub(crate) client: IpAddr,
    pub(crate) method: String,
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) protocol: &'static str,
    pub(crate) user_agent: String,
    pub(crate) referer: String,
    pub(crate) traceparent: String,
    pub(crate) route: Option<ObjectName>,
    pub(crate) status: StatusCode,
    pub(crate) begun: Instant,
    pub(crate) bytes: u64,
}

impl Entry {
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    fn json(&self) -> String {
        let mut line = serde_json::json!({
            "time": jiff::Timestamp::now().to_string(),
            "client": self.client.to_string(),
            "method": self.method,
            "host": bounded(&self.host),
            "path": bounded(&self.path),
            "protocol": self.protocol,
            "status": self.status.as_u16(),
            "bytes": self.bytes,
            "seconds": self.begun.elapsed().as_secs_f64(),
            "userAgent": bounded(&self.user_agent),
        });
        if let Some(fields) = line.as_object_mut() {
            if let Some(route) = &self.route {
                fields.insert("route".to_owned(), format!("{}/{}/{}", route.kind, route.namespace, route.name).into());
            }
            for (name, value) in [("referer", &self.referer), ("traceparent", &self.traceparent)] {
                if !value.is_empty() {
                    fields.insert(name.to_owned(), bounded(value).into());
                }
            }
        }
        format!("{line}\n")
    }

    fn combined(&self) -> String {
        let time = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC).strftime("%d/%b/%Y:%H:%M:%S %z");
        let mut line = String::new();
        // Writing into a string cannot fail.
        let _ = writeln!(
            line,
            "{} - - [{time}] \"{} {} {}\" {} {} \"{}\" \"{}\"",
            self.client,
            quoted(&self.method),
            quoted(&self.path),
            self.protocol,
            self.status.as_u16(),
            self.bytes,
            quoted(&self.referer),
            quoted(&self.user_agent),
        );
        line
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.log.clone().write(self);
    }
}

fn bounded(value: &str) -> &str {
    value.get(..value.floor_char_boundary(MAX_VALUE)).unwrap_or(value)
}

/// Escapes quotes and control characters, so that a client cannot write lines of its own.
fn quoted(value: &str) -> String {
    bounded(value).chars().flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(format: LogFormat) -> String {
        let out = Arc::new(Mutex::new(Vec::new()));
        let entry = Entry {
            log: AccessLog::new(format, Arc::<Mutex<Vec<u8>>>::clone(&out) as _),
            client: IpAddr::from([192, 0, 2, 1]),
            method: "GET".to_owned(),
            host: "example.com".to_owned(),
            path: "/a\"b\n".to_owned(),
            protocol: "HTTP/1.1",
            user_agent: "agent".to_owned(),
            referer: String::new(),
            traceparent: String::new(),
            route: None,
            status: StatusCode::OK,
            begun: Instant::now(),
            bytes: 12,
        };
        drop(entry);
        let bytes = out.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_request_is_one_line_of_json() {
        let line = logged(LogFormat::Json);
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["client"], "192.0.2.1");
        assert_eq!(value["path"], "/a\"b\n");
        assert_eq!(value["status"], 200);
        assert_eq!(value["bytes"], 12);
    }

    #[test]
    fn a_client_cannot_break_a_combined_line() {
        let line = logged(LogFormat::Combined);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.contains(r#""GET /a\"b\n HTTP/1.1" 200 12 "" "agent""#), "{line}");
    }
}
