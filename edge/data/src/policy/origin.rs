//! Changes headers of responses that name the backend's own addresses: redirects and cookies.

use corten_routing::{OriginChange, Replacement};
use http::header::{HeaderName, LOCATION, REFRESH, SET_COOKIE};
use http::{HeaderMap, HeaderValue};

/// Changes the redirects and cookies of a response.
pub(crate) fn apply(change: &OriginChange, headers: &mut HeaderMap) {
    if let Some(redirect) = &change.redirect {
        replace(headers, LOCATION, |value| with_prefix(value, redirect));
        replace(headers, REFRESH, |value| {
            let (delay, url) = value.split_once("url=")?;
            Some(format!("{delay}url={}", with_prefix(url, redirect)?))
        });
    }
    if change.cookie_domain.is_some() || change.cookie_path.is_some() {
        replace(headers, SET_COOKIE, |value| Some(cookie(value, change)));
    }
}

/// Replaces the values of a header that change; those that are no text stay.
fn replace(headers: &mut HeaderMap, name: HeaderName, change: impl Fn(&str) -> Option<String>) {
    if !headers.contains_key(&name) {
        return;
    }
    let changed = |value: &HeaderValue| {
        let text = change(value.to_str().ok()?)?;
        HeaderValue::from_str(&text).ok()
    };
    let values: Vec<HeaderValue> =
        headers.get_all(&name).iter().map(|value| changed(value).unwrap_or_else(|| value.clone())).collect();
    headers.remove(&name);
    for value in values {
        headers.append(name.clone(), value);
    }
}

/// Returns a value with its beginning replaced; `None` if it begins otherwise.
fn with_prefix(value: &str, replacement: &Replacement) -> Option<String> {
    value.strip_prefix(&*replacement.from).map(|rest| format!("{}{rest}", replacement.to))
}

/// Returns a cookie with the attributes Domain and Path replaced.
fn cookie(value: &str, change: &OriginChange) -> String {
    let attribute = |part: &str| {
        let (name, value) = part.trim_start().split_once('=')?;
        if name.eq_ignore_ascii_case("domain") {
            let replacement = change.cookie_domain.as_ref()?;
            let is_same = value.trim_start_matches('.').eq_ignore_ascii_case(replacement.from.trim_start_matches('.'));
            return is_same.then(|| format!(" {name}={}", replacement.to));
        }
        if name.eq_ignore_ascii_case("path") {
            return Some(format!(" {name}={}", with_prefix(value, change.cookie_path.as_ref()?)?));
        }
        None
    };
    let mut parts = value.split(';');
    let mut changed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        changed.push(';');
        changed.push_str(&attribute(part).unwrap_or_else(|| part.to_owned()));
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_and_cookies_of_the_backend_are_changed() {
        let replacement = |from: &str, to: &str| Some(Replacement { from: from.into(), to: to.into() });
        let change = OriginChange {
            redirect: replacement("http://inner:8080/", "https://a.test/app/"),
            cookie_domain: replacement("inner.test", "a.test"),
            cookie_path: replacement("/two/", "/"),
        };
        for (name, before, after) in [
            ("location", "http://inner:8080/x", "https://a.test/app/x"),
            ("location", "http://other/x", "http://other/x"),
            ("refresh", "5; url=http://inner:8080/", "5; url=https://a.test/app/"),
            (
                "set-cookie",
                "a=domain=inner.test; Domain=.Inner.test; Path=/two/x",
                "a=domain=inner.test; Domain=a.test; Path=/x",
            ),
            ("set-cookie", "a=b; Path=/one; HttpOnly", "a=b; Path=/one; HttpOnly"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(name, HeaderValue::from_static(before));
            headers.append(name, HeaderValue::from_static("other"));
            apply(&change, &mut headers);
            let values: Vec<_> = headers.get_all(name).iter().collect();
            assert_eq!(values, [after, "other"], "{name}");
        }
    }
}
