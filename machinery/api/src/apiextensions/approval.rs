//! Whether names in the groups of the community are approved by it, which a definition tells by an annotation.

use corten_meta::Value;
use corten_meta::quote::quote;

use crate::admissionregistration::url;

pub(super) const ANNOTATION: &str = "api-approved.kubernetes.io";
const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What a definition in a group of the community says of its approval.
#[derive(Debug, PartialEq, Eq)]
pub enum Approval {
    /// Where it was given.
    Given(String),
    /// Why there is none.
    Bypassed(String),
    Missing,
    Unclear,
}

/// The annotation; empty if there is none.
pub(super) fn annotation(definition: &Value) -> String {
    let annotations = &definition["metadata"]["annotations"];
    annotations.get(ANNOTATION).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Approval {
    /// `None` for a definition that needs none, being in another group.
    pub fn of(definition: &Value) -> Option<Approval> {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let is_within = |own: &str| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if !is_within("k8s.io") && !is_within("kubernetes.io") {
            return None;
        }
        let told = annotation(definition);
        let is_url = || url::parse_request(&told).is_ok_and(|url| !url.host.is_empty() && !url.scheme.is_empty());
        Some(match told.as_str() {
            "" => Approval::Missing,
            reason if reason.starts_with("unapproved") => Approval::Bypassed(told),
            _ if is_url() => Approval::Given(told),
            _ => Approval::Unclear,
        })
    }

    /// Whether the definition says clearly how it is.
    pub(super) fn is_told(&self) -> bool {
        matches!(self, Approval::Given(_) | Approval::Bypassed(_))
    }

    /// The reason of the condition that tells it, which holds if the approval was given.
    pub fn reason(&self) -> &'static str {
        match self {
            Approval::Given(_) => "ApprovedAnnotation",
            Approval::Bypassed(_) => "UnapprovedAnnotation",
            Approval::Missing => "MissingAnnotation",
            Approval::Unclear => "InvalidAnnotation",
        }
    }

    pub fn message(&self) -> String {
        let must = format!("protected groups must have approval annotation {}", quote(ANNOTATION));
        match self {
            Approval::Given(place) => format!("approved in {place}"),
            Approval::Bypassed(why) => format!("not approved: {}", quote(why)),
            Approval::Missing => format!("{must}, {SEE}"),
            Approval::Unclear => format!("{must} with either a URL or a reason starting with \"unapproved\", {SEE}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_of_the_community_tell_of_their_approval() {
        let reason = |group: &str, told: &str| {
            let annotations = json!({ ANNOTATION: told });
            Approval::of(&json!({ "metadata": { "annotations": annotations }, "spec": { "group": group } }))
                .map(|approval| approval.reason())
        };
        assert_eq!(reason("example.com", ""), None);
        assert_eq!(reason("notk8s.io", ""), None);
        for group in ["k8s.io", "a.k8s.io", "kubernetes.io", "a.b.kubernetes.io"] {
            assert_eq!(reason(group, ""), Some("MissingAnnotation"));
            assert_eq!(reason(group, "unapproved, an experiment"), Some("UnapprovedAnnotation"));
            for place in ["https://example.com/pull/1", "ftp://a"] {
                assert_eq!(reason(group, place), Some("ApprovedAnnotation"), "{place}");
            }
            for rest in ["yes", "/pull/1", "https://", "mailto:a", "https://a:b"] {
                assert_eq!(reason(group, rest), Some("InvalidAnnotation"), "{rest}");
            }
        }
    }
}
