//! Cross-origin resource sharing.

use corten_routing::Cors;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

#[derive(Debug)]
pub(crate) struct CorsPolicy {
    origins: Vec<OriginPattern>,
    methods: Allowed,
    headers: Allowed,
    expose: Option<HeaderValue>,
    allow_credentials: bool,
    max_age: HeaderValue,
}

#[derive(Debug)]
enum OriginPattern {
    Any,
    Exact(String),
    /// A wildcard between a prefix and a suffix.
    Wildcard {
        prefix: String,
        suffix: String,
    },
}

/// The values of a header that answers with names.
#[derive(Debug)]
enum Allowed {
    None,
    /// The names that the client asked for.
    All,
    Names(HeaderValue),
}

impl Allowed {
    fn new(names: &[String]) -> Allowed {
        if names.iter().any(|name| name == "*") {
            return Allowed::All;
        }
        joined(names).map_or(Allowed::None, Allowed::Names)
    }

    fn write(&self, answer: &mut HeaderMap, name: HeaderName, requested: Option<&HeaderValue>) {
        let value = match self {
            Allowed::None => None,
            Allowed::All => requested.cloned(),
            Allowed::Names(names) => Some(names.clone()),
        };
        if let Some(value) = value {
            answer.insert(name, value);
        }
    }
}

fn joined(names: &[String]) -> Option<HeaderValue> {
    if names.is_empty() {
        return None;
    }
    HeaderValue::from_str(&names.join(", ")).ok()
}

impl OriginPattern {
    fn new(text: &str) -> OriginPattern {
        match text.split_once('*') {
            Some(("", "")) => OriginPattern::Any,
            Some((prefix, suffix)) => {
                OriginPattern::Wildcard { prefix: prefix.to_ascii_lowercase(), suffix: suffix.to_ascii_lowercase() }
            }
            None => OriginPattern::Exact(text.to_ascii_lowercase()),
        }
    }

    fn matches(&self, origin: &str) -> bool {
        match self {
            OriginPattern::Any => true,
            OriginPattern::Exact(exact) => exact == origin,
            OriginPattern::Wildcard { prefix, suffix } => origin
                .strip_prefix(prefix.as_str())
                .and_then(|rest| rest.strip_suffix(suffix.as_str()))
                .is_some_and(|middle| !middle.is_empty() && !middle.contains(['/', '@'])),
        }
    }
}

impl CorsPolicy {
    pub(crate) fn new(cors: &Cors) -> CorsPolicy {
        CorsPolicy {
            origins: cors.allow_origins.iter().map(|origin| OriginPattern::new(origin)).collect(),
            methods: Allowed::new(&cors.allow_methods),
            headers: Allowed::new(&cors.allow_headers),
            expose: joined(&cors.expose_headers),
            allow_credentials: cors.allow_credentials,
            max_age: HeaderValue::from(cors.max_age_seconds),
        }
    }

    /// Reports whether a request asks for permission only.
    pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
        method == Method::OPTIONS && headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Returns the headers of the answer to a preflight request; an origin that is not allowed gets none.
    pub(crate) fn preflight(&self, request: &HeaderMap) -> HeaderMap {
        let mut answer = self.response(request);
        if answer.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            let method = request.get(ACCESS_CONTROL_REQUEST_METHOD);
            self.methods.write(&mut answer, ACCESS_CONTROL_ALLOW_METHODS, method);
            let headers = request.get(ACCESS_CONTROL_REQUEST_HEADERS);
            self.headers.write(&mut answer, ACCESS_CONTROL_ALLOW_HEADERS, headers);
            answer.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        }
        answer
    }

    /// Returns the headers that every response to an allowed origin gets.
    pub(crate) fn response(&self, request: &HeaderMap) -> HeaderMap {
        let mut answer = HeaderMap::new();
        let Some(origin) = request.get(ORIGIN) else {
            return answer;
        };
        answer.insert(VARY, HeaderValue::from_static("Origin"));
        let Ok(text) = origin.to_str() else {
            return answer;
        };
        let text = text.to_ascii_lowercase();
        if !self.origins.iter().any(|pattern| pattern.matches(&text)) {
            return answer;
        }
        answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.allow_credentials {
            answer.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        if let Some(expose) = &self.expose {
            answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, expose.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_whole_or_by_their_wildcard() {
        for (pattern, origin, expected) in [
            ("*", "https://a.example", true),
            ("https://a.example", "https://a.example", true),
            ("https://a.example", "http://a.example", false),
            ("https://*.example", "https://a.b.example", true),
            ("https://*.example", "https://example", false),
            ("https://*.example", "https://evil.test/.example", false),
            ("https://*", "https://a.example:8443", true),
        ] {
            assert_eq!(OriginPattern::new(pattern).matches(origin), expected, "{pattern} {origin}");
        }
    }
}
