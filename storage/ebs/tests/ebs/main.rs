//! The driver of EBS against moto's server, judged by boto3 and raw queries, and its node's half on loop devices.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod harness;
mod node;

use corten_plugins::csi;
use csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use serde_json::json;
use testkit_aws::{Door, Fault, Moto};
use tonic::{Code, Status};

use harness::{Driver, GIB, ZONE, count, instances, request, start, state};

/// Returns the request for a volume that is made of a snapshot.
fn restored(name: &str, snapshot: &str) -> csi::CreateVolumeRequest {
    let source = Source::Snapshot(SnapshotSource { snapshot_id: snapshot.to_owned() });
    let volume_content_source = Some(csi::VolumeContentSource { r#type: Some(source) });
    csi::CreateVolumeRequest { volume_content_source, ..request(name, 12, &[]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_lives_from_its_claim_to_its_deletion() {
    let Some(moto) = Moto::start() else { return };
    let nodes = instances(&moto, 2);
    let door = Door::before(&moto);
    let driver = start(&door).await;
    let parameters = [
        ("type", "gp3"),
        ("iops", "4000"),
        ("throughput", "200"),
        ("encrypted", "true"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ("tagSpecification_1", "team={{ .PVCNamespace }}"),
    ];
    let wanted = request("pvc-1", 8, &parameters);
    let volume = driver.create(wanted.clone()).await.unwrap();
    assert_eq!(volume.capacity_bytes, 8 * GIB);
    assert_eq!(volume.accessible_topology[0].segments["topology.ebs.csi.aws.com/zone"], ZONE);
    let id = volume.volume_id.as_str();
    assert!(id.starts_with("vol-"), "{id}");
    assert_eq!(driver.create(wanted).await.unwrap().volume_id, id, "a repeated call returns the same volume");
    let made = state(&moto)["volumes"].take();
    let tags = json!({
        "CSIVolumeName": "pvc-1", "ebs.csi.aws.com/cluster": "true", "kubernetes.io/cluster/c": "owned",
        "kubernetes.io/created-for/pvc/name": "data", "kubernetes.io/created-for/pvc/namespace": "shop",
        "kubernetes.io/created-for/pv/name": "pvc-1", "team": "shop", "Name": "c-dynamic-pvc-1", "KubernetesCluster": "c",
    });
    assert_eq!(
        made,
        json!([{"id": id, "size": 8, "type": "gp3", "iops": 4000, "throughput": 200, "zone": ZONE, "encrypted": true,
                "tags": tags, "attached": []}])
    );

    let device = driver.attach(id, &nodes[0]).await.unwrap();
    assert_eq!(device, "/dev/xvdba");
    assert_eq!(driver.attach(id, &nodes[0]).await.unwrap(), device, "a repeated call returns the same device");
    let error = driver.attach(id, &nodes[1]).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert_eq!(error.message(), format!("volume {id} is attached to instance {}", nodes[0]));
    let other = driver.create(request("pvc-2", 1, &[])).await.unwrap().volume_id;
    assert_eq!(driver.attach(&other, &nodes[0]).await.unwrap(), "/dev/xvdbb", "a device name is used once");
    assert_eq!(driver.delete(id).await.unwrap_err().code(), Code::FailedPrecondition, "it is attached");
    driver.detach(&other, &nodes[0]).await.unwrap();
    let message = "Invalid value '/dev/xvdbb' for unixDevice. Attachment point /dev/xvdbb is already in use";
    door.set(Fault::RefuseFirst { action: "AttachVolume", code: "InvalidParameterValue", message });
    assert_eq!(driver.attach(&other, &nodes[0]).await.unwrap(), "/dev/xvdbc", "a name that is not free is left out");
    door.set(Fault::None);

    let snapshot = driver.snapshot("snapshot-1", id).await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == 8 * GIB && snapshot.creation_time.is_some());
    let snapshot = snapshot.snapshot_id;
    assert_eq!(driver.snapshot("snapshot-1", id).await.unwrap().snapshot_id, snapshot);
    assert_eq!(driver.snapshot("snapshot-1", &other).await.unwrap_err().code(), Code::AlreadyExists);
    let all = driver.list_snapshots(csi::ListSnapshotsRequest::default()).await.unwrap();
    assert_eq!(all, std::slice::from_ref(&snapshot));
    let of_other = csi::ListSnapshotsRequest { source_volume_id: other.clone(), ..Default::default() };
    assert!(driver.list_snapshots(of_other).await.unwrap().is_empty());
    let copy = driver.create(restored("pvc-3", &snapshot)).await.unwrap();
    assert!(copy.content_source.is_some() && copy.capacity_bytes == 12 * GIB);

    assert_eq!(driver.expand(id, 10).await.unwrap(), 10 * GIB);
    assert_eq!(driver.expand(id, 10).await.unwrap(), 10 * GIB);
    let change = [("type", "io2"), ("iops", "500"), ("tagSpecification_1", "tier=fast")];
    driver.modify(id, &change).await.unwrap();
    door.set(Fault::None);
    driver.modify(id, &change).await.unwrap();
    assert!(!door.actions().contains_key("ModifyVolume"), "nothing is to be changed: {:?}", door.actions());
    let changed = &state(&moto)["volumes"][0];
    assert_eq!((&changed["type"], &changed["iops"], &changed["size"]), (&json!("io2"), &json!(500), &json!(10)));
    assert_eq!((&changed["tags"]["tier"], &changed["attached"]), (&json!("fast"), &json!([nodes[0]])));

    driver.detach(id, &nodes[1]).await.unwrap();
    assert_eq!(state(&moto)["volumes"][0]["attached"], json!([nodes[0]]), "another instance is not meant");
    for _ in 0..2 {
        driver.detach(id, &nodes[0]).await.unwrap();
        driver.detach(&other, &nodes[0]).await.unwrap();
        driver.delete_snapshot(&snapshot).await.unwrap();
        for volume in [id, &other, &copy.volume_id] {
            driver.delete(volume).await.unwrap();
        }
    }
    assert_eq!(state(&moto), json!({"volumes": [], "snapshots": []}));
}

/// Repeats a call as a controller does.
async fn until<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let mut rounds = 0;
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                rounds += 1;
                assert!(rounds < 50 && error.code() == Code::Unavailable, "{error}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_and_throttled_calls_are_survived() {
    let Some(moto) = Moto::start() else { return };
    let nodes = instances(&moto, 1);
    let door = Door::before(&moto);
    let driver = start(&door).await;
    for seed in 0..6 {
        let name = format!("pvc-r{seed}");
        let snapshot_name = format!("snapshot-r{seed}");
        door.set(Fault::Random(seed * 1_000));
        let id = until(async || driver.create(request(&name, 4, &[])).await).await.volume_id;
        assert_eq!(count(&moto, &name), 1, "seed {seed}");
        until(async || driver.attach(&id, &nodes[0]).await).await;
        let snapshot = until(async || driver.snapshot(&snapshot_name, &id).await).await.snapshot_id;
        assert_eq!(count(&moto, &snapshot_name), 1, "seed {seed}");
        until(async || driver.expand(&id, 5).await).await;
        until(async || driver.modify(&id, &[("type", "gp2")]).await).await;
        until(async || driver.detach(&id, &nodes[0]).await).await;
        until(async || driver.delete_snapshot(&snapshot).await).await;
        until(async || driver.delete(&id).await).await;
        assert_eq!(count(&moto, &name) + count(&moto, &snapshot_name), 0, "seed {seed}");
    }
}

/// One call of the driver, in its order of a volume's life.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create,
    Attach,
    Snapshot,
    Expand,
    Modify,
    Detach,
    DeleteSnapshot,
    Delete,
}

const STEPS: [Step; 8] = [
    Step::Create,
    Step::Attach,
    Step::Snapshot,
    Step::Expand,
    Step::Modify,
    Step::Detach,
    Step::DeleteSnapshot,
    Step::Delete,
];

/// A volume, its node and its snapshot.
struct Life {
    name: String,
    node: String,
    volume: String,
    snapshot: String,
}

impl Life {
    async fn step(&mut self, driver: &Driver, step: Step) -> Result<(), Status> {
        let volume = self.volume.clone();
        match step {
            Step::Create => self.volume = driver.create(request(&self.name, 4, &[])).await?.volume_id,
            Step::Attach => drop(driver.attach(&volume, &self.node).await?),
            Step::Snapshot => self.snapshot = driver.snapshot(&self.name, &volume).await?.snapshot_id,
            Step::Expand => drop(driver.expand(&volume, 6).await?),
            Step::Modify => driver.modify(&volume, &[("type", "io1"), ("iops", "200")]).await?,
            Step::Detach => driver.detach(&volume, &self.node).await?,
            Step::DeleteSnapshot => driver.delete_snapshot(&self.snapshot).await?,
            Step::Delete => driver.delete(&volume).await?,
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_is_killed_after_any_call_leaves_nothing_behind() {
    let Some(moto) = Moto::start() else { return };
    let node = instances(&moto, 1).remove(0);
    let door = Door::before(&moto);
    let life = |name: String| Life { name, node: node.clone(), volume: String::new(), snapshot: String::new() };
    let mut calm = life("calm".to_owned());
    let mut calls = Vec::new();
    for step in STEPS {
        door.set(Fault::None);
        calm.step(&start(&door).await, step).await.unwrap();
        calls.push(door.calls());
    }
    assert!(calls.iter().sum::<usize>() >= 20, "{calls:?}");
    for (killed, calls) in STEPS.into_iter().zip(calls) {
        for last in 0..calls {
            let name = format!("{killed:?}-{last}");
            let mut life = life(name.clone());
            for step in STEPS {
                let is_killed = format!("{step:?}") == format!("{killed:?}");
                if is_killed {
                    let driver = start(&door).await;
                    door.kill(last, life.step(&driver, step)).await;
                }
                life.step(&start(&door).await, step).await.unwrap();
                let left = count(&moto, &name);
                let expected = match step {
                    Step::Create | Step::Attach | Step::DeleteSnapshot => 1,
                    Step::Snapshot | Step::Expand | Step::Modify | Step::Detach => 2,
                    Step::Delete => 0,
                };
                assert_eq!(left, expected, "{step:?}, killed after call {last} of {killed:?}");
            }
        }
    }
    assert_eq!(state(&moto), json!({"volumes": [], "snapshots": []}));
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_sentences_and_objects_of_others_stay() {
    let Some(moto) = Moto::start() else { return };
    let door = Door::before(&moto);
    let driver = start(&door).await;
    let refused = async |parameters: &[(&str, &str)]| {
        let error = driver.create(request("wrong", 1, parameters)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        error.message().to_owned()
    };
    assert_eq!(refused(&[("colour", "red")]).await, "the parameter colour is not known");
    let sentence = "1 iopsPerGB are 1 for 1 GiB, and io1 has at least 100";
    assert_eq!(refused(&[("type", "io1"), ("iopsPerGB", "1")]).await, sentence);
    let clone = Source::Volume(VolumeSource { volume_id: "vol-1".to_owned() });
    let clone = Some(csi::VolumeContentSource { r#type: Some(clone) });
    let clone = csi::CreateVolumeRequest { volume_content_source: clone, ..request("wrong", 1, &[]) };
    let error = driver.create(clone).await.unwrap_err();
    assert_eq!(error.message(), "EBS clones no volumes: take a snapshot, and restore it");
    assert_eq!(driver.create(restored("wrong", "snap-0123")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(count(&moto, "wrong"), 0);

    let volume = driver.create(request("one", 4, &[])).await.unwrap().volume_id;
    let error = driver.create(request("one", 5, &[])).await.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    assert_eq!(error.message(), format!("volume {volume} has the name one and another size"));
    let error = driver.attach(&volume, "i-0123").await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "instance i-0123 does not exist"));
    assert_eq!(driver.attach("vol-0123", "i-0123").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(driver.expand("vol-0123", 1).await.unwrap_err().code(), Code::NotFound);
    driver.delete("../../vol-1").await.unwrap();

    let foreign = moto.boto3(
        "v = ec2.create_volume(AvailabilityZone='eu-central-1a', Size=1)['VolumeId']
s = ec2.create_snapshot(VolumeId=v)['SnapshotId']
print(json.dumps([v, s]))",
    );
    let error = driver.delete(foreign[0].as_str().unwrap()).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    let error = driver.delete_snapshot(foreign[1].as_str().unwrap()).await.unwrap_err();
    assert!(error.message().ends_with("was not taken by ebs.csi.aws.com: it has none of its tags"), "{error}");

    for code in ["AuthFailure", "UnauthorizedOperation", "RequestLimitExceeded"] {
        door.set(Fault::Refuse(code));
        let error = driver.delete(&volume).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "an error is never a volume that is gone: {error}");
    }
}
