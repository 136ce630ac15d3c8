//! The annotations of seccomp and AppArmor profiles that preceded the fields: they must agree with the fields, and
//! those of AppArmor still become fields of a new pod.

use corten_meta::Value;
use serde_json::json;

use super::security_validation::containers;
use crate::check::{At, Errors};
use crate::defaulting::{default_at, items, put};
use crate::rules;

pub(super) const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
pub(super) const POD_SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(super) const CONTAINER_SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Validates that an annotation and a field of a profile agree.
pub(super) fn validate_agreement(annotations: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    let annotated = |key: String| annotations.value.get(&key).and_then(Value::as_str);
    let mut seccomp = |of: &At<'_>, key: String| {
        if let Some(text) = annotated(key) {
            let profile = of.get("securityContext").get("seccompProfile");
            agree(text, &profile, &profile, ("seccomp", &["runtime/default", "docker/default"]), errors);
        }
    };
    seccomp(spec, POD_SECCOMP.to_owned());
    for container in containers(spec) {
        seccomp(&container, format!("{CONTAINER_SECCOMP}{}", container.get("name").text()));
    }
    if spec.get("os").get("name").text() == "windows" {
        return;
    }
    for container in containers(spec) {
        if let Some(text) = annotated(format!("{APPARMOR}{}", container.get("name").text())) {
            let place = container.get("securityContext").get("appArmorProfile");
            let of_pod = spec.get("securityContext").get("appArmorProfile");
            let profile = if place.is_set() { place.clone() } else { of_pod };
            agree(text, &profile, &place, ("apparmor", &["runtime/default"]), errors);
        }
    }
}

/// Compares an annotation with a field; `place` is the path of the error.
fn agree(text: &str, profile: &At<'_>, place: &At<'_>, (of, defaults): (&str, &[&str]), errors: &mut Errors) {
    let file = text.strip_prefix("localhost/");
    let is_type = match profile.get("type").text() {
        "Unconfined" => text == "unconfined",
        "RuntimeDefault" => defaults.contains(&text),
        "Localhost" => file.is_some(),
        _ => return,
    };
    let is_file = profile.get("type").text() != "Localhost" || profile.get("localhostProfile").value.as_str() == file;
    if !is_type {
        errors.push(place.get("type").forbidden(format!("{of} type in annotation and field must match")));
    } else if !is_file {
        errors
            .push(place.get("localhostProfile").forbidden(format!("{of} profile in annotation and field must match")));
    }
}

/// Returns the field that an annotation stands for.
fn field_of(annotation: &str) -> Option<Value> {
    match annotation {
        "unconfined" => Some(json!({"type": "Unconfined"})),
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        _ => annotation
            .strip_prefix("localhost/")
            .filter(|file| !file.is_empty())
            .map(|file| json!({"type": "Localhost", "localhostProfile": file})),
    }
}

/// Returns the annotations without a field in the container: the annotation's name, and the field if it is valid.
fn without_fields(pod: &At<'_>) -> Vec<(String, String, Option<Value>)> {
    let annotations = pod.get("metadata").get("annotations");
    let spec = pod.get("spec");
    let of_pod = spec.get("securityContext").get("appArmorProfile");
    let mut out = Vec::new();
    for container in containers(&spec) {
        let name = container.get("name").text();
        let key = format!("{APPARMOR}{name}");
        let annotated = annotations.value.get(&key).and_then(Value::as_str);
        let Some(text) = annotated.filter(|_| !container.get("securityContext").get("appArmorProfile").is_set()) else {
            continue;
        };
        let field = field_of(text);
        if field.is_none() || field.as_ref() != Some(of_pod.value) {
            out.push((name.to_owned(), key, field));
        }
    }
    out
}

/// Warns of annotations that should be fields.
pub(crate) fn apparmor_warnings(pod: &At<'_>) -> Vec<String> {
    let path = pod.get("metadata").get("annotations").path;
    let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
    without_fields(pod).into_iter().map(|(_, key, _)| format!("{}: {why}", path.key(key))).collect()
}

