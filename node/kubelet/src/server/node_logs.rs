//! `/logs`: the files below the node's log directory, and the logs of its services by `?query=`. Paths are resolved
//! inside that directory only; the name of a service is never read as an option.

use std::fmt::Write;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use http::{Response, StatusCode};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Body, State, full, query, text};

/// The log directory of the machine.
const DIRECTORY: &str = "/var/log";
/// The number of bytes at the end of a file that are sent.
const MOST_BYTES: u64 = 64 << 20;
const MOST_LINES: usize = 100_000;

/// Answers a path below `/logs/`.
pub async fn serve(state: &State, path: &str, raw_query: Option<&str>) -> Response<Body> {
    let config = &state.services.config;
    if !config.system_log_handler {
        return text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.");
    }
    let pairs = query::pairs(raw_query);
    if pairs.is_empty() || !path.is_empty() {
        return file(Path::new(DIRECTORY), path);
    }
    if !config.system_log_query {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Node log query is disabled.");
    }
    let query = match LogQuery::parse(&pairs) {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, &why),
    };
    query.answer(Path::new(DIRECTORY)).await
}

/// Opens a path inside the directory; no link and no `..` leads out of it.
fn open(directory: &Path, path: &str) -> std::io::Result<File> {
    let root = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let inside = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(&root, inside, flags, Mode::empty(), resolve)?.into())
}

fn file(directory: &Path, path: &str) -> Response<Body> {
    let path = path.trim_matches('/');
    let opened = open(directory, path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((metadata, _)) if metadata.is_dir() => listing(&directory.join(path)),
        Ok((metadata, mut file)) if metadata.is_file() => match end_of(&mut file) {
            Ok(bytes) => Response::new(full(bytes)),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        Ok(_) => text(StatusCode::FORBIDDEN, "not a file\n"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            text(StatusCode::NOT_FOUND, "404 page not found\n")
        }
        Err(error) => text(StatusCode::FORBIDDEN, &format!("{error}\n")),
    }
}

fn end_of(file: &mut File) -> std::io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the names in a directory as a page of links.
fn listing(directory: &Path) -> Response<Body> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| {
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
            format!("{}{slash}", entry.file_name().to_string_lossy())
        })
        .collect();
    names.sort_unstable();
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        let name = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        let _ = writeln!(page, "<a href=\"{name}\">{name}</a>");
    }
    page.push_str("</pre>\n");
    let mut response = Response::new(full(page));
    let html = http::HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, html);
    response
}

/// A query for logs: of services, or of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogQuery {
    services: Vec<String>,
    files: Vec<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    tail: Option<usize>,
    boot: Option<i32>,
    pattern: Option<String>,
}

