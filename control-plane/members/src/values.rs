//! Small values that servers share in etcd beside the objects of the cluster, and locks among servers.
//!
//! No object of the API has such a key. A value is replaced only at the revision that its writer read, so that two writers
//! never overwrite each other.

use std::time::Duration;

use corten_etcd::etcdserverpb as pb;
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::request_op::Request;
use tokio::time::Instant;

use crate::client::refused;
use crate::{Error, Members};

/// The revision of a key that does not exist.
pub const ABSENT: i64 = 0;
/// The most values of one prefix: one for each server.
const MOST: i64 = 1000;
/// The time for which a request is repeated while the members elect a leader.
const ELECTION: Duration = Duration::from_secs(10);
/// The pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// A value with its key and the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub key: String,
    pub bytes: Vec<u8>,
    pub revision: i64,
}

/// A lock that this server holds until it is released, or until its time is over.
pub struct Held {
    lease: i64,
}

impl Members {
    /// Reads the value of a key.
    pub async fn value(&self, key: &str) -> Result<Option<Value>, Error> {
        let request = pb::RangeRequest { key: key.to_owned().into(), ..pb::RangeRequest::default() };
        Ok(self.range(request).await?.into_iter().next())
    }

    /// Reads the values of all keys with a prefix.
    pub async fn values(&self, prefix: &str) -> Result<Vec<Value>, Error> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let request = pb::RangeRequest {
            key: prefix.to_owned().into(),
            range_end: end.into(),
            limit: MOST,
            ..pb::RangeRequest::default()
        };
        self.range(request).await
    }

    async fn range(&self, request: pb::RangeRequest) -> Result<Vec<Value>, Error> {
        until_elected(|| self.range_once(request.clone())).await
    }

    async fn range_once(&self, request: pb::RangeRequest) -> Result<Vec<Value>, Error> {
        let mut client = KvClient::new(self.channel().await?);
        let answer = client.range(request).await.map_err(|status| refused("read the servers' values", &status))?;
        let value = |pair: corten_etcd::mvccpb::KeyValue| Value {
            key: String::from_utf8_lossy(&pair.key).into_owned(),
            bytes: pair.value.to_vec(),
            revision: pair.mod_revision,
        };
        Ok(answer.into_inner().kvs.into_iter().map(value).collect())
    }

    /// Writes a value whatever the key had before.
    pub async fn put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let mut client = KvClient::new(self.channel().await?);
        let request =
            pb::PutRequest { key: key.to_owned().into(), value: bytes.to_vec().into(), ..pb::PutRequest::default() };
        client.put(request).await.map(drop).map_err(|status| refused("write a value of the servers", &status))
    }

    /// Writes a value if the key was last changed at `revision`; false if it was not.
    pub async fn replace(&self, key: &str, bytes: &[u8], revision: i64) -> Result<bool, Error> {
        let mut attempts = 0;
        let replacing = until_elected(|| {
            attempts += 1;
            self.put_if(key, bytes, revision, 0)
        });
        let is_replaced = replacing.await?;
        if is_replaced || attempts == 1 {
            return Ok(is_replaced);
        }
        // An attempt whose answer was lost may have written it.
        Ok(self.value(key).await?.is_some_and(|value| value.bytes == bytes))
    }

    async fn put_if(&self, key: &str, bytes: &[u8], revision: i64, lease: i64) -> Result<bool, Error> {
        let compare = pb::Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.to_owned().into(),
            target_union: Some(TargetUnion::ModRevision(revision)),
            ..pb::Compare::default()
        };
        let put = pb::PutRequest {
            key: key.to_owned().into(),
            value: bytes.to_vec().into(),
            lease,
            ..pb::PutRequest::default()
        };
        let put = pb::RequestOp { request: Some(Request::RequestPut(put)) };
        let request = pb::TxnRequest { compare: vec![compare], success: vec![put], failure: Vec::new() };
        let mut client = KvClient::new(self.channel().await?);
        let answer = client.txn(request).await.map_err(|status| refused("change a value of the servers", &status))?;
        Ok(answer.into_inner().succeeded)
    }

    /// Takes a lock, which ends after `time` if its holder does not release it; none while another server has it.
    pub async fn lock(&self, key: &str, holder: &str, time: Duration) -> Result<Option<Held>, Error> {
        let mut client = LeaseClient::new(self.channel().await?);
        let ttl = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let granted = client.lease_grant(pb::LeaseGrantRequest { ttl, id: 0 }).await;
        let lease = granted.map_err(|status| refused("grant a lease", &status))?.into_inner().id;
        let held = Held { lease };
        match self.put_if(key, holder.as_bytes(), ABSENT, lease).await? {
            true => Ok(Some(held)),
            false => {
                self.release(held).await?;
                Ok(None)
            }
        }
    }

    /// Keeps a lock for another time like its first.
    pub async fn extend(&self, held: &Held) -> Result<(), Error> {
        let mut client = LeaseClient::new(self.channel().await?);
        let request = pb::LeaseKeepAliveRequest { id: held.lease };
        let answers = client.lease_keep_alive(tokio_stream::once(request)).await;
        let mut answers = answers.map_err(|status| refused("extend a lease", &status))?.into_inner();
        answers.message().await.map(drop).map_err(|status| refused("extend a lease", &status))
    }

    /// Releases a lock.
    pub async fn release(&self, held: Held) -> Result<(), Error> {
        let mut client = LeaseClient::new(self.channel().await?);
        match client.lease_revoke(pb::LeaseRevokeRequest { id: held.lease }).await {
            Ok(_) => Ok(()),
            // Its time was over.
            Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
            Err(status) => Err(refused("end a lease", &status)),
        }
    }
}

/// Makes a request, and repeats it while the members elect a leader.
async fn until_elected<T, F>(mut request: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let deadline = Instant::now() + ELECTION;
    loop {
        match request().await {
            Err(error) if error.is_transient() && Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_while_a_leader_is_elected() {
        let unavailable = || refused("read", &tonic::Status::unavailable("etcdserver: leader changed"));
        let mut attempts = 0;
        let outcome = until_elected(|| {
            attempts += 1;
            ready(if attempts < 5 { Err(unavailable()) } else { Ok(attempts) })
        });
        assert_eq!(outcome.await.unwrap(), 5);

        let began = Instant::now();
        let outcome = until_elected(|| ready(Err::<(), Error>(unavailable())));
        assert!(outcome.await.unwrap_err().is_transient());
        assert_eq!(began.elapsed(), ELECTION);

        let mut attempts = 0;
        let outcome = until_elected(|| {
            attempts += 1;
            ready(Err::<(), Error>(refused("read", &tonic::Status::permission_denied("no"))))
        });
        assert!(!outcome.await.unwrap_err().is_transient());
        assert_eq!(attempts, 1);
    }
}
