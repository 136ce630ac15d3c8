//! `/statusz` and `/flagz`: the start time, the versions and the flags of this server.
//!
//! People read them as text; programs request a version of the object, in JSON or YAML.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_meta::Status;
use http::StatusCode;
use serde_json::{Value, json};

use crate::body::Reply;
use crate::config::Config;
use crate::context::Context;
use crate::negotiation::{Accept, Format};
use crate::response;
use crate::server::Server;

/// The paths about the server, as `/statusz` lists them.
const PATHS: [&str; 7] = ["/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version"];

const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// The deprecated version of the pages, which is served with a warning.
const OLD_VERSION: &str = "v1alpha1";

/// The form of a page.
#[derive(Debug, PartialEq)]
enum Form {
    Text,
    Object(Format, &'static str),
}

/// Answers one of the two pages.
pub fn serve(server: &Server, context: &Context, kind: &'static str) -> Result<Reply, Status> {
    let header = context.headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let form = form(header, kind)
        .ok_or_else(|| Status::not_acceptable(&["application/json", "application/yaml", "text/plain"]))?;
    let flags = flags(&server.core.config);
    let Form::Object(format, version) = form else {
        let text = if kind == "Flagz" { flags_text(&flags) } else { status_text(server, context) };
        return Ok(response::full(StatusCode::OK, "text/plain; charset=utf-8", text.into()));
    };
    if version == OLD_VERSION {
        let page = kind.to_lowercase();
        context.warn(format!("This version of the {page} endpoint is deprecated. Please use a newer version."));
    }
    let mut page = json!({ "kind": kind, "apiVersion": format!("config.k8s.io/{version}"),
                           "metadata": { "name": "apiserver" } });
    if kind == "Flagz" {
        page["flags"] = json!(flags);
    } else {
        add_status(&mut page, server, context);
    }
    let mut reply = response::value(Accept { format, ..context.accept }, StatusCode::OK, &page);
    let media_type = Accept { format, ..context.accept }.content_type();
    if let Ok(value) = format!("{media_type};g=config.k8s.io;v={version};as={kind}").parse() {
        reply.headers_mut().insert(http::header::CONTENT_TYPE, value);
    }
    Ok(reply)
}

/// Returns the first form of the Accept header that a page has.
fn form(header: &str, kind: &str) -> Option<Form> {
    if header.trim().is_empty() {
        return Some(Form::Text);
    }
    header.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        let parameter = |key: &str| parameters.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
        let is_object = parameter("as") == kind && parameter("g") == "config.k8s.io";
        let version = ["v1beta1", OLD_VERSION].into_iter().find(|version| is_object && parameter("v") == *version);
        match media_type {
            "*/*" | "text/*" | "text/plain" => Some(Form::Text),
            "application/json" => version.map(|version| Form::Object(Format::Json, version)),
            "application/yaml" => version.map(|version| Form::Object(Format::Yaml, version)),
            _ => None,
        }
    })
}

/// Returns the versions of the server and of the API that it serves.
fn versions(config: &Config) -> (String, String) {
    (config.git_version.trim_start_matches('v').to_owned(), config.emulated_version.to_string())
}

fn add_status(page: &mut Value, server: &Server, context: &Context) {
    let (binary, emulation) = versions(&server.core.config);
    page["startTime"] = corten_meta::time::rfc3339(server.core.started).into();
    page["uptimeSeconds"] = context.now.duration_since(server.core.started).as_secs().into();
    page["goVersion"] = "none".into();
    page["binaryVersion"] = binary.into();
    page["emulationVersion"] = emulation.into();
    page["paths"] = json!(PATHS);
}

fn status_text(server: &Server, context: &Context) -> String {
    let (binary, emulation) = versions(&server.core.config);
    let up = context.now.duration_since(server.core.started).as_secs();
    let hours = up / 3600;
    let minutes = up / 60 % 60;
    let seconds = up % 60;
    let started = server.core.started.strftime("%a %b %e %H:%M:%S UTC %Y");
    format!(
        "\napiserver statusz\n{WARNING}\n\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
         Go version: none\nBinary version: {binary}\nEmulation version: {emulation}\nPaths: {}\n",
        PATHS.join(" ")
    )
}

fn flags_text(flags: &BTreeMap<&'static str, String>) -> String {
    let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    format!("\napiserver flagz\n{WARNING}\n{lines}")
}

/// Returns the settings of the server, under the names of upstream's flags.
fn flags(config: &Config) -> BTreeMap<&'static str, String> {
    let list = |items: &[String]| format!("[{}]", items.join(","));
    let (first_port, last_port) = config.node_port_range;
    let modes = if config.authorization.is_some() { "[]" } else { "[Node,RBAC]" };
    BTreeMap::from([
        ("advertise-address", config.advertise_address.to_string()),
        ("api-audiences", list(&config.audiences)),
        ("authorization-mode", modes.to_owned()),
        ("enable-bootstrap-token-auth", "true".to_owned()),
        ("enable-priority-and-fairness", "true".to_owned()),
        ("event-ttl", go_duration(config.event_ttl)),
        ("max-mutating-requests-inflight", config.max_mutating_requests_inflight.to_string()),
        ("max-requests-inflight", config.max_requests_inflight.to_string()),
        ("profiling", "false".to_owned()),
        ("requestheader-allowed-names", list(&config.requestheader_allowed_names)),
        ("secure-port", config.port.to_string()),
        ("service-account-issuer", list(std::slice::from_ref(&config.issuer))),
        ("service-cluster-ip-range", config.service_cidr.clone()),
        ("service-node-port-range", format!("{first_port}-{last_port}")),
    ])
}

/// Formats a duration of whole seconds as Go does.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_text_unless_a_version_is_named() {
        let object = |version| Some(Form::Object(Format::Json, version));
        for (accept, expected) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("text/html", None),
            ("application/json", None),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", object("v1beta1")),
            ("application/json;as=Statusz;v=v1alpha1;g=config.k8s.io,*/*", object("v1alpha1")),
            ("application/json;as=Statusz;v=v1;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", None),
            ("application/yaml;g=config.k8s.io;v=v1beta1;as=Statusz", Some(Form::Object(Format::Yaml, "v1beta1"))),
        ] {
            assert_eq!(form(accept, "Statusz"), expected, "{accept:?}");
        }
    }

    #[test]
    fn flags_show_the_configuration() {
        let flags = flags(&Config::default());
        assert_eq!(flags["event-ttl"], "1h0m0s");
        assert_eq!(flags["service-node-port-range"], "30000-32767");
        assert_eq!(flags["requestheader-allowed-names"], "[front-proxy-client]");
        assert_eq!(versions(&Config::default()), ("1.36.4+corten".to_owned(), "1.36".to_owned()));
    }
}
