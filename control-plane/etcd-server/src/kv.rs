//! Keys and values.

use corten_etcd::etcdserverpb::kv_server::Kv;
use corten_etcd::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use corten_store::{Store, View};
use prost::Message;
use tonic::{Request, Response, Status};

use crate::{Server, check, execute, status};

#[tonic::async_trait]
impl Kv for Server {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        check::range(&request)?;
        // Every read of the store is linearizable: nothing is visible before it is durable, and everything is after.
        let query = execute::Query::new(&request)?;
        let found = self.store.range(query.range()).await.map_err(status::of)?;
        let mut response = query.answer(found);
        // The header has the store's revision; the answer may be of an older one.
        response.header = self.header_now();
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        check::put(&request)?;
        self.check_size(&request)?;
        let mut response = self.transact(move |view| execute::put(view, request)).await?;
        self.complete(&mut response.header);
        Ok(Response::new(response))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        check::delete(&request)?;
        let mut response = self.transact(move |view| execute::delete_range(view, &request)).await?;
        self.complete(&mut response.header);
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        check::txn(&request, self.limits.txn_ops)?;
        self.check_size(&request)?;
        let mut response = self.transact(move |view| execute::txn(view, request)).await?;
        self.complete(&mut response.header);
        Ok(Response::new(response))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        // A revision that no store has had is compacted for good.
        let revision = u64::try_from(request.into_inner().revision).map_err(|_| status::compacted())?;
        self.store.compact(revision).await.map_err(status::of)?;
        Ok(Response::new(CompactionResponse { header: self.header_now() }))
    }
}

impl Server {
    /// Runs an operation as one transaction of the store; a refusal changes nothing.
    async fn transact<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut View<'_>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let outcome = self.store.transact(move |view| Ok(run(view).inspect_err(|_| view.discard()))).await;
        outcome.map_err(status::of)?
    }

    fn check_size(&self, request: &impl Message) -> Result<(), Status> {
        if request.encoded_len() > self.limits.request_bytes { Err(status::too_large()) } else { Ok(()) }
    }

    /// Adds the member to the header of an answer.
    fn complete(&self, header: &mut Option<ResponseHeader>) {
        if let Some(header) = header {
            header.cluster_id = self.member.cluster_id;
            header.member_id = self.member.id;
            header.raft_term = crate::TERM;
        }
    }
}
