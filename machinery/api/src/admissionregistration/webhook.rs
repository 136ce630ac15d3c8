//! The shared parts of the two webhook configurations: defaults and rules. The rules of requests are also
//! those of policies.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;
use corten_meta::{Value, names};
use serde_json::json;

use crate::check::{At, Errors};
use crate::defaulting::{default_at, items};
use crate::rules::Site;

/// Sets the defaults of every webhook of a configuration.
pub(super) fn default_webhooks(object: &mut Value, mutating: bool) {
    for webhook in items(object, "/webhooks") {
        default_at(webhook, "/failurePolicy", "Fail");
        default_match(webhook, "");
        default_at(webhook, "/timeoutSeconds", 10);
        if mutating {
            default_at(webhook, "/reinvocationPolicy", "Never");
        }
        default_at(webhook, "/clientConfig/service/port", 443);
        items(webhook, "/rules").for_each(|rule| default_at(rule, "/scope", "*"));
    }
}

/// Sets the defaults of the match rules, at a JSON pointer.
pub(super) fn default_match(object: &mut Value, at: &str) {
    default_at(object, &format!("{at}/matchPolicy"), "Equivalent");
    default_at(object, &format!("{at}/namespaceSelector"), json!({}));
    default_at(object, &format!("{at}/objectSelector"), json!({}));
    for rules in ["resourceRules", "excludeResourceRules"] {
        items(object, &format!("{at}/{rules}")).for_each(|rule| default_at(rule, "/scope", "*"));
    }
}

/// Validates the side effects of a webhook. If the old object has a webhook with side effects, all may have them.
pub(crate) fn side_effects(site: &Site<'_, '_>, errors: &mut Errors) {
    const EFFECTS: &[&str] = &["None", "NoneOnDryRun", "Some", "Unknown"];
    let is_without = |webhook: At<'_>| EFFECTS[..2].contains(&webhook.get("sideEffects").text());
    let had_none = site.root_old.is_none_or(|old| At::object(old).get("webhooks").items().all(is_without));
    let allowed = if had_none { &EFFECTS[..2] } else { EFFECTS };
    if site.at.is_set() {
        site.at.one_of(errors, allowed);
    } else {
        errors.push(site.at.required(&format!("must specify one of {}", allowed.join(", "))));
    }
}

/// Validates a name: a domain of three labels or more.
pub(crate) fn webhook_name(at: &At<'_>, errors: &mut Errors) {
    let messages = names::dns1123_subdomain(at.text());
    if !messages.is_empty() {
        errors.push(at.invalid(messages.join(",")));
    } else if at.text().split('.').count() < 3 {
        errors.push(at.invalid("should be a domain with at least three segments separated by dots"));
    }
}

pub(crate) fn review_versions(versions: &At<'_>, errors: &mut Errors) {
    if versions.must_say(errors, "must specify one of v1, v1beta1") {
        known_versions(versions, errors);
    }
}

/// Validates the review versions of a webhook, of which the server must know one.
pub(crate) fn known_versions(versions: &At<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if seen.insert(version.text()) {
            version.follows_also_empty(errors, names::dns1035_label);
        } else {
            errors.push(version.invalid("duplicate version"));
        }
    }
    if !versions.texts().any(|version| ["v1", "v1beta1"].contains(&version)) {
        errors.push(versions.invalid("must include at least one of v1, v1beta1"));
    }
}

/// Validates the address of a webhook: a URL or a service.
pub(crate) fn validate_client(client: &At<'_>, errors: &mut Errors) {
    let url = client.get("url");
    let service = client.get("service");
    if url.is_set() == service.is_object() {
        errors.push(client.required("exactly one of url or service is required"));
    } else if url.is_set() {
        validate_url(&url, errors);
    } else {
        validate_service(&service, errors);
    }
}

fn validate_url(url: &At<'_>, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let invalid = |value: &str, detail: String| FieldError::invalid(&url.path, value, detail);
    let parts = match super::url::parse(url.text()) {
        Ok(parts) => parts,
        Err(why) => return errors.push(url.required(&format!("url must be a valid URL: {why}{FORM}"))),
    };
    if parts.scheme != "https" {
        errors.push(invalid(&parts.scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if parts.host.is_empty() {
        errors.push(invalid(parts.host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = parts.user {
        errors.push(invalid(user, "user information is not permitted in the URL".to_owned()));
    }
    for (part, what) in [(parts.fragment, "fragments"), (parts.query, "query parameters")] {
        if !part.is_empty() {
            errors.push(invalid(part, format!("{what} are not permitted in the URL")));
        }
    }
}

fn validate_service(service: &At<'_>, errors: &mut Errors) {
    // Upstream swaps the two here, and so names the other field.
    for (field, named) in [("namespace", "name"), ("name", "namespace")] {
        service.get(field).with(service.path.child(named)).must(errors);
    }
    let port = service.get("port");
    let messages = names::port_number(port.number().unwrap_or_default());
    if !messages.is_empty() {
        errors.push(port.invalid(format!("port is not valid: {}", messages.join(", "))));
    }
    let path = service.get("path");
    let text = path.text();
    if text.is_empty() || text == "/" {
        return;
    }
    if !text.starts_with('/') {
        errors.push(path.invalid("must start with a '/'"));
    }
    // Upstream skips a byte, even inside a character.
    let inner = &*String::from_utf8_lossy(&text.as_bytes()[1..]);
    for (at, step) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if step.is_empty() {
            errors.push(path.invalid(format!("segment[{at}] may not be empty")));
            continue;
        }
        let messages = names::dns1123_subdomain(step).into_iter();
        errors.extend(messages.map(|m| path.invalid(format!("segment[{at}]: {m}"))));
    }
}

/// Validates resources and subresources: none may be covered by another.
pub(crate) fn matched_resources(resources: &At<'_>, errors: &mut Errors) {
    resources.must(errors);
    let mut with_all_subs: BTreeSet<&str> = BTreeSet::new();
    let mut all_with_sub: BTreeSet<&str> = BTreeSet::new();
    let star = resources.texts().any(|resource| resource == "*");
    let all = resources.texts().any(|resource| resource == "*/*");
    for resource in resources.items() {
        let text = resource.text();
        if text.is_empty() {
            errors.push(resource.required(""));
            continue;
        }
        let Some((name, sub)) = text.split_once('/') else { continue };
        if with_all_subs.contains(name) {
            errors.push(resource.invalid(format!("if '{name}/*' is present, must not specify {text}")));
        }
        if all_with_sub.contains(sub) {
            errors.push(resource.invalid(format!("if '*/{sub}' is present, must not specify {text}")));
        }
        if sub == "*" {
            with_all_subs.insert(name);
        }
        if name == "*" {
            all_with_sub.insert(sub);
        }
    }
    if all && resources.len() > 1 {
        errors.push(resources.invalid("if '*/*' is present, must not specify other resources"));
    }
    let plain = resources.texts().any(|resource| resource != "*" && !resource.contains('/'));
    if star && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(resources.invalid(detail));
    }
}