/// Sets the fields from the annotations of a new pod.
pub(super) fn apply_apparmor(pod: &mut Value) {
    if pod.pointer("/spec/os/name").is_some_and(|os| os == "windows") {
        return;
    }
    for (name, _, field) in without_fields(&At::object(pod)) {
        let Some(field) = field.filter(is_valid) else { continue };
        for list in ["/spec/initContainers", "/spec/containers"] {
            for container in items(pod, list).filter(|container| container["name"] == name.as_str()) {
                default_at(container, "/securityContext", json!({}));
                put(container, "/securityContext/appArmorProfile", field.clone());
            }
        }
    }
}

fn is_valid(field: &Value) -> bool {
    let mut errors = Errors::new();
    rules::check(".core.v1.AppArmorProfile", &At::object(field), &mut errors);
    errors.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::messages;

    fn pod(annotations: Value, of_pod: Value, of_container: Value) -> Value {
        json!({"metadata": {"annotations": annotations}, "spec": {
            "securityContext": of_pod, "containers": [{"name": "c", "securityContext": of_container}]}})
    }

    #[test]
    fn annotations_of_apparmor_become_fields() {
        let local = json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}});
        let default = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
        for (annotated, of_pod, of_container, wanted, warned) in [
            ("localhost/x", json!({}), json!({}), local.clone(), true),
            ("runtime/default", json!({}), json!({}), default.clone(), true),
            ("runtime/default", json!({}), local.clone(), local.clone(), false),
            ("runtime/default", default.clone(), json!({}), json!({}), false),
            ("localhost/", json!({}), json!({}), json!({}), true),
            ("localhost/x ", json!({}), json!({}), json!({}), true),
        ] {
            let mut pod = pod(json!({format!("{APPARMOR}c"): annotated}), of_pod, of_container);
            assert_eq!(apparmor_warnings(&At::object(&pod)).len(), usize::from(warned), "{annotated}");
            apply_apparmor(&mut pod);
            assert_eq!(pod["spec"]["containers"][0]["securityContext"], wanted, "{annotated}");
        }
    }

    #[test]
    fn annotations_and_fields_agree() {
        let place = "spec.containers[0].securityContext";
        let apparmor = |kind: &str| json!({"appArmorProfile": {"type": kind, "localhostProfile": "x"}});
        let seccomp = |kind: &str| json!({"seccompProfile": {"type": kind, "localhostProfile": "x"}});
        for (key, annotated, of_pod, of_container, wanted) in [
            (format!("{APPARMOR}c"), "localhost/x", json!({}), apparmor("Localhost"), None),
            (format!("{APPARMOR}c"), "unconfined", json!({}), json!({}), None),
            (
                format!("{APPARMOR}c"),
                "localhost/y",
                json!({}),
                apparmor("Localhost"),
                Some(format!("{place}.appArmorProfile.localhostProfile: Forbidden: apparmor profile in annotation and field must match")),
            ),
            (
                format!("{APPARMOR}c"),
                "unconfined",
                apparmor("Localhost"),
                json!({}),
                Some(format!("{place}.appArmorProfile.type: Forbidden: apparmor type in annotation and field must match")),
            ),
            (format!("{CONTAINER_SECCOMP}c"), "docker/default", json!({}), seccomp("RuntimeDefault"), None),
            (
                format!("{CONTAINER_SECCOMP}c"),
                "unconfined",
                json!({}),
                seccomp("RuntimeDefault"),
                Some(format!("{place}.seccompProfile.type: Forbidden: seccomp type in annotation and field must match")),
            ),
            (
                POD_SECCOMP.to_owned(),
                "localhost/y",
                seccomp("Localhost"),
                json!({}),
                Some("spec.securityContext.seccompProfile.localhostProfile: Forbidden: seccomp profile in annotation and field must match".to_owned()),
            ),
        ] {
            let pod = pod(json!({key.as_str(): annotated}), of_pod, of_container);
            let pod = At::object(&pod);
            let mut errors = Errors::new();
            validate_agreement(&pod.get("metadata").get("annotations"), &pod.get("spec"), &mut errors);
            assert_eq!(messages(&errors), wanted.into_iter().collect::<Vec<_>>(), "{key} {annotated}");
        }
    }
}