impl LogQuery {
    pub(crate) fn parse(pairs: &[(String, String)]) -> Result<LogQuery, String> {
        let mut query = LogQuery::default();
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            let invalid = |why: &str| format!("{name}: Invalid value: {value:?}: {why}");
            match name.as_str() {
                "query" if value.contains(['/', '\\']) => query.files.push(value.clone()),
                "query" if !value.trim().is_empty() => query.services.push(value.clone()),
                "sinceTime" => query.since = Some(value.parse().map_err(|_| invalid("invalid time format"))?),
                "untilTime" => query.until = Some(value.parse().map_err(|_| invalid("invalid time format"))?),
                "tailLines" => query.tail = Some(value.parse().map_err(|_| invalid("invalid syntax"))?),
                "boot" => query.boot = Some(value.parse().map_err(|_| invalid("invalid syntax"))?),
                "pattern" => query.pattern = Some(value.clone()),
                _ => {}
            }
        }
        query.check()?;
        Ok(query)
    }

    fn check(&self) -> Result<(), String> {
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => return Err("query: Invalid value: may not be empty".into()),
            ([_, ..], [_, ..]) => return Err("query: Invalid value: cannot specify a file and service".into()),
            ([_, _, ..], _) => return Err("query: Invalid value: cannot specify more than one file".into()),
            _ => {}
        }
        let safe = |name: &String| {
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_@.:".contains(c));
            plain && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.len() <= 256
        };
        if let Some(wrong) = self.services.iter().find(|name| !safe(name)) {
            return Err(format!("query: Invalid value: {wrong:?}: it is not a service name"));
        }
        if self.boot.is_some_and(|boot| boot > 0) {
            return Err("boot: Invalid value: must be less than 1".into());
        }
        if self.tail.is_some_and(|lines| lines > MOST_LINES) {
            return Err("tailLines: Invalid value: must be less than or equal to 100000".into());
        }
        if self.pattern.as_ref().is_some_and(|pattern| pattern.len() > 1000) {
            return Err("pattern: Too long: may not be more than 1000 bytes".into());
        }
        if self.since.zip(self.until).is_some_and(|(since, until)| until < since) {
            return Err("untilTime: Invalid value: must be after `sinceTime`".into());
        }
        Ok(())
    }

    async fn answer(&self, directory: &Path) -> Response<Body> {
        if let [path] = self.files.as_slice() {
            return file(directory, path);
        }
        let mut page = Vec::new();
        for service in &self.services {
            match self.of_service(directory, service).await {
                Ok(log) => page.extend_from_slice(&log),
                Err(why) => page.extend_from_slice(format!("\nerror: {why}\n").as_bytes()),
            }
        }
        Response::new(full(page))
    }

    /// Returns the service's own log file if it has one, else its part of the journal.
    async fn of_service(&self, directory: &Path, service: &str) -> Result<Vec<u8>, String> {
        let places = [format!("{service}.log"), format!("{service}/{service}.log"), service.to_owned()];
        for place in &places {
            if let Ok(mut found) = open(directory, place)
                && found.metadata().is_ok_and(|metadata| metadata.is_file())
            {
                return end_of(&mut found).map_err(|error| error.to_string());
            }
        }
        let journal = tokio::process::Command::new("journalctl").args(self.arguments(service)).output().await;
        match journal {
            Ok(output) if output.status.success() => Ok(output.stdout),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(format!("log file {:?} does not exist, and this node has no journal", PathBuf::from(service)))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn arguments(&self, service: &str) -> Vec<String> {
        let mut arguments =
            vec!["--utc".to_owned(), "--no-pager".into(), "--output=short-precise".into(), format!("--unit={service}")];
        let time = |time: Timestamp| time.strftime("%Y-%m-%d %H:%M:%S").to_string();
        arguments.extend(self.since.map(|since| format!("--since={}", time(since))));
        arguments.extend(self.until.map(|until| format!("--until={}", time(until))));
        arguments.extend(self.tail.map(|lines| format!("--lines={lines}")));
        arguments.extend(self.boot.map(|boot| format!("--boot={boot}")));
        arguments.extend(self.pattern.as_ref().map(|pattern| format!("--grep={pattern}")));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<LogQuery, String> {
        LogQuery::parse(&query::pairs(Some(text)))
    }

    #[test]
    fn a_service_is_never_an_option() {
        let query = parse("query=kubelet&tailLines=5&sinceTime=2026-01-01T00:00:00Z").unwrap();
        let arguments = query.arguments("kubelet");
        assert_eq!(arguments[3..], ["--unit=kubelet", "--since=2026-01-01 00:00:00", "--lines=5"]);
        for wrong in
            ["query=", "query=--file", "query=a;b", "query=a&query=/b", "query=a&boot=1", "query=a&tailLines=100001"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_lie_inside_of_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let logs = root.path().join("log");
        std::fs::create_dir(&logs).unwrap();
        std::fs::write(root.path().join("secret"), "x").unwrap();
        std::fs::write(logs.join("app.log"), "line\n").unwrap();
        std::os::unix::fs::symlink("../secret", logs.join("link")).unwrap();
        assert_eq!(file(&logs, "app.log").status(), StatusCode::OK);
        assert_eq!(file(&logs, "/").status(), StatusCode::OK);
        assert_eq!(file(&logs, "none").status(), StatusCode::NOT_FOUND);
        for outside in ["../secret", "link", "/../secret"] {
            assert_eq!(file(&logs, outside).status(), StatusCode::FORBIDDEN, "{outside}");
        }
    }
}
