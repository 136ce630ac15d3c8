//! Leases, whose keys are deleted when they expire.

use std::time::Duration;

use corten_etcd::etcdserverpb::lease_server::Lease;
use corten_etcd::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};
use corten_store::{Error, Store};
use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{Server, signed, status};

/// The longest time to live, in seconds.
const LONGEST_TTL: i64 = 9_000_000_000;
/// The shortest time to live: that of etcd with its default heartbeat.
const SHORTEST_TTL: i64 = 2;

#[tonic::async_trait]
impl Lease for Server {
    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Result<Response<LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        if request.ttl > LONGEST_TTL {
            return Err(status::ttl_too_large());
        }
        let ttl = request.ttl.max(SHORTEST_TTL);
        let granted = self.store.grant(Duration::from_secs(ttl.unsigned_abs()), request.id).await;
        let id = granted.map_err(status::of)?;
        Ok(Response::new(LeaseGrantResponse { header: self.header_now(), id, ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let revision = self.store.revoke(request.into_inner().id).await.map_err(status::of)?;
        Ok(Response::new(LeaseRevokeResponse { header: self.header(revision) }))
    }

    type LeaseKeepAliveStream = BoxStream<'static, Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let server = self.clone();
        let shutdown = self.shutdown.clone().cancelled_owned();
        let answers = request.into_inner().take_until(shutdown).then(move |request| {
            let server = server.clone();
            async move { server.keep_alive(request?.id).await }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let header = self.header_now();
        let response = match self.store.time_to_live(request.id).await {
            Ok(lease) => LeaseTimeToLiveResponse {
                header,
                id: lease.id,
                ttl: signed(lease.remaining.as_secs()),
                granted_ttl: signed(lease.ttl.as_secs()),
                keys: if request.keys { lease.keys } else { Vec::new() },
            },
            // A lease that does not exist is no error.
            Err(Error::LeaseNotFound(id)) => {
                LeaseTimeToLiveResponse { header, id, ttl: -1, granted_ttl: 0, keys: Vec::new() }
            }
            Err(error) => return Err(status::of(error)),
        };
        Ok(Response::new(response))
    }

    async fn lease_leases(&self, _: Request<LeaseLeasesRequest>) -> Result<Response<LeaseLeasesResponse>, Status> {
        let leases = self.store.leases().into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: self.header_now(), leases }))
    }
}

impl Server {
    /// Keeps a lease alive. One that does not exist has a time to live of 0, and the stream goes on.
    async fn keep_alive(&self, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let ttl = match self.store.keep_alive(id).await {
            Ok(ttl) => signed(ttl.as_secs()),
            Err(Error::LeaseNotFound(_)) => 0,
            Err(error) => return Err(status::of(error)),
        };
        Ok(LeaseKeepAliveResponse { header: self.header_now(), id, ttl })
    }
}
