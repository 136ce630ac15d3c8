//! Properties of ReplicaSets on a model.

use super::*;
use crate::tests::model::{Model, converges};
use proptest::prelude::*;
use testkit_fixture as fixture;

proptest! {
    /// From any mix of pods, the set converges to the desired replicas, whatever the order of lists.
    #[test]
    fn any_state_converges(replicas in 0i32..6, pods in proptest::collection::vec((0u8..4, 0u8..3, any::<bool>()), 0..10)) {
        let mut model = Model::default();
        model.put(fixture::object(&format!("rs web replicas={replicas}")));
        for (number, (phase, node, ready)) in pods.iter().enumerate() {
            let phase = ["Pending", "Running", "Failed", "Succeeded"][usize::from(*phase)];
            let mut line = format!("pod p{number} owner=rs/web label.app=web {phase}");
            if *node > 0 { line += &format!(" node=n{node}"); }
            if *ready { line += &format!(" ready={}", number * 7); }
            model.put(fixture::object(&line));
        }
        converges(&REPLICA_SETS, &mut model, "default", "web");
        let active = model.typed::<Pod>().iter().filter(pods::is_active).count();
        prop_assert_eq!(active, usize::try_from(replicas).unwrap());
    }
}
