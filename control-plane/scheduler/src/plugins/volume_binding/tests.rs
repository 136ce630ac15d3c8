//! The node of a claim that is to be provisioned.

use super::*;

#[test]
fn a_node_that_the_provisioner_gave_back_is_lost_once_the_claim_shows_it() {
    for (selected, written, lost) in [
        (Some("a"), Some(5), false),
        (Some("b"), Some(5), true),
        (None, Some(5), true),
        (None, Some(8), false),
        (None, None, false),
    ] {
        let selected_node = selected.map(str::to_owned);
        let claim = ClaimRow { selected_node, revision: 7, ..ClaimRow::default() };
        assert_eq!(claim.has_lost_node("a", written), lost, "{selected:?} {written:?}");
    }
}
