//! Service Lease.

use std::pin::Pin;

use futures::Stream;
use mainstay_engine::EngineError;
use mainstay_ids::LeaseId;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::error::EtcdError;
use crate::front::{Front, failed};
use crate::proto::etcdserverpb::lease_server::Lease;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

/// Keep-alive responses that wait for a client.
const QUEUE: usize = 16;

#[tonic::async_trait]
impl Lease for Front {
    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        let id = LeaseId::from_signed(request.id);
        let lease = self.engine.grant(id, request.ttl).await.map_err(failed)?;
        Ok(Response::new(LeaseGrantResponse {
            header: self.current_header(),
            id: lease.id.to_signed(),
            ttl: lease.granted_ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let id = LeaseId::from_signed(request.into_inner().id);
        let revision = self.engine.revoke(id).await.map_err(failed)?;
        Ok(Response::new(LeaseRevokeResponse {
            header: self.header(revision),
        }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (out, responses) = mpsc::channel(QUEUE);
        let front = self.clone();
        // It ends with the client, or when the server drains.
        tokio::spawn(async move {
            let mut requests = request.into_inner();
            loop {
                let request = tokio::select! {
                    request = requests.message() => request,
                    () = front.drain.cancelled() => {
                        let _ = out.try_send(Err(EtcdError::STOPPED.status()));
                        return;
                    }
                };
                let Ok(Some(request)) = request else { return };
                if out.send(front.renew(&request).await).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let mut response = LeaseTimeToLiveResponse {
            header: self.current_header(),
            id: request.id,
            ttl: -1, // a lease that is not there is no error here
            ..LeaseTimeToLiveResponse::default()
        };
        match self
            .engine
            .lease_status(LeaseId::from_signed(request.id))
            .await
        {
            Ok(lease) => {
                response.ttl = lease.remaining_ttl;
                response.granted_ttl = lease.granted_ttl;
                if request.keys {
                    response.keys = lease.keys;
                }
            }
            Err(EngineError::LeaseNotFound) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        _request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let leases = self.engine.leases().await.map_err(failed)?;
        let status = |id: LeaseId| LeaseStatus { id: id.to_signed() };
        Ok(Response::new(LeaseLeasesResponse {
            header: self.current_header(),
            leases: leases.into_iter().map(status).collect(),
        }))
    }
}

impl Front {
    async fn renew(
        &self,
        request: &LeaseKeepAliveRequest,
    ) -> Result<LeaseKeepAliveResponse, Status> {
        let ttl = match self
            .engine
            .keep_alive(LeaseId::from_signed(request.id))
            .await
        {
            Ok(lease) => lease.granted_ttl,
            Err(EngineError::LeaseNotFound) => 0, // how clients learn that it expired
            Err(error) => return Err(failed(error)),
        };
        Ok(LeaseKeepAliveResponse {
            header: self.current_header(),
            id: request.id,
            ttl,
        })
    }
}
