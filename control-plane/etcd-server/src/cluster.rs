//! The members of the cluster: always one.

use corten_etcd::etcdserverpb::cluster_server::Cluster;
use corten_etcd::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};
use tonic::{Request, Response, Status};

use crate::{Server, status};

#[tonic::async_trait]
impl Cluster for Server {
    async fn member_list(&self, _: Request<MemberListRequest>) -> Result<Response<MemberListResponse>, Status> {
        let member = Member {
            id: self.member.id,
            name: self.member.name.clone(),
            peer_ur_ls: Vec::new(),
            client_ur_ls: self.member.client_urls.clone(),
            is_learner: false,
        };
        Ok(Response::new(MemberListResponse { header: self.header_now(), members: vec![member] }))
    }

    async fn member_add(&self, _: Request<MemberAddRequest>) -> Result<Response<MemberAddResponse>, Status> {
        Err(status::one_member())
    }

    async fn member_remove(&self, _: Request<MemberRemoveRequest>) -> Result<Response<MemberRemoveResponse>, Status> {
        Err(status::one_member())
    }

    async fn member_update(&self, _: Request<MemberUpdateRequest>) -> Result<Response<MemberUpdateResponse>, Status> {
        Err(status::one_member())
    }

    async fn member_promote(
        &self,
        _: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        Err(status::one_member())
    }
}
