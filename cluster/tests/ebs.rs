//! Volumes of EBS on a whole cluster with the real kubectl and moto's server as AWS: a claim becomes a volume, a pod writes to
//! it and is made again, the claim grows, a snapshot is restored, and nothing is left in the cloud.
//!
//! A thread plays the hypervisor: a volume that EC2 shows as attached becomes a loop device with the attachment's name. The
//! test needs root, losetup and `MOTO_SERVER`; without them it says so and passes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use testkit::cluster::{Cluster, IMAGE};
use testkit::machine::ADDRESS;
use testkit::{tools, wait};
use testkit_aws::{Door, Moto};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const GIB: u64 = 1 << 30;

#[test]
fn a_claim_becomes_a_volume_that_outlives_its_pods() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    if !Command::new("losetup").arg("-f").output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: there are no loop devices");
        return;
    }
    let Some(moto) = Moto::start() else { return };
    let moto = Arc::new(moto);
    let cluster = Cluster::machine(CORTEN);
    let listener = cluster.machine.in_network(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let door = Door::on(listener, &moto);
    let instance = instance(&moto);
    let _hypervisor = Hypervisor::start(Arc::clone(&moto), cluster.scratch().join("volumes"));
    let flags = ["up", "--timeout", "600", "--node-name", &instance, "--cloud-provider", "aws", "--cluster-name", "c"];
    let started = cluster.corten_command(&flags).envs(door.variables()).output().unwrap();
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    cluster.import_image();
    let provider_id = ["get", "node", &instance, "-o", "jsonpath={.spec.providerID}"];
    cluster.kubectl_until(&provider_id, |id| id == format!("aws:///eu-central-1b/{instance}"));
    let drivers = ["get", "csinode", &instance, "-o", "jsonpath={.spec.drivers[*].name}"];
    cluster.kubectl_until(&drivers, |names| names.contains("ebs.csi.aws.com"));

    cluster.apply(CLASSES);
    cluster.apply(&claim("data", ""));
    cluster.apply(&pod("first", "data"));
    ready(&cluster, "first");
    cluster.kubectl(&["exec", "first", "--", "sh", "-c", "echo written > /data/file && sync"]);
    let volume = cluster.kubectl(&["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]);
    let object = moto.boto3(VOLUMES);
    assert_eq!(object[0]["tags"]["Name"], format!("c-dynamic-{volume}"), "{object}");
    assert_eq!((&object[0]["size"], &object[0]["type"]), (&1.into(), &"gp3".into()));
    assert_eq!((&object[0]["instance"], &object[0]["encrypted"]), (&instance.as_str().into(), &true.into()));

    cluster.apply(SNAPSHOT);
    let is_ready = ["get", "volumesnapshot", "data", "-o", "jsonpath={.status.readyToUse}"];
    cluster.kubectl_until(&is_ready, |ready| ready == "true");
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "data", "-p", larger]);
    let capacity = ["get", "pv", &volume, "-o", "jsonpath={.spec.capacity.storage}"];
    cluster.kubectl_until(&capacity, |capacity| capacity == "2Gi");
    assert_eq!(moto.boto3(VOLUMES)[0]["size"], 2);

    // The kernel may let the file system grow only while no pod uses it: the next one does.
    cluster.kubectl(&["delete", "pod", "first", "--now"]);
    cluster.apply(&pod("second", "data"));
    ready(&cluster, "second");
    assert_eq!(cluster.kubectl(&["exec", "second", "--", "cat", "/data/file"]).trim(), "written");
    let size = cluster.kubectl(&["exec", "second", "--", "sh", "-c", "df -k /data | tail -n 1 | awk '{print $2}'"]);
    assert!(size.trim().parse::<u64>().unwrap() > 3 * GIB / 2 / 1024, "{size}");

    cluster.apply(&claim("restored", RESTORED));
    cluster.apply(&pod("third", "restored"));
    ready(&cluster, "third");
    assert_eq!(cluster.kubectl(&["exec", "third", "--", "cat", "/data/file"]).trim(), "written");

    cluster.kubectl(&["delete", "pod/second", "pod/third", "--now"]);
    cluster.kubectl(&["delete", "volumesnapshot/data", "pvc/data", "pvc/restored"]);
    wait::until("the objects of the cloud to be deleted", wait::BOUND, || match moto.boto3(LEFT) {
        left if left == "nothing" => Ok(()),
        left => Err(left.to_string()),
    });
    cluster.kubectl_until(&["get", "pv,volumeattachments", "-o", "name"], |names| names.trim().is_empty());
}

