//! The settings of one member, and the command line that they are.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::binary::Version;

/// Changes after which a member writes a snapshot: as many as kubeadm sets.
const SNAPSHOT_COUNT: u32 = 10_000;
/// The size of the database at which etcd raises its alarm: the largest that etcd's manual suggests.
const QUOTA_BYTES: u64 = 8 << 30;
/// The heartbeat of a leader in milliseconds, and the silence after which another is elected: etcd's own for members
/// that are near each other.
const HEARTBEAT: u32 = 100;
const ELECTION_TIMEOUT: u32 = 1000;
/// The name by which members of one cluster know each other before they have an id.
const CLUSTER_TOKEN: &str = "corten";

/// The certificate files of a member.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The authority of members and of their clients.
    pub authority: PathBuf,
    pub server: PathBuf,
    pub server_key: PathBuf,
    pub peer: PathBuf,
    pub peer_key: PathBuf,
}

/// One member of the cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// The member's name: its node's.
    pub name: String,
    /// The directory of the member's data, log and lock.
    pub directory: PathBuf,
    /// The address that clients and the other members reach it at.
    pub address: IpAddr,
    pub client_port: u16,
    pub peer_port: u16,
    /// The loopback address of its metrics.
    pub metrics: SocketAddr,
    pub certificates: CertificateFiles,
}

/// How a member starts for the first time; one with data goes on by that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// As the first member of a new cluster.
    New,
    /// With its data, as the only member: the others are removed.
    Forced,
    /// As a member that the others have added: all members by name and peer URL.
    Existing { initial_cluster: String },
}

impl Config {
    /// The port of clients.
    pub const CLIENT_PORT: u16 = 2379;
    /// The port of other members.
    pub const PEER_PORT: u16 = 2380;
    /// The port of metrics on the loopback, as kubeadm has it.
    pub const METRICS_PORT: u16 = 2381;

    /// Returns the URL that clients reach the member at.
    pub fn client_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.client_port))
    }

    /// Returns the URL that other members reach the member at.
    pub fn peer_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.address, self.peer_port))
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Returns etcd's arguments.
    pub(crate) fn arguments(&self, version: Version, start: &Start) -> Vec<String> {
        let file = |path: &PathBuf| path.to_string_lossy().into_owned();
        let own = format!("{}={}", self.name, self.peer_url());
        let (state, cluster) = match start {
            Start::New | Start::Forced => ("new", own),
            Start::Existing { initial_cluster } => ("existing", initial_cluster.clone()),
        };
        let certificates = &self.certificates;
        let mut pairs = vec![
            ("name", self.name.clone()),
            ("data-dir", file(&self.data())),
            ("listen-client-urls", self.client_url()),
            ("advertise-client-urls", self.client_url()),
            ("listen-peer-urls", self.peer_url()),
            ("initial-advertise-peer-urls", self.peer_url()),
            ("listen-metrics-urls", format!("http://{}", self.metrics)),
            ("initial-cluster", cluster),
            ("initial-cluster-state", state.to_owned()),
            ("initial-cluster-token", CLUSTER_TOKEN.to_owned()),
            ("cert-file", file(&certificates.server)),
            ("key-file", file(&certificates.server_key)),
            ("trusted-ca-file", file(&certificates.authority)),
            ("client-cert-auth", "true".to_owned()),
            ("peer-cert-file", file(&certificates.peer)),
            ("peer-key-file", file(&certificates.peer_key)),
            ("peer-trusted-ca-file", file(&certificates.authority)),
            ("peer-client-cert-auth", "true".to_owned()),
            ("snapshot-count", SNAPSHOT_COUNT.to_string()),
            ("quota-backend-bytes", QUOTA_BYTES.to_string()),
            ("heartbeat-interval", HEARTBEAT.to_string()),
            ("election-timeout", ELECTION_TIMEOUT.to_string()),
            // The API servers compact.
            ("auto-compaction-retention", "0".to_owned()),
            ("log-outputs", "stderr".to_owned()),
        ];
        if *start == Start::Forced {
            pairs.push(("force-new-cluster", "true".to_owned()));
        }
        pairs.extend(if version >= Version::STABLE_FLAGS {
            [
                ("feature-gates", "InitialCorruptCheck=true".to_owned()),
                ("watch-progress-notify-interval", "5s".to_owned()),
            ]
        } else {
            [
                ("experimental-initial-corrupt-check", "true".to_owned()),
                ("experimental-watch-progress-notify-interval", "5s".to_owned()),
            ]
        });
        pairs.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_started_as_new_or_into_an_existing_cluster() {
        let file = |name: &str| PathBuf::from("/pki").join(name);
        let config = Config {
            name: "one".to_owned(),
            directory: "/data/etcd".into(),
            address: [10, 0, 0, 1].into(),
            client_port: Config::CLIENT_PORT,
            peer_port: Config::PEER_PORT,
            metrics: ([127, 0, 0, 1], Config::METRICS_PORT).into(),
            certificates: CertificateFiles {
                authority: file("ca.crt"),
                server: file("server.crt"),
                server_key: file("server.key"),
                peer: file("peer.crt"),
                peer_key: file("peer.key"),
            },
        };
        let has = |arguments: &[String], wanted: &str| arguments.iter().any(|argument| argument == wanted);
        let first = config.arguments(Version::new(3, 6, 8), &Start::New);
        for wanted in [
            "--initial-cluster=one=https://10.0.0.1:2380",
            "--initial-cluster-state=new",
            "--data-dir=/data/etcd/data",
            "--listen-metrics-urls=http://127.0.0.1:2381",
            "--client-cert-auth=true",
            "--peer-client-cert-auth=true",
            "--auto-compaction-retention=0",
            "--feature-gates=InitialCorruptCheck=true",
        ] {
            assert!(has(&first, wanted), "{wanted}: {first:?}");
        }
        let cluster = "one=https://10.0.0.1:2380,two=https://10.0.0.2:2380".to_owned();
        let later = Start::Existing { initial_cluster: cluster.clone() };
        let second = config.arguments(Version::new(3, 5, 21), &later);
        assert!(has(&second, "--initial-cluster-state=existing"), "{second:?}");
        assert!(has(&second, &format!("--initial-cluster={cluster}")), "{second:?}");
        assert!(has(&second, "--experimental-initial-corrupt-check=true"), "{second:?}");
    }
}
