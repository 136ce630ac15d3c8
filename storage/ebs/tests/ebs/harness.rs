//! The controller's half of the driver in this process, with moto as AWS.

use std::collections::HashMap;
use std::future::Future;

use corten_aws::account::EC2;
use corten_aws::{Account, Environment, Preferences};
use corten_ebs::Cloud;
use corten_plugins::csi;
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, MountVolume};
use serde_json::Value;
use testkit_aws::{Door, Moto};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Response, Status};

pub const ZONE: &str = "eu-central-1b";
pub const GIB: i64 = 1 << 30;

/// A driver that ends with the test.
pub struct Driver {
    client: ControllerClient<Channel>,
    _shutdown: DropGuard,
}

/// Starts a driver whose calls go through a door, as a new process would.
pub async fn start(door: &Door) -> Driver {
    let variables = door.variables();
    let variable = move |name: &str| variables.get(name).cloned();
    let environment = Environment { variable: &variable, roots: "" };
    let preferences = Preferences::default();
    let account = Account::open(&preferences, environment).await.unwrap();
    let shutdown = CancellationToken::new();
    let cloud = Cloud::new(account.api(EC2).unwrap(), "c".to_owned());
    let (channel, serving) = corten_ebs::in_process(cloud, shutdown.clone());
    tokio::spawn(serving);
    Driver { client: ControllerClient::new(channel), _shutdown: shutdown.drop_guard() }
}

pub fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
    }
}

/// Returns a request for a volume of so many GiB.
pub fn request(name: &str, gib: i64, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    let topology = csi::Topology { segments: map(&[("topology.ebs.csi.aws.com/zone", ZONE)]) };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
        volume_capabilities: vec![capability()],
        parameters: map(parameters),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![topology.clone()],
            preferred: vec![topology],
        }),
        ..csi::CreateVolumeRequest::default()
    }
}

async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    call.await.map(Response::into_inner)
}

impl Driver {
    pub async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        Ok(answer(self.client.clone().create_volume(request)).await?.volume.unwrap())
    }

    pub async fn delete(&self, volume: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        answer(self.client.clone().delete_volume(request)).await.map(drop)
    }

    /// Attaches a volume; returns the name of its device.
    pub async fn attach(&self, volume: &str, instance: &str) -> Result<String, Status> {
        let request = csi::ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: instance.to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        let answer = answer(self.client.clone().controller_publish_volume(request)).await?;
        Ok(answer.publish_context["devicePath"].clone())
    }

    pub async fn detach(&self, volume: &str, instance: &str) -> Result<(), Status> {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: instance.to_owned(),
            ..Default::default()
        };
        answer(self.client.clone().controller_unpublish_volume(request)).await.map(drop)
    }

    pub async fn snapshot(&self, name: &str, volume: &str) -> Result<csi::Snapshot, Status> {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        Ok(answer(self.client.clone().create_snapshot(request)).await?.snapshot.unwrap())
    }

    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Status> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: snapshot.to_owned(), ..Default::default() };
        answer(self.client.clone().delete_snapshot(request)).await.map(drop)
    }

    pub async fn list_snapshots(&self, request: csi::ListSnapshotsRequest) -> Result<Vec<String>, Status> {
        let entries = answer(self.client.clone().list_snapshots(request)).await?.entries;
        Ok(entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect())
    }

    pub async fn expand(&self, volume: &str, gib: i64) -> Result<i64, Status> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: gib * GIB, limit_bytes: 0 }),
            ..Default::default()
        };
        Ok(answer(self.client.clone().controller_expand_volume(request)).await?.capacity_bytes)
    }

    pub async fn modify(&self, volume: &str, parameters: &[(&str, &str)]) -> Result<(), Status> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: volume.to_owned(),
            mutable_parameters: map(parameters),
            ..Default::default()
        };
        answer(self.client.clone().controller_modify_volume(request)).await.map(drop)
    }
}

/// Makes instances; returns their IDs.
pub fn instances(moto: &Moto, count: usize) -> Vec<String> {
    let script = format!(
        "made = ec2.run_instances(ImageId='ami-12c6146b', MinCount={count}, MaxCount={count}, InstanceType='t3.small',\
         Placement=dict(AvailabilityZone='{ZONE}'))\nprint(json.dumps([one['InstanceId'] for one in made['Instances']]))"
    );
    serde_json::from_value(moto.boto3(&script)).unwrap()
}

/// Returns all volumes and snapshots that drivers made, as boto3 sees them.
pub fn state(moto: &Moto) -> Value {
    moto.boto3(
        "tag = [dict(Name='tag-key', Values=['ebs.csi.aws.com/cluster'])]
volumes = ec2.describe_volumes(Filters=tag)['Volumes']
snapshots = ec2.describe_snapshots(Filters=tag)['Snapshots']
tags = lambda one: {t['Key']: t['Value'] for t in one['Tags']}
print(json.dumps(dict(
    volumes=[dict(id=v['VolumeId'], size=v['Size'], type=v['VolumeType'], iops=v.get('Iops'),
        throughput=v.get('Throughput'), zone=v['AvailabilityZone'], encrypted=v['Encrypted'], tags=tags(v),
        attached=[a['InstanceId'] for a in v['Attachments']]) for v in volumes],
    snapshots=[dict(id=s['SnapshotId'], volume=s['VolumeId'], tags=tags(s)) for s in snapshots])))",
    )
}

/// Counts the volumes, the attachments of an instance, or the snapshots that carry a name.
pub fn count(moto: &Moto, name: &str) -> usize {
    let answers = ["DescribeVolumes", "DescribeSnapshots"]
        .map(|action| moto.query("ec2", &format!("Action={action}&Version=2016-11-15")));
    answers.iter().map(|answer| answer.matches(&format!("<value>{name}</value>")).count()).sum()
}