/// Makes the instance of the node, with the machine's address; returns its ID.
fn instance(moto: &Moto) -> String {
    let made = moto.boto3(&format!(
        "vpc = ec2.create_vpc(CidrBlock='10.88.0.0/16')['Vpc']['VpcId']
subnet = ec2.create_subnet(VpcId=vpc, CidrBlock='10.88.0.0/24', AvailabilityZone='eu-central-1b')['Subnet']['SubnetId']
made = ec2.run_instances(ImageId='ami-12c6146b', MinCount=1, MaxCount=1, InstanceType='t2.small', SubnetId=subnet,
    PrivateIpAddress='{ADDRESS}')
print(json.dumps(made['Instances'][0]['InstanceId']))"
    ));
    made.as_str().unwrap().to_owned()
}

/// Prints the volumes that the driver made.
const VOLUMES: &str = "
found = ec2.describe_volumes(Filters=[dict(Name='tag-key', Values=['ebs.csi.aws.com/cluster'])])['Volumes']
print(json.dumps([dict(size=v['Size'], type=v['VolumeType'], encrypted=v['Encrypted'],
    tags={t['Key']: t['Value'] for t in v['Tags']}, instance=v['Attachments'][0]['InstanceId']) for v in found]))
";

/// Prints the volumes, snapshots and attachments that the driver left, or \"nothing\".
const LEFT: &str = "
tag = [dict(Name='tag-key', Values=['ebs.csi.aws.com/cluster'])]
left = [v['VolumeId'] for v in ec2.describe_volumes(Filters=tag)['Volumes']]
left += [s['SnapshotId'] for s in ec2.describe_snapshots(Filters=tag)['Snapshots']]
left += [m['DeviceName'] for r in ec2.describe_instances()['Reservations'] for i in r['Instances']
    for m in i['BlockDeviceMappings'] if m['DeviceName'].startswith('/dev/xvd')]
print(json.dumps(left or 'nothing'))
";

const CLASSES: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ebs}
provisioner: ebs.csi.aws.com
parameters: {type: gp3, encrypted: "true", csi.storage.k8s.io/fstype: ext4}
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: ebs}
driver: ebs.csi.aws.com
deletionPolicy: Delete
"#;

const SNAPSHOT: &str = "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: data}
spec: {volumeSnapshotClassName: ebs, source: {persistentVolumeClaimName: data}}
";

const RESTORED: &str = "  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: data}";

/// Returns a claim of 1 GiB, with more lines of its spec.
fn claim(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ebs
  resources: {{requests: {{storage: 1Gi}}}}
{more}
"
    )
}

/// Returns a pod that has a claim at `/data`.
fn pod(name: &str, claim: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sleep, '1000000']
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
"
    )
}

fn ready(cluster: &Cluster, pod: &str) {
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", &format!("pod/{pod}")]);
}

/// The devices of volumes, which end with the test.
struct Hypervisor {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hypervisor {
    fn start(moto: Arc<Moto>, directory: PathBuf) -> Hypervisor {
        std::fs::create_dir_all(&directory).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut devices = Devices { directory, attached: BTreeMap::new() };
            while !is_over.load(Ordering::Relaxed) {
                devices.follow(&moto);
                std::thread::park_timeout(std::time::Duration::from_millis(200));
            }
        });
        Hypervisor { ends, thread: Some(thread) }
    }
}

