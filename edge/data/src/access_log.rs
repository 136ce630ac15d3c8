//! The access log: one line for each request, when its response ended.

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::mpsc::{self, SyncSender};
use std::time::Instant;

use corten_routing::ObjectName;
use http::StatusCode;

/// The most bytes of a value that a client chose.
const MAX_VALUE: usize = 2048;

/// The most lines that wait to be written.
const MAX_WAITING: usize = 8192;
/// The most lines that are written at once.
const MAX_BATCH: usize = 256;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// An object of JSON.
    Json,
    /// The combined log format of web servers.
    Combined,
}

/// Where lines go and how they look. A thread of its own writes them, so that a slow disk or pipe delays no request;
/// lines that it cannot keep up with are lost.
#[derive(Clone, Debug)]
pub struct AccessLog {
    format: LogFormat,
    lines: SyncSender<String>,
}

impl AccessLog {
    /// Starts the thread, which ends with the last clone of the log.
    pub fn new(format: LogFormat, mut out: impl std::io::Write + Send + 'static) -> std::io::Result<AccessLog> {
        let (lines, waiting) = mpsc::sync_channel::<String>(MAX_WAITING);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            while let Ok(mut batch) = waiting.recv() {
                waiting.try_iter().take(MAX_BATCH).for_each(|line| batch.push_str(&line));
                // A log that cannot be written must not stop requests.
                let _ = out.write_all(batch.as_bytes()).and_then(|()| out.flush());
            }
        })?;
        Ok(AccessLog { format, lines })
    }

    fn write(&self, entry: &Entry) {
        let line = match self.format {
            LogFormat::Json => entry.json(),
            LogFormat::Combined => entry.combined(),
        };
        // The thread is behind: the line is lost.
        let _ = self.lines.try_send(line);
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
        let (mut read, write) = std::io::pipe().unwrap();
        let entry = Entry {
            log: AccessLog::new(format, write).unwrap(),
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
        // The thread ends with the log, and closes the pipe.
        std::io::read_to_string(&mut read).unwrap()
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
