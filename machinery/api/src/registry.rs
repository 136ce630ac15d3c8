//! The ordered list of the built-in kinds, and its lookups.

use std::sync::{Arc, LazyLock};

use crate::kind::Kind;

/// The kinds that a default v1.36 API server serves, group by group in the order of discovery.
static KINDS: LazyLock<Vec<Arc<Kind>>> = LazyLock::new(|| {
    [
        crate::core::kinds(),
        crate::apiregistration::kinds(),
        crate::apps::kinds(),
        crate::events::kinds(),
        crate::authentication::kinds(),
        crate::authorization::kinds(),
        crate::autoscaling::kinds(),
        crate::batch::kinds(),
        crate::certificates::kinds(),
        crate::networking::kinds(),
        crate::policy::kinds(),
        crate::rbac::kinds(),
        crate::storage::kinds(),
        crate::admissionregistration::kinds(),
        crate::apiextensions::kinds(),
        crate::scheduling::kinds(),
        crate::coordination::kinds(),
        crate::node::kinds(),
        crate::discovery::kinds(),
        crate::resource::kinds(),
        crate::flowcontrol::kinds(),
    ]
    .into_iter()
    .flatten()
    .map(Arc::new)
    .collect()
});

/// Returns all built-in kinds, in the order of discovery.
pub fn kinds() -> &'static [Arc<Kind>] {
    &KINDS
}

/// Returns the kind served at a group, version and resource name.
pub fn lookup(group: &str, version: &str, plural: &str) -> Option<&'static Arc<Kind>> {
    kinds().iter().find(|k| k.group == group && k.version == version && k.plural == plural)
}

/// Returns the kind of this group, version and kind name.
pub fn by_gvk(group: &str, version: &str, kind: &str) -> Option<&'static Arc<Kind>> {
    kinds().iter().find(|k| k.group == group && k.version == version && k.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_api_is_complete() {
        let groups: std::collections::BTreeSet<_> = kinds().iter().map(|k| k.api_version()).collect();
        let subresources: usize = kinds().iter().map(|k| k.subresources.len()).sum();
        assert_eq!((groups.len(), kinds().len(), subresources), (22, 68, 45));
    }

    #[test]
    fn every_kind_is_found_by_both_names() {
        for kind in kinds() {
            assert!(Arc::ptr_eq(kind, lookup(&kind.group, &kind.version, &kind.plural).expect("by plural")));
            assert!(Arc::ptr_eq(kind, by_gvk(&kind.group, &kind.version, &kind.kind).expect("by kind")));
        }
    }

    #[test]
    fn a_row_has_a_cell_for_every_column() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        for kind in kinds() {
            let empty = serde_json::json!({"metadata": {"name": "x"}});
            let cells = kind.cells(&empty, now);
            let more = usize::from(kind.kind == "IPAddress");
            assert_eq!(cells.len(), kind.columns.len() + more, "{kind:?}: {cells:?}");
            let has_sources = kind.columns.iter().all(|column| !column.source.is_empty());
            assert!(has_sources || !kind.behaviour.cells(&empty, now).is_empty(), "{kind:?}");
            assert!(!has_sources || cells.iter().all(|cell| !cell.is_null()), "{kind:?}: {cells:?}");
        }
    }
}