impl Drop for Hypervisor {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The loop devices of attached volumes, and the files with the content of volumes and snapshots.
struct Devices {
    directory: PathBuf,
    attached: BTreeMap<String, Device>,
}

struct Device {
    /// The path of the loop device.
    path: String,
    /// The device name of the attachment.
    name: String,
    gib: u64,
}

impl Devices {
    /// Makes devices of the attachments that EC2 shows, and removes those that it does not show any more.
    fn follow(&mut self, moto: &Moto) {
        let query = |action: &str| moto.query("ec2", &format!("Action={action}&Version=2016-11-15"));
        for snapshot in items(&query("DescribeSnapshots"), "snapshotSet") {
            self.keep(field(&snapshot, "snapshotId"), field(&snapshot, "volumeId"));
        }
        let volumes = query("DescribeVolumes");
        let mut shown = Vec::new();
        for volume in items(&volumes, "volumeSet").filter(|volume| field(volume, "device").starts_with("/dev/xvd")) {
            let id = field(&volume, "volumeId").to_owned();
            self.show(&id, &volume);
            shown.push(id);
        }
        let gone: Vec<String> = self.attached.keys().filter(|id| !shown.contains(id)).cloned().collect();
        for id in gone {
            self.attached.remove(&id);
        }
    }

    /// Keeps the content of a volume as that of a snapshot.
    fn keep(&self, snapshot: &str, volume: &str) {
        let copy = self.directory.join(snapshot);
        if copy.exists() || !self.directory.join(volume).exists() {
            return;
        }
        run(Command::new("cp").arg("--sparse=always").arg(self.directory.join(volume)).arg(copy));
    }

    /// Gives an attached volume a device of its size.
    fn show(&mut self, id: &str, volume: &str) {
        let gib: u64 = field(volume, "size").parse().unwrap();
        let file = self.directory.join(id);
        if !file.exists() {
            let snapshot = self.directory.join(field(volume, "snapshotId"));
            match snapshot.is_file() {
                true => drop(run(Command::new("cp").arg("--sparse=always").arg(snapshot).arg(&file))),
                false => drop(File::create(&file).unwrap()),
            }
        }
        if self.attached.get(id).is_some_and(|device| device.gib == gib) {
            return;
        }
        File::options().write(true).open(&file).unwrap().set_len(gib * GIB).unwrap();
        match self.attached.get_mut(id) {
            Some(device) => {
                run(Command::new("losetup").arg("-c").arg(&device.path));
                device.gib = gib;
            }
            None => drop(self.attached.insert(id.to_owned(), Device::attach(&file, field(volume, "device"), gib))),
        }
    }
}

impl Device {
    fn attach(file: &Path, name: &str, gib: u64) -> Device {
        let path = run(Command::new("losetup").args(["-f", "--show"]).arg(file));
        let device = Device { path, name: name.to_owned(), gib };
        std::os::unix::fs::symlink(&device.path, name).unwrap();
        device
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if std::fs::read_link(&self.name).is_ok_and(|target| target == Path::new(&self.path)) {
            let _ = std::fs::remove_file(&self.name);
        }
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

/// Runs a command; returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Returns the elements of a list in a document: each begins with the list's own `item`, as deep as the first.
fn items(document: &str, list: &str) -> impl Iterator<Item = String> {
    let inner = document.split(&format!("<{list}>")).nth(1).unwrap_or_default();
    let inner = inner.split(&format!("</{list}>")).next().unwrap_or_default();
    let mut depth = 0;
    let mut items = Vec::new();
    let mut current = String::new();
    for part in inner.split_inclusive("item>") {
        current.push_str(part);
        if part.ends_with("</item>") {
            depth -= 1;
        } else if part.ends_with("<item>") {
            depth += 1;
        }
        if depth == 0 {
            items.push(std::mem::take(&mut current));
        }
    }
    items.into_iter()
}

/// Returns the text of the first element of a name; empty if there is none.
fn field<'a>(document: &'a str, name: &str) -> &'a str {
    let after = document.split_once(&format!("<{name}>")).map_or("", |(_, after)| after);
    after.split_once('<').map_or("", |(text, _)| text)
}
