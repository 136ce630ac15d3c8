//! Content negotiation: the form of the response, and the form of the request's body.
//!
//! Responses are JSON or YAML: a client that lists protobuf first and JSON after gets JSON, which is cheaper here. A
//! client that accepts nothing else gets protobuf. So does a client that wants metadata alone and lists protobuf first:
//! the items of a list have their kind in JSON and not in protobuf, and clients compare them with objects of other
//! requests. Bodies may be protobuf too.

use corten_meta::Status;
use corten_protobuf::MEDIA_TYPE as PROTOBUF;
use http::HeaderMap;

/// The media types of responses, as error messages list them.
pub const ACCEPTED: &[&str] = &["application/json", "application/yaml", PROTOBUF];

/// The media types of watches.
pub const STREAMED: &[&str] = &["application/json;stream=watch", corten_protobuf::STREAMED];

/// The encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

/// The transformation of objects in a response.
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

/// The negotiated form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    pub format: Format,
    pub view: View,
    /// Whether the view is wanted in v1beta1.
    pub is_beta: bool,
    /// Whether the response is indented for people.
    pub pretty: bool,
    /// The format of errors, which have the plain view only; none if the client does not accept that.
    pub errors: Option<Format>,
}

impl Default for Accept {
    fn default() -> Accept {
        let format = Format::default();
        let view = View::default();
        Accept { format, view, is_beta: false, pretty: false, errors: Some(format) }
    }
}

/// The content of a path, which decides the views it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    Objects,
    /// Objects, also as a watch.
    Collection,
    /// Objects without a Table.
    Rowless,
    /// Plain text; errors are objects.
    Log,
    /// The response of another server.
    Foreign,
    /// The API groups, alone or with all their versions and resources.
    Groups,
    Document,
}

impl Accept {
    /// Chooses the best clause of the Accept header that the server supports for the offer; otherwise the error.
    ///
    /// Most paths are `routed`: there a media type must be named as it is, or be `*/*`, before anything else is
    /// compared.
    pub fn negotiate(
        headers: &HeaderMap,
        pretty: Option<&str>,
        offer: Offer,
        routed: bool,
    ) -> (Accept, Option<Status>) {
        let header = text(headers, http::header::ACCEPT);
        let pretty = match pretty {
            Some("") | None => is_person(headers),
            Some(word) => matches!(word, "1" | "t" | "T" | "true" | "True" | "TRUE"),
        };
        let mut clauses: Vec<&str> = header.split(',').map(str::trim).filter(|c| !c.is_empty()).collect();
        let plain = Accept { pretty, ..Accept::default() };
        if header.is_empty() {
            return (plain, None);
        }
        clauses.sort_by_key(|clause| (std::cmp::Reverse(quality(clause)), media_type_of(clause).matches('*').count()));
        let only_protobuf = takes_only_protobuf(&clauses);
        let is_taken = |clause: &&&str| {
            only_protobuf || format_of(clause) != Some(Format::Protobuf) || clause.contains("as=PartialObjectMetadata")
        };
        let taken = || clauses.iter().filter(is_taken);
        let best = |offer: Offer| taken().find_map(|clause| read_clause(clause, pretty, offer));
        let error = best(Offer::Document);
        let errors = error.map(|accept| accept.format);
        let fallback = Accept { errors, ..error.unwrap_or(plain) };
        let supported = match offer {
            Offer::Collection => &[ACCEPTED, STREAMED].concat(),
            Offer::Log => &[&["text/plain"], ACCEPTED].concat(),
            _ => ACCEPTED,
        };
        if routed && offer != Offer::Foreign && !clauses.iter().any(|clause| is_named(clause, supported)) {
            return (fallback, Some(no_representation(supported)));
        }
        match best(offer) {
            Some(found) => (Accept { errors, ..found }, None),
            None if offer == Offer::Foreign => (fallback, None),
            None => (fallback, Some(Status::not_acceptable(ACCEPTED))),
        }
    }

