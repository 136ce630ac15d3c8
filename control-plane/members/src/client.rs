//! The members' own API: who is a member, who leads, and how each does.

use std::sync::{Arc, PoisonError, RwLock};

use corten_etcd::etcdserverpb as pb;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;
use rustls::ClientConfig;
use tonic::transport::Channel;

use crate::tls::{Credentials, connect};
use crate::{Error, Version};

/// One member as the cluster knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until the member has started.
    pub name: String,
    pub peer_urls: Vec<String>,
    /// Empty until the member has started.
    pub client_urls: Vec<String>,
    pub is_learner: bool,
}

impl Member {
    /// Reports whether the member has ever run.
    pub fn has_started(&self) -> bool {
        !self.name.is_empty()
    }

    /// Returns a name for messages.
    pub fn title(&self) -> &str {
        match self.peer_urls.first() {
            Some(url) if !self.has_started() => url,
            _ => &self.name,
        }
    }
}

/// The members and the id of their cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    pub cluster: u64,
    pub members: Vec<Member>,
}

/// The state of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub id: u64,
    pub leader: u64,
    pub version: String,
    pub database_bytes: u64,
    pub used_bytes: u64,
    pub quota_bytes: u64,
    pub raft_index: u64,
    pub applied_index: u64,
    pub is_learner: bool,
    pub errors: Vec<String>,
}

/// An alarm of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    pub member: u64,
    /// etcd's name of it: NOSPACE or CORRUPT.
    pub name: String,
}

/// The members of a cluster, asked through the first of them that answers.
#[derive(Clone)]
pub struct Members {
    endpoints: Vec<String>,
    /// The TLS settings of the next connection, of this client and of all that were made from it.
    tls: Arc<RwLock<Arc<ClientConfig>>>,
}

impl Members {
    pub fn new(endpoints: Vec<String>, credentials: &Credentials) -> Result<Members, Error> {
        Ok(Members { endpoints, tls: Arc::new(RwLock::new(credentials.tls()?)) })
    }

    /// Returns the same client for other endpoints.
    pub fn at(&self, endpoints: Vec<String>) -> Members {
        Members { endpoints, tls: Arc::clone(&self.tls) }
    }

    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Gives this client, and all that were made from it, credentials for the next connections.
    pub fn set_credentials(&self, credentials: &Credentials) -> Result<(), Error> {
        let tls = credentials.tls()?;
        *self.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        Ok(())
    }

    /// Lists the members.
    pub async fn list(&self) -> Result<List, Error> {
        let mut client = ClusterClient::new(self.channel().await?);
        let answer = client.member_list(pb::MemberListRequest { linearizable: true }).await;
        let answer = answer.map_err(|status| refused("list the members", &status))?.into_inner();
        Ok(list(answer.header, answer.members))
    }

    /// Adds a learner, and returns it with all members.
    pub async fn add_learner(&self, peer_url: &str) -> Result<(Member, List), Error> {
        let mut client = ClusterClient::new(self.channel().await?);
        let request = pb::MemberAddRequest { peer_ur_ls: vec![peer_url.to_owned()], is_learner: true };
        let answer = client.member_add(request).await;
        let answer = answer.map_err(|status| refused("add a member", &status))?.into_inner();
        let added = answer.member.map(member).unwrap_or_default();
        Ok((added, list(answer.header, answer.members)))
    }

    /// Makes a learner a voter; false while it has not caught up with the leader.
    pub async fn promote(&self, id: u64) -> Result<bool, Error> {
        let mut client = ClusterClient::new(self.channel().await?);
        match client.member_promote(pb::MemberPromoteRequest { id }).await {
            Ok(_) => Ok(true),
            // Also the answer of a leader that was elected a moment ago.
            Err(status) if status.code() == tonic::Code::FailedPrecondition => Ok(false),
            Err(status) if status.code() == tonic::Code::Unavailable => Ok(false),
            Err(status) => Err(refused("make this member a voter", &status)),
        }
    }

    /// Removes a member; one that is not there is no error.
    pub async fn remove(&self, id: u64) -> Result<(), Error> {
        let mut client = ClusterClient::new(self.channel().await?);
        match client.member_remove(pb::MemberRemoveRequest { id }).await {
            Ok(_) => Ok(()),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(refused("remove a member", &status)),
        }
    }

