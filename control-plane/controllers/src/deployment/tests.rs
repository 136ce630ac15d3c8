//! The bounds of a rollout.

use super::*;
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

#[test]
fn shares_are_rounded_as_upstream_does() {
    let percent = |text: &str| IntOrString::String(text.to_owned());
    for (value, total, up, expected) in [
        (percent("25%"), 10, true, 3),
        (percent("25%"), 10, false, 2),
        (percent("100%"), 3, true, 3),
        (percent("0%"), 3, true, 0),
        (IntOrString::Int(2), 9, true, 2),
    ] {
        assert_eq!(scaled(Some(&value), total, up), expected, "{value:?} of {total}");
    }
    assert_eq!(scaled(None, 4, true), 1, "the default is a quarter");
}