    /// Returns the form of a response that has only this media type; fails if the client does not accept it.
    pub fn only(self, media_type: &str, headers: &HeaderMap) -> Result<Accept, Status> {
        let header = text(headers, http::header::ACCEPT);
        if !header.trim().is_empty() && !header.split(',').any(|clause| is_named(clause, &[media_type])) {
            return Err(no_representation(&[media_type]));
        }
        Ok(Accept { format: Format::Json, view: View::Plain, ..self })
    }

    /// Returns the apiVersion of Tables and of objects reduced to their metadata.
    pub fn meta_version(&self) -> &'static str {
        if self.is_beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
    }

    /// Returns the Content-Type of the response.
    pub fn content_type(&self) -> &'static str {
        match self.format {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => PROTOBUF,
        }
    }
}

/// Returns whether protobuf is the only supported format that the client accepts.
fn takes_only_protobuf(clauses: &[&str]) -> bool {
    let formats = || clauses.iter().filter_map(|clause| format_of(clause));
    formats().next().is_some() && formats().all(|format| format == Format::Protobuf)
}

/// Returns the error if the client accepts none of the media types.
fn no_representation(supported: &[&str]) -> Status {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {}", supported.join(", "));
    Status { message, details: Some(Box::default()), ..Status::not_acceptable(supported) }
}

fn media_type_of(clause: &str) -> &str {
    clause.split(';').next().unwrap_or_default().trim_matches(' ')
}

/// Returns a header as a string; bytes that are no UTF-8 become a value that matches nothing.
fn text(headers: &HeaderMap, name: http::HeaderName) -> &str {
    headers.get(name).map_or("", |value| std::str::from_utf8(value.as_bytes()).unwrap_or("?"))
}

/// Returns whether a clause names one of these media types, or all.
fn is_named(clause: &str, supported: &[&str]) -> bool {
    let named = media_type_of(clause);
    named == "*/*" || supported.contains(&named)
}

fn format_of(clause: &str) -> Option<Format> {
    match media_type_of(clause) {
        "application/json" | "application/*" | "*/*" | "*" => Some(Format::Json),
        "application/yaml" => Some(Format::Yaml),
        PROTOBUF => Some(Format::Protobuf),
        _ => None,
    }
}

/// Returns the weight of a clause, in thousandths.
fn quality(clause: &str) -> u16 {
    let given = clause.split(';').map(str::trim).find_map(|p| p.strip_prefix("q="));
    given.and_then(|q| q.parse::<f32>().ok()).map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16)
}

fn read_clause(clause: &str, pretty: bool, offer: Offer) -> Option<Accept> {
    let mut accept = Accept { format: format_of(clause)?, pretty, ..Accept::default() };
    let is_objects = !matches!(offer, Offer::Groups | Offer::Document);
    // The cells of a Table have values of any type, which have no protobuf encoding.
    let has_rows = matches!(offer, Offer::Objects | Offer::Collection) && accept.format != Format::Protobuf;
    let mut kind = "";
    let mut group = "";
    let mut version = "";
    for parameter in clause.split(';').map(str::trim).skip(1) {
        match parameter.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            Some(("pretty", value)) => accept.pretty |= value == "1",
            Some(("stream", value)) if value != "watch" => return None,
            _ => {}
        }
    }
    accept.is_beta = version == "v1beta1";
    accept.view = match (kind, group, version) {
        ("", "", "") => View::Plain,
        ("Table", "meta.k8s.io", "v1" | "v1beta1") if has_rows => View::Table,
        ("PartialObjectMetadata", "meta.k8s.io", "v1" | "v1beta1") if is_objects => View::PartialMetadata,
        ("PartialObjectMetadataList", "meta.k8s.io", "v1" | "v1beta1") if is_objects => View::PartialMetadataList,
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") if offer == Offer::Groups => View::AggregatedDiscovery,
        _ => return None,
    };
    Some(accept)
}

