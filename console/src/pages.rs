//! The files of the console, and the headers that keep a browser from running anything else.

use std::io::Read;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};
use ring::digest::{SHA256, digest};
use serde_json::json;

include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The path below which the console is shown.
pub const PREFIX: &str = "/console/";

const SETTINGS: &str = "settings.json";

struct File {
    path: &'static str,
    compressed: &'static [u8],
}

/// The OpenID Connect issuer by which users sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenId {
    pub issuer: String,
    pub client_id: String,
}

/// The files of the console, with the settings of this cluster.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    pub open_id: Option<OpenId>,
}

impl Pages {
    /// Answers a request for a path below [`PREFIX`], or for the prefix without its slash.
    pub fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
        if path == PREFIX.trim_end_matches('/') {
            return self.finish(redirect());
        }
        let name = match path.strip_prefix(PREFIX) {
            Some("") => "index.html",
            Some(name) => name,
            None => return self.finish(status(StatusCode::NOT_FOUND)),
        };
        if method != Method::GET && method != Method::HEAD {
            return self.finish(status(StatusCode::METHOD_NOT_ALLOWED));
        }
        let answer = match FILES.iter().find(|file| file.path == name) {
            Some(file) => file.answer(headers),
            None if name == SETTINGS => self.settings(),
            None => status(StatusCode::NOT_FOUND),
        };
        self.finish(answer)
    }

    fn settings(&self) -> Response<Bytes> {
        let open_id = self.open_id.as_ref();
        let oidc = open_id.map(|one| json!({"issuer": one.issuer, "clientID": one.client_id}));
        let body = match oidc {
            Some(oidc) => json!({ "oidc": oidc }),
            None => json!({}),
        };
        let mut answer = Response::new(Bytes::from(body.to_string()));
        let json = HeaderValue::from_static("application/json");
        answer.headers_mut().insert(header::CONTENT_TYPE, json);
        answer
    }

    /// Adds the headers of every answer: nothing but our own files runs, and no other site shows the console in a frame.
    fn finish(&self, mut answer: Response<Bytes>) -> Response<Bytes> {
        let issuer = self.open_id.as_ref().and_then(|one| origin(&one.issuer)).unwrap_or_default();
        let policy = format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {issuer}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let headers = answer.headers_mut();
        if let Ok(policy) = HeaderValue::from_str(&policy) {
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        for (name, value) in [
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::CACHE_CONTROL, "no-cache"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        answer
    }
}

impl File {
    fn answer(&self, asked: &HeaderMap) -> Response<Bytes> {
        let tag = self.tag();
        if asked.get(header::IF_NONE_MATCH).is_some_and(|seen| seen.as_bytes() == tag.as_bytes()) {
            let mut unchanged = status(StatusCode::NOT_MODIFIED);
            unchanged.headers_mut().insert(header::ETAG, tag);
            return unchanged;
        }
        let encodings = asked.get_all(header::ACCEPT_ENCODING).iter();
        let takes_gzip = encodings.filter_map(|value| value.to_str().ok()).any(|value| value.contains("gzip"));
        let body = match takes_gzip {
            true => Bytes::from_static(self.compressed),
            false => self.content(),
        };
        let mut answer = Response::new(body);
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, self.media_type());
        headers.insert(header::ETAG, tag);
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        if takes_gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        answer
    }

    /// Returns the file as it was written. It was compressed by our own build.
    fn content(&self) -> Bytes {
        let mut content = Vec::new();
        match GzDecoder::new(self.compressed).read_to_end(&mut content) {
            Ok(_) => content.into(),
            Err(_) => Bytes::new(),
        }
    }

    fn tag(&self) -> HeaderValue {
        let digest = digest(&SHA256, self.compressed);
        let hex: String = digest.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::from_str(&format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
    }

    fn media_type(&self) -> HeaderValue {
        let extension = self.path.rsplit_once('.').map_or("", |(_, extension)| extension);
        HeaderValue::from_static(match extension {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "application/octet-stream",
        })
    }
}

fn status(code: StatusCode) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = code;
    answer
}

fn redirect() -> Response<Bytes> {
    let mut answer = status(StatusCode::PERMANENT_REDIRECT);
    answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static(PREFIX));
    answer
}

/// Returns scheme, host and port of a URL, if it is one that a policy may name.
fn origin(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "https" | "http"))?;
    Some(format!("{scheme}://{}", uri.authority()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(pages: &Pages, path: &str, headers: &[(HeaderName, &'static str)]) -> Response<Bytes> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        pages.answer(&Method::GET, path, &headers)
    }

    #[test]
    fn files_are_answered_compressed_or_as_they_are() {
        let pages = Pages::default();
        let plain = get(&pages, "/console/", &[]);
        assert_eq!(plain.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert!(plain.body().starts_with(b"<!doctype html>"));
        let gzip = get(&pages, "/console/app.js", &[(header::ACCEPT_ENCODING, "gzip, br")]);
        assert_eq!(gzip.headers()[header::CONTENT_ENCODING], "gzip");
        assert!(gzip.body().starts_with(&[0x1f, 0x8b]));
        let tag = plain.headers()[header::ETAG].clone();
        let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]);
        assert_eq!(pages.answer(&Method::GET, "/console/", &headers).status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        let pages = Pages::default();
        for (path, code) in [
            ("/console", StatusCode::PERMANENT_REDIRECT),
            ("/console/none", StatusCode::NOT_FOUND),
            ("/console/../app.js", StatusCode::NOT_FOUND),
            ("/console/pages", StatusCode::NOT_FOUND),
            ("/consolex", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(get(&pages, path, &[]).status(), code, "{path}");
        }
        let post = pages.answer(&Method::POST, "/console/", &HeaderMap::new());
        assert_eq!(post.status(), StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn every_answer_has_a_strict_policy_that_names_the_issuer() {
        let open_id = OpenId { issuer: "https://issuer.example:8443/realm".into(), client_id: "k8s".into() };
        let pages = Pages { open_id: Some(open_id) };
        for path in ["/console/", "/console/none", "/console/settings.json"] {
            let answer = get(&pages, path, &[]);
            let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
            assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
            assert!(policy.contains("connect-src 'self' https://issuer.example:8443;"), "{policy}");
        }
        let settings = get(&pages, "/console/settings.json", &[]);
        let settings: serde_json::Value = serde_json::from_slice(settings.body()).unwrap();
        assert_eq!(settings, json!({"oidc": {"issuer": "https://issuer.example:8443/realm", "clientID": "k8s"}}));
    }

    #[test]
    fn the_pages_hold_no_inline_script_and_name_no_other_host() {
        for file in FILES {
            let content = String::from_utf8(file.content().to_vec()).unwrap();
            assert!(!content.contains("innerHTML") && !content.contains("eval("), "{}", file.path);
            let urls = content.matches("://").count();
            let ours = content.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(urls, ours, "{} names another host", file.path);
        }
        let index = FILES.iter().find(|file| file.path == "index.html").unwrap().content();
        let index = String::from_utf8(index.to_vec()).unwrap();
        assert!(!index.contains(" style=") && !index.contains(" onclick=") && index.matches("<script").count() == 1);
    }

    #[test]
    fn all_files_together_are_small_over_the_wire() {
        let bytes: usize = FILES.iter().map(|file| file.compressed.len()).sum();
        assert!(bytes <= 250_000, "{bytes}");
    }
}
