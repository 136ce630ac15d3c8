//! The annotations of ingress-nginx on Ingresses: one table of names, types and limits, and the settings that follow.
//!
//! A value is parsed by its type before anything uses it. It is never text of a configuration: annotations whose value is
//! such text (snippets) are refused, whatever they say. An annotation that protects, and whose value is invalid, closes the
//! Ingress: its rules answer with 503 until the value is valid.

mod options;
mod table;
#[cfg(test)]
mod tests;
mod url;
mod value;

use std::collections::BTreeMap;

use corten_meta::Value as Json;

pub use options::{
    AuthPath, BackendProtocolName, BackendTlsOptions, CanaryRole, ClientCertificateOptions, ErrorService, Https,
    IngressOptions, RedirectTo, options,
};
pub use table::{Annotation, TABLE, Use};
pub use value::{Kind, Value, is_token};

/// The prefix of the annotations.
pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";
/// The longest value.
pub const MAX_VALUE: usize = 8 * 1024;

/// An annotation that has no effect, or not the one that its author meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The name without its prefix.
    pub name: String,
    pub message: String,
    /// Whether the Ingress is closed because of it.
    pub closes: bool,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "annotation {PREFIX}{}: {}", self.name, self.message)?;
        if self.closes {
            write!(formatter, "; the Ingress answers with 503 until it is valid")?;
        }
        Ok(())
    }
}

/// The annotations of one Ingress, parsed.
#[derive(Clone, Debug, Default)]
pub struct Annotations {
    values: BTreeMap<&'static str, Value>,
    pub problems: Vec<Problem>,
}

/// Parses the annotations of an Ingress. Those of other controllers are left alone.
pub fn read(all: &BTreeMap<String, String>) -> Annotations {
    let mut read = Annotations::default();
    for (full, text) in all {
        let Some(name) = full.strip_prefix(PREFIX) else { continue };
        let known = TABLE.iter().find(|annotation| annotation.name == name);
        let problem = match known {
            None => Some(("is not known".to_owned(), false)),
            Some(annotation) => match annotation.use_ {
                Use::NoEffect(_) => None,
                Use::Unsupported(why) => is_set(text).then(|| (why.to_owned(), false)),
                Use::Refused => Some(("text of a configuration is never used".to_owned(), false)),
                Use::Sets(_) | Use::Guards(_) => match value::parse(annotation.kind, text) {
                    Ok(value) => {
                        read.values.insert(annotation.name, value);
                        None
                    }
                    Err(why) => Some((why, matches!(annotation.use_, Use::Guards(_)))),
                },
            },
        };
        if let Some((message, closes)) = problem {
            read.problems.push(Problem { name: shown(name), message, closes });
        }
    }
    read
}

/// Returns a name as messages show it: annotations of a stored object may have any.
fn shown(name: &str) -> String {
    name.chars().filter(|character| !character.is_control()).take(63).collect()
}

/// Reports whether a value asks for anything: `false` and the empty string do not.
fn is_set(text: &str) -> bool {
    !matches!(text.trim(), "" | "false" | "off" | "0")
}

/// Returns the warnings for the author of an Ingress. Only those of our class concern us.
pub fn warnings(ingress: &Json, class: &str) -> Vec<String> {
    let named = ingress["spec"]["ingressClassName"].as_str();
    if named != Some(class) {
        return Vec::new();
    }
    let annotations = ingress["metadata"]["annotations"].as_object().into_iter().flatten();
    let annotations: BTreeMap<String, String> =
        annotations.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    let namespace = ingress["metadata"]["namespace"].as_str().unwrap_or_default();
    options(read(&annotations), namespace).problems.iter().map(ToString::to_string).collect()
}
