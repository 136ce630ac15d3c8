//! The approval of community groups: the annotation by which a CustomResourceDefinition in such a group states it.

use corten_meta::Value;
use corten_meta::quote::quote;

use crate::admissionregistration::url;

pub(super) const ANNOTATION: &str = "api-approved.kubernetes.io";
const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// The approval state of a CustomResourceDefinition in a community group.
#[derive(Debug, PartialEq, Eq)]
pub enum Approval {
    /// The URL of the approval.
    Given(String),
    /// The reason for the missing approval.
    Bypassed(String),
    Missing,
    Unclear,
}

/// Returns the annotation; empty if there is none.
pub(super) fn annotation(definition: &Value) -> String {
    let annotations = &definition["metadata"]["annotations"];
    annotations.get(ANNOTATION).and_then(Value::as_str).unwrap_or_default().to_owned()
}

impl Approval {
    /// Returns the approval state; `None` for a CustomResourceDefinition in another group, which needs none.
    pub fn of(definition: &Value) -> Option<Approval> {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let is_within = |own: &str| group.strip_suffix(own).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        if !is_within("k8s.io") && !is_within("kubernetes.io") {
            return None;
        }
        let messages = annotation(definition);
        let is_url = || url::parse_request(&messages).is_ok_and(|url| !url.host.is_empty() && !url.scheme.is_empty());
        Some(match messages.as_str() {
            "" => Approval::Missing,
            reason if reason.starts_with("unapproved") => Approval::Bypassed(messages),
            _ if is_url() => Approval::Given(messages),
            _ => Approval::Unclear,
        })
    }

    /// Reports whether the annotation states the approval clearly.
    pub(super) fn is_stated(&self) -> bool {
        matches!(self, Approval::Given(_) | Approval::Bypassed(_))
    }

    /// Returns the reason of the approval condition, which is true if the approval was given.
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
    fn community_groups_state_their_approval() {
        let reason = |group: &str, messages: &str| {
            let annotations = json!({ ANNOTATION: messages });
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
