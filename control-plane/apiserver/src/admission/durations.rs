//! The durations of admission: of the chain and of each plugin, by operation and by whether the write was refused.
//!
//! Counting must cost next to nothing: one read of the clock and two additions a plugin.

use std::time::Instant;

use super::operation::Operation;
use crate::metrics::{Exposition, Histogram};

const SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const STEPS: [&str; 2] = ["admit", "validate"];
const OPERATIONS: [Operation; 4] = [Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// The two steps of admission.
#[derive(Clone, Copy)]
pub enum Step {
    Admit,
    Validate,
}

/// Durations by operation, by step, and by whether the write was refused.
#[derive(Default)]
pub struct Durations([[[Histogram<{ SECONDS.len() }, 1_000_000_000>; 2]; STEPS.len()]; OPERATIONS.len()]);

impl Durations {
    /// Counts a step that began at `began`, and returns the current time.
    pub fn observe(&self, operation: Operation, step: Step, refused: bool, began: Instant) -> Instant {
        let now = Instant::now();
        let histogram = &self.0[operation as usize][step as usize][usize::from(refused)];
        histogram.observe((now - began).as_secs_f64(), SECONDS);
        now
    }

    /// Counts a step that had nothing to do.
    pub fn observe_none(&self, operation: Operation, step: Step) {
        self.0[operation as usize][step as usize][0].observe(0.0, SECONDS);
    }

    fn render(&self, out: &mut Exposition, family: &str, name: Option<&str>) {
        for operation in OPERATIONS {
            for (step, word) in STEPS.iter().enumerate() {
                for (refused, rejected) in ["false", "true"].iter().enumerate() {
                    let histogram = &self.0[operation as usize][step][refused];
                    if histogram.count() > 0 {
                        let mut labels: Vec<(&str, &str)> = name.map(|name| ("name", name)).into_iter().collect();
                        labels.extend([("operation", operation.word()), ("rejected", rejected), ("type", word)]);
                        histogram.render(out, family, &labels, SECONDS);
                    }
                }
            }
        }
    }
}

/// Writes the durations of the chain and of its plugins.
pub fn render<'a>(
    out: &mut Exposition,
    steps: &Durations,
    plugins: impl Iterator<Item = (&'static str, &'a Durations)>,
) {
    let family = "apiserver_admission_step_admission_duration_seconds";
    out.family(family, "histogram", "How long admission took.");
    steps.render(out, family, None);
    let family = "apiserver_admission_controller_admission_duration_seconds";
    out.family(family, "histogram", "How long the plugins of admission took.");
    for (name, durations) in plugins {
        durations.render(out, family, Some(name));
    }
}

/// Returns upstream's name of a plugin and the operations that it handles in the two steps; none for a plugin that
/// upstream does not have.
pub fn handled(plugin: &str) -> Option<(&'static str, [&'static [Operation]; 2])> {
    use Operation::{Connect, Create, Delete, Update};
    const C: &[Operation] = &[Create];
    const U: &[Operation] = &[Update];
    const CU: &[Operation] = &[Create, Update];
    const CUD: &[Operation] = &[Create, Update, Delete];
    const ALL: &[Operation] = &[Create, Update, Delete, Connect];
    const HANDLED: [(&str, [&[Operation]; 2]); 23] = [
        ("NamespaceLifecycle", [CUD, &[]]),
        ("LimitRanger", [CU, CU]),
        ("ServiceAccount", [CU, CU]),
        ("NodeRestriction", [CUD, &[]]),
        ("TaintNodesByCondition", [C, &[]]),
        ("PodSecurity", [&[], CU]),
        ("Priority", [CUD, CUD]),
        ("DefaultTolerationSeconds", [CU, &[]]),
        ("DefaultStorageClass", [C, &[]]),
        ("StorageObjectInUseProtection", [C, &[]]),
        ("PersistentVolumeClaimResize", [&[], U]),
        ("RuntimeClass", [C, C]),
        ("CertificateApproval", [&[], U]),
        ("CertificateSubjectRestriction", [&[], C]),
        ("DefaultIngressClass", [C, &[]]),
        ("PodTopologyLabels", [C, &[]]),
        ("NodeDeclaredFeatureValidator", [&[], U]),
        ("PodResizeValidator", [&[], U]),
        ("MutatingAdmissionPolicy", [ALL, &[]]),
        ("MutatingAdmissionWebhook", [ALL, &[]]),
        ("ValidatingAdmissionPolicy", [&[], ALL]),
        ("ValidatingAdmissionWebhook", [&[], ALL]),
        ("ResourceQuota", [&[], CU]),
    ];
    // Upstream's CertificateApproval and CertificateSigning are one plugin here.
    let plugin = if plugin == "SigningRequest" { "CertificateApproval" } else { plugin };
    HANDLED.iter().find(|(name, _)| *name == plugin).copied()
}
