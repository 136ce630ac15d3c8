//! The policy of a namespace's labels: a level and its version for each of the three modes. Pure.

use std::collections::BTreeMap;
use std::fmt;

use corten_meta::{FieldError, Path};

pub const PREFIX: &str = "pod-security.kubernetes.io/";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }

    fn parse(value: &str) -> Option<Level> {
        [Level::Privileged, Level::Baseline, Level::Restricted].into_iter().find(|level| level.word() == value)
    }
}

/// The Kubernetes version of the checks: a minor version, or the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(Option<u32>);

impl Version {
    pub const LATEST: Version = Version(None);

    /// Reports whether checks that came with a minor version apply.
    pub fn since(self, minor: u32) -> bool {
        self.0.is_none_or(|own| own >= minor)
    }

    fn parse(value: &str) -> Option<Version> {
        if value == "latest" {
            return Some(Version::LATEST);
        }
        let digits = value.strip_prefix("v1.")?;
        let plain = digits == "0" || (digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0'));
        digits.parse().ok().filter(|_| plain).map(|minor| Version(Some(minor)))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("latest"),
            Some(minor) => write!(f, "v1.{minor}"),
        }
    }
}

/// The level and version of one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.word(), self.version)
    }
}

/// The levels and versions of a namespace's modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|mode| mode.level == Level::Privileged)
    }

    /// Reads the labels. An invalid `enforce` label means the restricted level; an invalid `audit` or `warn` label
    /// means none.
    pub fn of(labels: &BTreeMap<String, String>) -> (Policy, Vec<FieldError>) {
        const DEFAULT: LevelVersion = LevelVersion { level: Level::Privileged, version: Version::LATEST };
        let mut errors = Vec::new();
        let mut read = |mode: &str, on_error: Level| {
            let mut refuse = |label: &str, value: &str, why: &str| {
                let path = Path::root("metadata").child("labels").key(format!("{PREFIX}{label}"));
                errors.push(FieldError::invalid(&path, value, why));
            };
            let mut level = DEFAULT;
            if let Some(value) = labels.get(&format!("{PREFIX}{mode}")) {
                level.level = Level::parse(value).unwrap_or_else(|| {
                    refuse(mode, value, "must be one of privileged, baseline, restricted");
                    on_error
                });
            }
            let label = format!("{mode}-version");
            if let Some(value) = labels.get(&format!("{PREFIX}{label}")) {
                level.version = Version::parse(value).unwrap_or_else(|| {
                    refuse(&label, value, "must be \"latest\" or \"v1.x\"");
                    Version::LATEST
                });
            }
            level
        };
        let enforce = read("enforce", Level::Restricted);
        let audit = read("audit", Level::Privileged);
        let mut warn = read("warn", Level::Privileged);
        let is_set = |label: &str| labels.contains_key(&format!("{PREFIX}{label}"));
        let enforced = labels.get(&format!("{PREFIX}enforce")).is_some_and(|value| Level::parse(value).is_some());
        // A namespace that enforces a level also gets warnings of workloads whose pods will be refused.
        if !is_set("warn") && enforced && enforce.level > warn.level {
            warn.level = enforce.level;
            if !is_set("warn-version") {
                warn.version = enforce.version;
            }
        }
        (Policy { enforce, audit, warn }, errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(labels: &[(&str, &str)]) -> (String, String) {
        let labels = labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect();
        let (policy, errors) = Policy::of(&labels);
        let shown = [policy.enforce, policy.audit, policy.warn].map(|mode| mode.to_string()).join(" ");
        (shown, errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn labels_are_read() {
        let good =
            |labels: &[(&str, &str)], expected: &str| assert_eq!(of(labels), (expected.to_owned(), String::new()));
        good(&[], "privileged:latest privileged:latest privileged:latest");
        good(&[("enforce", "baseline")], "baseline:latest privileged:latest baseline:latest");
        good(
            &[("enforce", "restricted"), ("enforce-version", "v1.24"), ("audit", "baseline"), ("warn", "privileged")],
            "restricted:v1.24 baseline:latest privileged:latest",
        );
        let (shown, errors) = of(&[("enforce", "x"), ("warn", "y"), ("audit-version", "1.2")]);
        assert_eq!(shown, "restricted:latest privileged:latest privileged:latest");
        assert_eq!(
            errors,
            "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"x\": must be one of privileged, baseline, restricted; \
             metadata.labels[pod-security.kubernetes.io/audit-version]: Invalid value: \"1.2\": must be \"latest\" or \"v1.x\"; \
             metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"y\": must be one of privileged, baseline, restricted"
        );
    }

    #[test]
    fn versions_are_minor_ones() {
        for value in ["v1.024", "v1.", "v2.0", "1.24", "v1.-1", ""] {
            assert_eq!(Version::parse(value), None, "{value}");
        }
        assert!(Version::LATEST.since(99) && Version(Some(24)).since(24) && !Version(Some(24)).since(25));
    }
}