fn is_person(headers: &HeaderMap) -> bool {
    let agent = text(headers, http::header::USER_AGENT);
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|a| agent.starts_with(a))
}

/// The format of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

/// Returns the format of a request's body, by its Content-Type.
pub fn body_format(headers: &HeaderMap) -> Result<BodyFormat, Status> {
    let sound = has_sound_parameters(headers);
    match media_type(headers).to_ascii_lowercase().as_str() {
        "" | "application/json" if sound => Ok(BodyFormat::Json),
        "application/yaml" if sound => Ok(BodyFormat::Yaml),
        corten_protobuf::MEDIA_TYPE if sound => Ok(BodyFormat::Protobuf),
        _ => {
            Err(Status::unsupported_media_type(&["application/json", "application/yaml", corten_protobuf::MEDIA_TYPE]))
        }
    }
}

/// Returns the error of a path that does not support the body's media type.
pub fn unsupported_body() -> Status {
    let message = "415: Unsupported Media Type".to_owned();
    Status { message, details: Some(Box::default()), ..Status::unsupported_media_type(&[]) }
}

/// Returns the Content-Type without its parameters.
pub fn media_type(headers: &HeaderMap) -> &str {
    content_type(headers).split(';').next().unwrap_or_default().trim()
}

fn content_type(headers: &HeaderMap) -> &str {
    text(headers, http::header::CONTENT_TYPE)
}

/// Returns whether each parameter of the Content-Type has a name and a value, and none has two.
fn has_sound_parameters(headers: &HeaderMap) -> bool {
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte))
    };
    let mut rest = content_type(headers).split_once(';').map_or("", |(_, rest)| rest).trim();
    let mut known = std::collections::BTreeMap::new();
    while !rest.is_empty() {
        let Some((name, value)) = rest.split_once('=') else { return false };
        let name = name.to_ascii_lowercase();
        let value = value.trim_start();
        let end = if value.starts_with('"') { end_of_quoted(value) } else { value.find(';') };
        let (value, after) = value.split_at(end.unwrap_or(value.len()));
        let value = value.trim_end();
        let after = after.trim_start();
        let is_value = is_token(value) || value.starts_with('"') && end.is_some();
        let is_ended = after.is_empty() || after.starts_with(';');
        if !is_value || !is_ended || !is_token(name.trim_end()) || *known.entry(name).or_insert(value) != value {
            return false;
        }
        rest = after.strip_prefix(';').unwrap_or_default().trim();
    }
    true
}

