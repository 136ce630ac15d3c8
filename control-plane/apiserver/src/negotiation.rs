//! Which form the client wants its answer in, and which form its body has.
//!
//! Answers are JSON or YAML: a client that lists protobuf first and JSON after gets JSON. Bodies may also be
//! protobuf.

use corten_meta::Status;
use http::HeaderMap;

/// The media types of answers, as error messages list them.
pub const ACCEPTED: &[&str] = &["application/json", "application/yaml"];

/// The text format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    Yaml,
}

/// What objects are shown as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    #[default]
    Plain,
    Table,
    PartialMetadata,
    PartialMetadataList,
    /// The discovery documents in one list.
    AggregatedDiscovery,
}

/// The negotiated form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accept {
    pub format: Format,
    pub view: View,
    /// The view is wanted in its first version.
    pub is_beta: bool,
    /// Indented, for people.
    pub pretty: bool,
}

impl Accept {
    /// Chooses the first form of the Accept header that is spoken here.
    pub fn negotiate(headers: &HeaderMap, pretty: Option<&str>) -> Result<Accept, Status> {
        let header = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let pretty = match pretty {
            Some(value) => !matches!(value, "0" | "false"),
            None => is_person(headers),
        };
        let mut clauses: Vec<&str> = header.split(',').map(str::trim).filter(|c| !c.is_empty()).collect();
        if clauses.is_empty() {
            return Ok(Accept { pretty, ..Accept::default() });
        }
        clauses.retain(|clause| quality(clause) > 0);
        clauses.sort_by_key(|clause| std::cmp::Reverse(quality(clause)));
        if let Some(accept) = clauses.iter().find_map(|clause| read_clause(clause, pretty)) {
            return Ok(accept);
        }
        let is_spoken = |clause: &&str| format_of(clause).is_some();
        let is_spoken = clauses.iter().any(is_spoken);
        Err(if is_spoken { Status::not_acceptable(ACCEPTED) } else { no_representation(ACCEPTED) })
    }

    /// The form of an answer that is only ever written as JSON; fails when the client takes none.
    pub fn only_json(self, headers: &HeaderMap) -> Result<Accept, Status> {
        let header = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let is_json = |clause: &str| quality(clause) > 0 && format_of(clause.trim()) == Some(Format::Json);
        if !header.trim().is_empty() && !header.split(',').any(is_json) {
            return Err(no_representation(&ACCEPTED[..1]));
        }
        Ok(Accept { format: Format::Json, view: View::Plain, ..self })
    }

    /// The version of tables and of objects reduced to their metadata.
    pub fn meta_version(&self) -> &'static str {
        if self.is_beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
    }

    /// The Content-Type of the answer.
    pub fn content_type(&self) -> &'static str {
        match self.format {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
        }
    }
}

/// The answer when not even the media type is spoken here.
fn no_representation(spoken: &[&str]) -> Status {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {}", spoken.join(", "));
    Status { message, details: Some(Box::default()), ..Status::not_acceptable(spoken) }
}

fn format_of(clause: &str) -> Option<Format> {
    match clause.split(';').next().map(str::trim)? {
        "application/json" | "*/*" => Some(Format::Json),
        "application/yaml" => Some(Format::Yaml),
        _ => None,
    }
}

/// How much the client wants a clause, in thousandths.
fn quality(clause: &str) -> u16 {
    let given = clause.split(';').map(str::trim).find_map(|p| p.strip_prefix("q="));
    given.and_then(|q| q.parse::<f32>().ok()).map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16)
}

fn read_clause(clause: &str, pretty: bool) -> Option<Accept> {
    let format = format_of(clause)?;
    let parts = clause.split(';').map(str::trim).skip(1);
    let (mut kind, mut group, mut version) = ("", "", "");
    for parameter in parts {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    let view = match (kind, group, version) {
        ("", _, _) => View::Plain,
        ("Table", "meta.k8s.io", "v1" | "v1beta1") => View::Table,
        ("PartialObjectMetadata", "meta.k8s.io", "v1" | "v1beta1") => View::PartialMetadata,
        ("PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") => View::PartialMetadataList,
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => View::AggregatedDiscovery,
        _ => return None,
    };
    Some(Accept { format, view, is_beta: version == "v1beta1", pretty })
}

fn is_person(headers: &HeaderMap) -> bool {
    let agent = headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a))
}

/// The format of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

/// The format of a request's body, by its Content-Type.
pub fn body_format(headers: &HeaderMap) -> Result<BodyFormat, Status> {
    match media_type(headers) {
        "" | "application/json" => Ok(BodyFormat::Json),
        "application/yaml" => Ok(BodyFormat::Yaml),
        crate::protobuf::MEDIA_TYPE => Ok(BodyFormat::Protobuf),
        _ => {
            Err(Status::unsupported_media_type(&["application/json", "application/yaml", crate::protobuf::MEDIA_TYPE]))
        }
    }
}

/// The Content-Type without its parameters.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(http::header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(accept: &str) -> Option<(Format, View)> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, accept.parse().unwrap());
        Accept::negotiate(&headers, None).ok().map(|a| (a.format, a.view))
    }

    #[test]
    fn what_is_only_json_is_answered_to_those_who_take_it() {
        for (accept, taken) in [
            ("", true),
            ("*/*", true),
            ("application/yaml", false),
            ("text/html", false),
            ("application/json;q=0.5,application/yaml", true),
            ("application/json;q=0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::ACCEPT, accept.parse().unwrap());
            assert_eq!(Accept::default().only_json(&headers).is_ok(), taken, "{accept:?}");
        }
    }

    #[test]
    fn the_first_spoken_form_is_taken() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(negotiate(kubectl), Some((Format::Json, View::Table)));
        assert_eq!(
            negotiate("application/vnd.kubernetes.protobuf,application/json"),
            Some((Format::Json, View::Plain))
        );
        assert_eq!(negotiate("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(negotiate("application/yaml"), Some((Format::Yaml, View::Plain)));
        assert_eq!(negotiate(""), Some((Format::Json, View::Plain)));
        assert_eq!(
            negotiate("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            Some((Format::Json, View::AggregatedDiscovery))
        );
        assert_eq!(
            negotiate("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1"),
            Some((Format::Json, View::PartialMetadataList))
        );
    }
}
