//! The rules of FlowSchema and PriorityLevelConfiguration beyond their fields.

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::rules::Site;

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

pub(crate) fn unreserved_precedence(at: &At<'_>, errors: &mut Errors) {
    if at.number() == Some(1) {
        errors.push(at.invalid("only the schema named 'exempt' may have matchingPrecedence 1"));
    }
}

fn is_wild(list: &At<'_>) -> bool {
    list.texts().any(|item| item == "*")
}

pub(crate) fn flow_verbs(verbs: &At<'_>, errors: &mut Errors) {
    if !is_wild(verbs) && !verbs.texts().all(|verb| VERBS.contains(&verb)) {
        errors.push(verbs.not_supported(VERBS));
    }
}

pub(crate) fn flow_namespaces(namespaces: &At<'_>, errors: &mut Errors) {
    for namespace in namespaces.items().filter(|_| !is_wild(namespaces)) {
        let messages = names::dns1123_label(namespace.text()).into_iter();
        let intro = "each member of this list must be '*' or a DNS-1123 label; ";
        errors.extend(messages.map(|m| namespace.invalid(format!("{intro}{m}"))));
    }
}

pub(crate) fn flow_urls(urls: &At<'_>, errors: &mut Errors) {
    for url in urls.items().filter(|_| !is_wild(urls)) {
        errors.extend(url_error(url.text()).map(|detail| url.invalid(detail)));
    }
}

fn url_error(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ => {
            let inner = path.strip_suffix("/*").unwrap_or(path);
            inner.contains('*').then_some("wildcard can only do suffix matching")
        }
    }
}

/// Validates that a hand can be dealt from the queues, and that this takes few random bits.
pub(crate) fn hand_size(site: &Site<'_, '_>, errors: &mut Errors) {
    const MAX_BITS: u32 = 60;
    let queues = site.of.get("queues").number().unwrap_or_default();
    let hand = site.at.number().unwrap_or_default();
    let detail = if hand > queues {
        format!("should not be greater than queues ({queues})")
    } else if entropy_bits(queues, hand) > MAX_BITS {
        format!("required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_BITS}")
    } else {
        return;
    };
    errors.push(FieldError::invalid(&site.at.path, hand, detail));
}

/// Returns the random bits that it takes to deal a hand from a deck.
fn entropy_bits(deck: i64, hand: i64) -> u32 {
    let bits: f64 = (0..hand).map(|dealt| ((deck - dealt) as f64).log2()).sum();
    bits.ceil() as u32
}
