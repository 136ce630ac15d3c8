//! The phases of a pod.

/// Returns whether a phase is final: Succeeded or Failed.
pub fn is_terminal(phase: &str) -> bool {
    phase == "Succeeded" || phase == "Failed"
}
