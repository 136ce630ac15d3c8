//! Recyclers of other shapes, and any end of one.

use super::*;
use crate::tests::model::{Model, converges};
use serde_json::{Value, json};
use testkit_fixture as fixture;

const CLAIM: &str = "pvc data size=4Gi class=slow accessModes=ReadWriteOnce";

/// Returns a released volume whose claim is deleted.
fn left_behind(words: &str) -> Model {
    let mut model = Model::default();
    model.put(fixture::object(&format!("pv v size=100Gi class=slow accessModes=ReadWriteOnce {words}")));
    model.put(fixture::object(CLAIM));
    converges(&ClaimBinder, &mut model, "default", "data");
    converges(&VolumePhases::default(), &mut model, "", "v");
    model.remove("PersistentVolumeClaim", "default", "data");
    model
}

/// Ends the recycler pod as its kubelet would.
fn end_recycler(model: &mut Model, phase: &str) {
    let mut pod = model.value("Pod", "default", "recycler-for-v");
    fixture::change(&mut pod, &[phase, "exit=1@5s"]).unwrap();
    model.put(pod);
}

fn phase(model: &Model) -> Value {
    model.value("PersistentVolume", "", "v")["status"]["phase"].take()
}

#[test]
fn a_recycler_may_be_another_pod_with_other_times() {
    let template = |volumes: &str| {
        fixture::object(&format!(
            "pod p metadata={{labels: {{a: b}}}} restartPolicy=Never {volumes} containers=[{{name: one, image: i}}, \
             {{name: two, image: i, volumeMounts: [{{name: data, mountPath: /x}}]}}]"
        ))
    };
    let Recyclers { host_path, nfs } = Recyclers::default();
    let mut quick: Recycler = host_path;
    (quick.minimum_seconds, quick.seconds_per_gib) = (5, 2);
    let host_path = quick.with_template(template("volumes=[{name: data}]")).unwrap();
    let phases = VolumePhases { recyclers: Recyclers { host_path: host_path.clone(), nfs } };
    let mut model = left_behind("policy=Recycle hostPath.path=/data");
    converges(&phases, &mut model, "", "v");
    let pod = model.value("Pod", "default", "recycler-for-v");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 200);
    assert_eq!(pod["spec"]["volumes"], json!([{"name": "data", "hostPath": {"path": "/data"}}]));
    end_recycler(&mut model, "Succeeded");
    converges(&phases, &mut model, "", "v");
    assert_eq!(phase(&model), "Available");
    let elsewhere = fixture::object("pod p metadata={namespace: 'n'} volumes=[{name: v}]");
    for refused in [template("volumes=[]"), template(""), json!({"spec": 1}), elsewhere] {
        assert!(host_path.clone().with_template(refused).is_err());
    }
}

proptest::proptest! {
    /// For any end of the recycler, policy and claims, reconciling converges, and no volume is available that was not
    /// scrubbed.
    #[test]
    fn any_state_comes_to_rest(
        policy in proptest::sample::select(vec!["Retain", "Delete", "Recycle"]),
        end in proptest::option::of(proptest::sample::select(vec!["Pending", "Running", "Succeeded", "Failed"])),
        local: bool, again: bool,
    ) {
        let source = if local { "hostPath.path=/data" } else { "" };
        let mut model = left_behind(&format!("policy={policy} {source}"));
        if again {
            model.put(fixture::object(&format!("{CLAIM} uid=next")));
        }
        converges(&VolumePhases::default(), &mut model, "", "v");
        let recycles = policy == "Recycle" && local;
        proptest::prop_assert_eq!(model.names("Pod").len(), usize::from(recycles));
        if let Some(end) = end.filter(|_| recycles) {
            end_recycler(&mut model, end);
            converges(&VolumePhases::default(), &mut model, "", "v");
        }
        proptest::prop_assert_eq!(phase(&model) == "Available", recycles && end == Some("Succeeded"));
    }
}
