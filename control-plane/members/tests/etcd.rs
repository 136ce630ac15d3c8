//! Members of a real etcd on loopback addresses of their own: join, restart, replacement, learners that never came up.
//!
//! The tests need an etcd (`ETCD_BINARY`, or in the search path) and say so where there is none.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use corten_members::learners::{self, Unreachable};
use corten_members::report::{self, Report};
use corten_members::{
    Binary, CertificateFiles, Config, Credentials, Error, Member, Members, Start, State, Supervisor, join, values,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The longest that a test waits for anything, on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// The machines of one test and the authority that they share.
struct World {
    binary: Binary,
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    authority: String,
    /// The loopback network of the test.
    network: [u8; 3],
}

impl World {
    /// Makes a world; none where there is no etcd.
    async fn new(number: u8) -> Option<World> {
        let named = std::env::var_os("ETCD_BINARY").map(std::path::PathBuf::from);
        let binary = match Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()).await {
            Ok(binary) => binary,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "etcd-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&authority, key).unwrap();
        let process = std::process::id();
        let network = [127, 64 + number, (process % 250) as u8 + 1];
        Some(World { binary, folder: tempfile::tempdir().unwrap(), issuer, authority, network })
    }

    fn leaf(&self, names: Vec<String>) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Returns the settings of a machine, whose number is its address's.
    fn machine(&self, name: &str, number: u8) -> Config {
        let [a, b, c] = self.network;
        let address = IpAddr::V4(Ipv4Addr::new(a, b, c, number));
        let files = self.folder.path().join(format!("pki-{name}-{number}"));
        std::fs::create_dir_all(&files).unwrap();
        let write = |file: &str, text: &str| {
            std::fs::write(files.join(file), text).unwrap();
            files.join(file)
        };
        let (certificate, key) = self.leaf(vec![address.to_string(), "127.0.0.1".to_owned()]);
        Config {
            name: name.to_owned(),
            directory: self.folder.path().join(name),
            address,
            client_port: Config::CLIENT_PORT,
            peer_port: Config::PEER_PORT,
            metrics: SocketAddr::new(address, Config::METRICS_PORT),
            certificates: CertificateFiles {
                authority: write("ca.crt", &self.authority),
                server: write("server.crt", &certificate),
                server_key: write("server.key", &key),
                peer: write("peer.crt", &certificate),
                peer_key: write("peer.key", &key),
            },
        }
    }

    fn members(&self, machines: &[&Config]) -> Members {
        let (certificate, key) = self.leaf(Vec::new());
        let credentials = Credentials { authority: self.authority.clone(), certificate, key };
        Members::new(machines.iter().map(|machine| machine.client_url()).collect(), &credentials).unwrap()
    }

    async fn run(&self, config: &Config, start: Start) -> Running {
        let supervisor = Supervisor::new(config.clone(), self.binary.clone()).await.unwrap();
        let end = CancellationToken::new();
        let members = self.members(&[config]);
        Running { task: tokio::spawn(supervisor.run(start, members, end.clone())), end }
    }

    /// Starts the first member and waits until it serves.
    async fn first(&self, config: &Config) -> Running {
        let members = self.members(&[config]);
        let start = join::first(config, &members).await.unwrap();
        assert_eq!(start, Start::New);
        let running = self.run(config, start).await;
        within(join::settle(config, &members)).await.unwrap();
        running
    }

    /// Makes a machine a voter beside others.
    async fn joined(&self, config: &Config, others: &Members) -> Running {
        let start = within(join::enter(config, others, true)).await.unwrap();
        let running = self.run(config, start).await;
        within(join::settle(config, others)).await.unwrap();
        running
    }
}

/// A supervised member.
struct Running {
    task: JoinHandle<Result<(), Error>>,
    end: CancellationToken,
}

impl Running {
    async fn stop(self) {
        self.end.cancel();
        within(self.task).await.unwrap().unwrap();
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, future).await.expect("it takes too long")
}

/// Returns the members by name, with a `?` for a learner.
async fn names(members: &Members) -> Vec<String> {
    let title = |member: &Member| format!("{}{}", member.name, if member.is_learner { "?" } else { "" });
    let mut names: Vec<String> = within(members.list()).await.unwrap().members.iter().map(title).collect();
    names.sort_unstable();
    names
}

/// Writes until a write succeeds: an election may be under way.
async fn write(members: &Members) {
    let written = async {
        while let Err(error) = members.probe_write(b"/probe", b"value").await {
            eprintln!("not yet: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(written).await;
}

/// Removes a member once etcd takes the newest of the others for healthy.
async fn remove(members: &Members, id: u64) {
    let removed = async {
        while let Err(error) = members.remove(id).await {
            assert!(error.is_transient(), "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(removed).await;
}

fn mode(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).unwrap()) & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_outlive_one_and_a_machine_of_the_same_name_replaces_it() {
    let Some(world) = World::new(0).await else { return };
    let one = world.machine("one", 1);
    let two = world.machine("two", 2);
    let three = world.machine("three", 3);
    let first = world.first(&one).await;
    assert_eq!(mode(&one.directory), 0o700);
    let second = world.joined(&two, &world.members(&[&one])).await;
    let third = world.joined(&three, &world.members(&[&two])).await;
    let all = world.members(&[&one, &two, &three]);
    assert_eq!(names(&all).await, ["one", "three", "two"]);
    write(&all).await;

    let report = within(Report::gather(&all)).await.unwrap();
    let roles: Vec<&str> = report.rows.iter().map(|row| report.role(&row.member)).collect();
    assert_eq!(roles.iter().filter(|role| **role == "leader").count(), 1, "{roles:?}");
    assert!(report.rows.iter().all(|row| row.status.as_ref().is_ok_and(|status| status.database_bytes > 0)));
    assert!(within(report::disk_latency(one.metrics)).await.is_some_and(|seconds| seconds > 0.0));

    // A machine of the name of one that is alive does not take its place.
    let usurper = world.machine("two", 8);
    let usurper = Config { directory: world.folder.path().join("usurper"), ..usurper };
    let refused = within(join::enter(&usurper, &all, true)).await.unwrap_err();
    assert!(matches!(refused, Error::NameTaken { .. }), "{refused}");

    // The first machine is gone; the others go on, and know of each other without it.
    first.stop().await;
    let rest = world.members(&[&two, &three]);
    write(&rest).await;
    std::fs::remove_dir_all(&one.directory).unwrap();

    // A machine of its name at another address takes its place.
    let other = world.machine("one", 4);
    let replaced = world.joined(&other, &rest).await;
    assert_eq!(names(&rest).await, ["one", "three", "two"]);
    let list = within(rest.list()).await.unwrap();
    let member = list.members.iter().find(|member| member.name == "one").unwrap();
    assert_eq!(member.peer_urls, [other.peer_url()]);

    // A member that the others removed ends with a sentence, and its data is set aside when it joins again.
    let own = State::read(&three.directory).unwrap().unwrap().member;
    remove(&world.members(&[&two, &other]), own).await;
    let ended = within(third.task).await.unwrap().unwrap_err();
    assert!(matches!(ended, Error::Removed), "{ended}");
    let others = world.members(&[&two, &other]);
    let refused = within(join::enter(&three, &others, false)).await.unwrap_err();
    assert!(matches!(refused, Error::Removed), "{refused}");
    let third = world.joined(&three, &others).await;
    assert!(three.directory.join("data.removed-1").exists());
    assert_eq!(names(&others).await, ["one", "three", "two"]);
    for running in [second, third, replaced] {
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_was_interrupted_goes_on_and_all_members_restart_together() {
    let Some(world) = World::new(1).await else { return };
    let one = world.machine("one", 1);
    let two = world.machine("two", 2);
    let first = world.first(&one).await;
    let others = world.members(&[&one]);
    // The attempt ended after the learner was added and before anything was written down.
    let (added, _) = within(others.add_learner(&two.peer_url())).await.unwrap();
    let second = world.joined(&two, &others).await;
    assert_eq!(State::read(&two.directory).unwrap().unwrap().member, added.id);
    assert_eq!(names(&others).await, ["one", "two"]);

    within(join::refresh(&one, &others)).await.unwrap();
    first.stop().await;
    second.stop().await;
    // Neither has a quorum without the other, so each must start before it can ask.
    let mut running = Vec::new();
    for machine in [&one, &two] {
        let state = State::read(&machine.directory).unwrap().unwrap();
        assert_eq!(state.endpoints.len(), 2, "{state:?}");
        let known = world.members(&[&one, &two]);
        let start = within(join::first(machine, &known)).await.unwrap();
        running.push(world.run(machine, start).await);
    }
    let all = world.members(&[&one, &two]);
    within(join::settle(&one, &all)).await.unwrap();
    assert_eq!(names(&all).await, ["one", "two"]);
    write(&all).await;
    for one in running {
        one.stop().await;
    }
}

#[tokio::test]
async fn a_learner_that_never_comes_up_is_removed_and_the_next_machine_joins() {
    let Some(world) = World::new(2).await else { return };
    let one = world.machine("one", 1);
    let two = world.machine("two", 2);
    let never = world.machine("never", 9);
    let first = world.first(&one).await;
    let members = world.members(&[&one]);
    within(members.add_learner(&never.peer_url())).await.unwrap();
    assert_eq!(names(&members).await, ["?", "one"]);
    let mut unreachable = Unreachable::default();
    within(learners::reconcile(&members, &mut unreachable)).await.unwrap();
    assert_eq!(names(&members).await, ["?", "one"], "it gets its time");
    tokio::time::pause();
    tokio::time::advance(learners::PATIENCE).await;
    tokio::time::resume();
    within(learners::reconcile(&members, &mut unreachable)).await.unwrap();
    assert_eq!(names(&members).await, ["one"]);
    let second = world.joined(&two, &members).await;
    // A learner that is alive stays, also when it is seen for long.
    assert_eq!(names(&members).await, ["one", "two"]);
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_of_another_cluster_is_refused() {
    let Some(world) = World::new(3).await else { return };
    let one = world.machine("one", 1);
    let foreign = world.machine("foreign", 5);
    let first = world.first(&one).await;
    let other = world.first(&foreign).await;
    let members = world.members(&[&one]);
    within(join::inspect(&one.directory, "one", &members)).await.unwrap();
    let refused = within(join::inspect(&foreign.directory, "one", &members)).await.unwrap_err();
    assert!(matches!(refused, Error::NameTaken { .. }), "{refused}");
    let refused = within(join::inspect(&foreign.directory, "foreign", &members)).await.unwrap_err();
    assert!(matches!(refused, Error::OtherCluster { .. }), "{refused}");
    other.stop().await;
    let refused = within(join::enter(&foreign, &members, true)).await.unwrap_err();
    assert!(matches!(refused, Error::OtherCluster { .. }), "{refused}");
    let unreachable = within(world.members(&[&foreign]).list()).await.unwrap_err().to_string();
    assert!(unreachable.contains("no etcd member answers"), "{unreachable}");
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_becomes_a_cluster_of_its_own_and_the_others_come_back() {
    let Some(world) = World::new(4).await else { return };
    let one = world.machine("one", 1);
    let two = world.machine("two", 2);
    let three = world.machine("three", 3);
    let first = world.first(&one).await;
    let second = world.joined(&two, &world.members(&[&one])).await;
    let third = world.joined(&three, &world.members(&[&two])).await;
    let all = world.members(&[&one, &two, &three]);
    write(&all).await;
    within(join::refresh(&three, &all)).await.unwrap();
    let credentials = || {
        let (certificate, key) = world.leaf(Vec::new());
        Credentials { authority: world.authority.clone(), certificate, key }
    };
    // While the others have a quorum, there is nothing to recover.
    third.stop().await;
    let refused = within(corten_members::recover(&three, &world.binary, &credentials())).await.unwrap_err();
    assert!(matches!(&refused, Error::HasQuorum { members } if members.contains("one")), "{refused}");
    first.stop().await;
    second.stop().await;

    let state = within(corten_members::recover(&three, &world.binary, &credentials())).await.unwrap();
    assert_eq!(state.endpoints, [three.client_url()]);
    // It goes on as any member does.
    let own = world.members(&[&three]);
    let start = within(join::enter(&three, &world.members(&[]), false)).await.unwrap();
    let third = world.run(&three, start).await;
    within(join::settle(&three, &own)).await.unwrap();
    assert_eq!(names(&own).await, ["three"]);
    write(&own).await;

    // The others are members that the cluster no longer has, and join it anew.
    let refused = within(join::enter(&one, &own, false)).await.unwrap_err();
    assert!(matches!(refused, Error::Removed), "{refused}");
    let first = world.joined(&one, &own).await;
    let second = world.joined(&two, &own).await;
    assert_eq!(names(&own).await, ["one", "three", "two"]);
    assert!(one.directory.join("data.removed-1").exists());
    for running in [first, second, third] {
        running.stop().await;
    }
    let empty = world.machine("empty", 7);
    let refused = within(corten_members::recover(&empty, &world.binary, &credentials())).await.unwrap_err();
    assert!(refused.to_string().contains("is no survivor"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_replaced_at_their_revision_and_a_lock_has_one_holder() {
    let Some(world) = World::new(9).await else { return };
    let one = world.machine("one", 1);
    let running = world.first(&one).await;
    let members = world.members(&[&one]);
    assert_eq!(within(members.value("/corten/a")).await.unwrap(), None);
    assert!(within(members.replace("/corten/a", b"first", values::ABSENT)).await.unwrap());
    assert!(!within(members.replace("/corten/a", b"late", values::ABSENT)).await.unwrap());
    let stored = within(members.value("/corten/a")).await.unwrap().unwrap();
    assert_eq!(stored.bytes, b"first");
    assert!(within(members.replace("/corten/a", b"second", stored.revision)).await.unwrap());
    assert!(!within(members.replace("/corten/a", b"third", stored.revision)).await.unwrap());
    within(members.put("/corten/servers/1", b"report")).await.unwrap();
    let reports = within(members.values("/corten/servers/")).await.unwrap();
    assert_eq!(reports.iter().map(|value| value.key.as_str()).collect::<Vec<_>>(), ["/corten/servers/1"]);

    let time = Duration::from_secs(60);
    let held = within(members.lock("/corten/lock", "one", time)).await.unwrap().unwrap();
    assert!(within(members.lock("/corten/lock", "two", time)).await.unwrap().is_none());
    within(members.extend(&held)).await.unwrap();
    within(members.release(held)).await.unwrap();
    let held = within(members.lock("/corten/lock", "two", time)).await.unwrap();
    assert!(held.is_some());
    running.stop().await;
}