/// Returns the end of a quoted string, with its closing quotation mark.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut is_escape = false;
    let mark = |byte: &u8| {
        let is_mark = *byte == b'"' && !is_escape;
        is_escape = *byte == b'\\' && !is_escape;
        is_mark
    };
    text.as_bytes().iter().skip(1).position(mark).map(|at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str, offer: Offer, routed: bool) -> Option<(Format, View)> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, accept.parse().unwrap());
        let (accept, refused) = Accept::negotiate(&headers, None, offer, routed);
        refused.is_none().then_some((accept.format, accept.view))
    }

    #[test]
    fn parameters_of_a_body_are_sound() {
        for (content_type, sound) in [
            ("", true),
            ("application/json", true),
            ("application/json;", true),
            ("application/json; charset=utf-8", true),
            ("application/json; a=\"b; c\" ; d=e;", true),
            ("application/json; charset", false),
            ("application/json; =x", false),
            ("application/json; a=", false),
            ("application/json; a=\"b", false),
            ("application/json; a=b; A=c", false),
            ("application/json; a=b; A=b", true),
            ("application/json; a=\"b\\\"c\"; d=e", true),
            ("application/json; a=\"b\\\"", false),
            ("application/json; a=\"", false),
            ("application/json; a=é", false),
            ("é", false),
            ("application/json; a=b c", false),
            ("application/json; a=(b)", false),
            ("application/json;;", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_bytes(content_type.as_bytes()).unwrap());
            assert_eq!(body_format(&headers).is_ok(), sound, "{content_type:?}");
        }
    }

    #[test]
    fn a_path_of_json_alone_needs_a_client_that_accepts_json() {
        for (accept, taken) in [
            ("", true),
            ("*/*", true),
            ("application/yaml", false),
            ("text/html", false),
            ("application/json;q=0.5,application/yaml", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::ACCEPT, accept.parse().unwrap());
            assert_eq!(Accept::default().only("application/json", &headers).is_ok(), taken, "{accept:?}");
        }
    }

    #[test]
    fn the_best_supported_form_is_chosen() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let discovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let both = format!("{discovery},application/json");
        let json = Format::Json;
        let yaml = Format::Yaml;
        let list = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let metadata_client = format!("{PROTOBUF};{list},application/json;{list},application/json");
        for (accept, offer, expected) in [
            (kubectl, Offer::Objects, Some((json, View::Table))),
            (kubectl, Offer::Document, Some((json, View::Plain))),
            ("application/vnd.kubernetes.protobuf,application/json", Offer::Objects, Some((json, View::Plain))),
            ("application/vnd.kubernetes.protobuf", Offer::Objects, Some((Format::Protobuf, View::Plain))),
            ("application/vnd.kubernetes.protobuf, */*", Offer::Objects, Some((json, View::Plain))),
            ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", Offer::Objects, None),
            (&metadata_client, Offer::Collection, Some((Format::Protobuf, View::PartialMetadataList))),
            (&metadata_client, Offer::Document, Some((json, View::Plain))),
            ("application/vnd.kubernetes.protobuf", Offer::Groups, Some((Format::Protobuf, View::Plain))),
            ("application/yaml", Offer::Objects, Some((yaml, View::Plain))),
            ("application/json;q=0.5,application/yaml", Offer::Objects, Some((yaml, View::Plain))),
            ("*/*,application/yaml", Offer::Objects, Some((yaml, View::Plain))),
            ("", Offer::Objects, Some((json, View::Plain))),
            (discovery, Offer::Groups, Some((json, View::AggregatedDiscovery))),
            (discovery, Offer::Document, None),
            (&both, Offer::Document, Some((json, View::Plain))),
            ("application/json;stream=watch", Offer::Objects, Some((json, View::Plain))),
            ("application/json;stream=other", Offer::Groups, None),
            ("application/json;v=v1", Offer::Objects, None),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
                Offer::Objects,
                Some((json, View::PartialMetadataList)),
            ),
        ] {
            assert_eq!(negotiated(accept, offer, true), expected, "{accept:?} {offer:?}");
        }
        for (accept, routed, expected) in
            [("*", true, None), ("*", false, Some((json, View::Plain))), (",,", false, None)]
        {
            assert_eq!(negotiated(accept, Offer::Groups, routed), expected, "{accept:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, http::HeaderValue::from_bytes("é".as_bytes()).unwrap());
        assert!(Accept::negotiate(&headers, None, Offer::Groups, false).1.is_some());
        assert_eq!(negotiated("application/cbor", Offer::Groups, true), None);
        assert_eq!(negotiated("application/*", Offer::Groups, true), None);
        assert_eq!(negotiated("application/*", Offer::Groups, false), Some((json, View::Plain)));
    }

    /// A client may accept a form that only objects have, and so no error.
    #[test]
    fn errors_have_a_form_of_their_own() {
        let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
        for (accept, expected) in [
            ("", Some(Format::Json)),
            ("text/html", None),
            ("application/*", Some(Format::Json)),
            (table, None),
            (&format!("{table},application/yaml"), Some(Format::Yaml)),
            (&format!("{table},application/json"), Some(Format::Json)),
            (PROTOBUF, Some(Format::Protobuf)),
            (&format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(http::header::ACCEPT, accept.parse().unwrap());
            let (negotiated, _) = Accept::negotiate(&headers, None, Offer::Objects, true);
            assert_eq!(negotiated.errors, expected, "{accept:?}");
        }
    }
}