    /// Changes the URL that the others reach a member at.
    pub async fn update(&self, id: u64, peer_url: &str) -> Result<(), Error> {
        let mut client = ClusterClient::new(self.channel().await?);
        let request = pb::MemberUpdateRequest { id, peer_ur_ls: vec![peer_url.to_owned()] };
        let updated = client.member_update(request).await;
        updated.map(drop).map_err(|status| refused("change the address of a member", &status))
    }

    /// Returns the alarms of all members.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let mut client = MaintenanceClient::new(self.channel().await?);
        let answer = client.alarm(pb::AlarmRequest::default()).await;
        let answer = answer.map_err(|status| refused("list its alarms", &status))?.into_inner();
        let alarm = |one: pb::AlarmMember| Alarm { member: one.member_id, name: one.alarm().as_str_name().to_owned() };
        Ok(answer.alarms.into_iter().map(alarm).collect())
    }

    /// Returns the state of the first member that answers.
    pub async fn status(&self) -> Result<Status, Error> {
        status(self.channel().await?).await.map_err(|status| refused("report its state", &status))
    }

    /// Returns etcd's hash of all keys up to a revision.
    pub async fn hash(&self, revision: u64) -> Result<u32, Error> {
        let mut client = MaintenanceClient::new(self.channel().await?);
        let request = pb::HashKvRequest { revision: i64::try_from(revision).unwrap_or(i64::MAX) };
        let answer = client.hash_kv(request).await;
        Ok(answer.map_err(|status| refused("hash its keys", &status))?.into_inner().hash)
    }

    /// Writes a key: whether the cluster takes writes.
    pub async fn probe_write(&self, key: &'static [u8], value: &'static [u8]) -> Result<(), Error> {
        let mut client = KvClient::new(self.channel().await?);
        let request = pb::PutRequest { key: key.into(), value: value.into(), ..pb::PutRequest::default() };
        client.put(request).await.map(drop).map_err(|status| refused("write", &status))
    }

    /// Connects to the first member that answers and has a leader.
    pub(crate) async fn channel(&self) -> Result<Channel, Error> {
        let tls = Arc::clone(&self.tls.read().unwrap_or_else(PoisonError::into_inner));
        let mut reasons = Vec::new();
        for url in &self.endpoints {
            let channel = match connect(url, &tls).await {
                Ok(channel) => channel,
                Err(reason) => {
                    reasons.push(reason);
                    continue;
                }
            };
            match status(channel.clone()).await {
                Ok(status) if status.leader != 0 => return Ok(channel),
                Ok(_) => reasons.push(format!("{url}: it has no leader; most members may be down")),
                Err(status) => reasons.push(format!("{url}: {}", status.message())),
            }
        }
        Err(Error::Unreachable { endpoints: self.endpoints.join(", "), reason: reasons.join("; ") })
    }
}

async fn status(channel: Channel) -> Result<Status, tonic::Status> {
    let answer = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await?.into_inner();
    Ok(Status {
        id: answer.header.map(|header| header.member_id).unwrap_or_default(),
        leader: answer.leader,
        version: answer.version,
        database_bytes: answer.db_size.unsigned_abs(),
        used_bytes: answer.db_size_in_use.unsigned_abs(),
        quota_bytes: answer.db_size_quota.unsigned_abs(),
        raft_index: answer.raft_index,
        applied_index: answer.raft_applied_index,
        is_learner: answer.is_learner,
        errors: answer.errors,
    })
}

impl Status {
    /// Reports whether the member's version is one that a cluster may have.
    pub fn is_recent(&self) -> bool {
        Version::parse(&self.version).is_some_and(|version| version >= Version::FLOOR)
    }
}

fn list(header: Option<pb::ResponseHeader>, members: Vec<pb::Member>) -> List {
    let cluster = header.map(|header| header.cluster_id).unwrap_or_default();
    List { cluster, members: members.into_iter().map(member).collect() }
}

fn member(member: pb::Member) -> Member {
    Member {
        id: member.id,
        name: member.name,
        peer_urls: member.peer_ur_ls,
        client_urls: member.client_ur_ls,
        is_learner: member.is_learner,
    }
}

pub(crate) fn refused(action: &'static str, status: &tonic::Status) -> Error {
    use tonic::Code::{Aborted, DeadlineExceeded, FailedPrecondition, Unavailable};
    Error::Refused {
        action,
        reason: status.message().trim_start_matches("etcdserver: ").to_owned(),
        is_transient: matches!(status.code(), Aborted | DeadlineExceeded | FailedPrecondition | Unavailable),
    }
}
