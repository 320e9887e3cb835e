//! Services Cluster and Auth, as far as etcdctl needs them: one member, no users.

use tonic::{Request, Response, Status};

use crate::front::Front;
use crate::proto::etcdserverpb::auth_server::Auth;
use crate::proto::etcdserverpb::cluster_server::Cluster;
use crate::proto::etcdserverpb::{
    AuthStatusRequest, AuthStatusResponse, Member, MemberListRequest, MemberListResponse,
};

#[tonic::async_trait]
impl Cluster for Front {
    async fn member_list(
        &self,
        _request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let member = Member {
            id: self.member.0,
            name: self.options.name.clone(),
            peer_ur_ls: Vec::new(),
            client_ur_ls: self.options.client_urls.clone(),
            is_learner: false,
        };
        Ok(Response::new(MemberListResponse {
            header: self.current_header(),
            members: vec![member],
        }))
    }
}

#[tonic::async_trait]
impl Auth for Front {
    async fn auth_status(
        &self,
        _request: Request<AuthStatusRequest>,
    ) -> Result<Response<AuthStatusResponse>, Status> {
        Ok(Response::new(AuthStatusResponse {
            header: self.current_header(),
            enabled: false,
            auth_revision: 1,
        }))
    }
}
