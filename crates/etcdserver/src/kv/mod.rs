//! Service KV.

mod answer;
mod check;
mod convert;

use mainstay_engine::{Op, OpAnswer, Txn, TxnAnswer};
use mainstay_ids::{LeaseId, Revision};
use tonic::{Request, Response, Status};

pub(crate) use self::answer::key_value;
use crate::error::EtcdError;
use crate::front::{Front, check_size, failed};
use crate::proto::etcdserverpb::kv_server::Kv;
use crate::proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};

impl Front {
    async fn run_one(&self, op: Op) -> Result<(Revision, OpAnswer), Status> {
        let TxnAnswer {
            revision, answers, ..
        } = self.engine.txn(Txn::of(op)).await.map_err(failed)?;
        let answer = answers.into_iter().next();
        Ok((revision, answer.ok_or_else(|| EtcdError::STOPPED.status())?))
    }
}

#[tonic::async_trait]
impl Kv for Front {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        check::range(&request)?;
        let found = self
            .engine
            .range_keys(convert::range(&request))
            .await
            .map_err(failed)?;
        let header = self.header(found.revision);
        let mut response = answer::range(&request, found);
        response.header = header;
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        check::put(&request)?;
        check_size(&request)?;
        if request.lease != 0 && request.ignore_value {
            // Outside of transactions etcd looks for the lease before it looks for the key.
            let lease = LeaseId::from_signed(request.lease);
            self.engine.lease_status(lease).await.map_err(failed)?;
        }
        let (revision, done) = self.run_one(Op::Put(convert::put(&request))).await?;
        let OpAnswer::Put(done) = done else {
            return Err(EtcdError::STOPPED.status());
        };
        Ok(Response::new(PutResponse {
            header: self.header(revision),
            prev_kv: done.previous.map(key_value),
        }))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        check::delete_range(&request)?;
        check_size(&request)?;
        let (revision, done) = self
            .run_one(Op::DeleteRange(convert::delete_range(&request)))
            .await?;
        let OpAnswer::DeleteRange(done) = done else {
            return Err(EtcdError::STOPPED.status());
        };
        let mut response = answer::delete_range(done);
        response.header = self.header(revision);
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        check::txn(&request)?;
        check_size(&request)?;
        let done = self
            .engine
            .txn(convert::txn(&request))
            .await
            .map_err(failed)?;
        let header = self.header(done.revision);
        let mut response = answer::txn(&request, done);
        response.header = header;
        Ok(Response::new(response))
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let revision = Revision(request.into_inner().revision);
        let progress = self.engine.compact(revision).await.map_err(failed)?;
        Ok(Response::new(CompactionResponse {
            header: self.header(progress.current),
        }))
    }
}
