//! What all services share.

use std::sync::Arc;
use std::time::Duration;

use mainstay_engine::{Engine, EngineError};
use mainstay_ids::{ClusterId, MemberId, Revision};
use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::error::{EtcdError, engine_error};
use crate::proto::etcdserverpb::ResponseHeader;

/// etcd's default limit of a request.
pub const MAX_REQUEST_BYTES: usize = 1_572_864;

/// etcd's default limit of the operations of a transaction.
pub const MAX_TXN_OPS: usize = 128;

/// The etcd whose API is served. Kubernetes uses progress requests from 3.4.31 and 3.5.13 on.
pub const SERVED_VERSION: &str = "3.6.0";

/// A server has no raft. One term and the revision stand for it.
pub(crate) const RAFT_TERM: u64 = 2;

/// How the API behaves.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    /// Name of the only member.
    pub name: String,
    /// URLs the member list gives to clients.
    pub client_urls: Vec<String>,
    /// Quota, as the status reports it.
    pub quota_bytes: Option<u64>,
    /// Interval of unrequested progress notifications.
    pub progress_interval: Duration,
    /// Requests a principal may have in flight, streams included.
    pub requests_per_principal: usize,
}

impl FrontOptions {
    /// Defaults for a member of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            client_urls: Vec::new(),
            quota_bytes: None,
            progress_interval: Duration::from_mins(10),
            requests_per_principal: 10_000,
        }
    }
}

/// Engine and identity behind every service.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) options: Arc<FrontOptions>,
    pub(crate) member: MemberId,
    cluster: ClusterId,
    /// Ends the streams when the server drains.
    pub(crate) drain: CancellationToken,
}

impl Front {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        options: FrontOptions,
        drain: CancellationToken,
    ) -> Self {
        let member = MemberId(name_hash("member", &options.name));
        let cluster = ClusterId(name_hash("cluster", &options.name));
        Self {
            engine,
            options: Arc::new(options),
            member,
            cluster,
            drain,
        }
    }

    /// A header for data that is the truth at `revision`.
    #[expect(
        clippy::unnecessary_wraps,
        reason = "every response has an optional header"
    )]
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.cluster.0,
            member_id: self.member.0,
            revision: revision.0,
            raft_term: RAFT_TERM,
        })
    }

    /// A header for a response without data.
    pub(crate) fn current_header(&self) -> Option<ResponseHeader> {
        self.header(self.engine.progress().current)
    }
}

/// Refuses what etcd refuses before it is proposed.
pub(crate) fn check_size(request: &impl Message) -> Result<(), Status> {
    if request.encoded_len() > MAX_REQUEST_BYTES {
        return Err(EtcdError::TOO_LARGE.status());
    }
    Ok(())
}

/// Maps the error of an engine.
#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
pub(crate) fn failed(error: EngineError) -> Status {
    engine_error(&error)
}

/// FNV-1a: the same name has the same ID after a restart.
fn name_hash(kind: &str, name: &str) -> u64 {
    let bytes = kind.bytes().chain([0]).chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
