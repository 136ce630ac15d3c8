//! The results of probes.

/// The results of the probes of one running container; `None` without a result yet, or without such a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub startup: Option<bool>,
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
}
