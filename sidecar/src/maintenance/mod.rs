//! Maintenance of the etcd cluster: defragmentation, alarms, learner promotion, peer URLs.
//!
//! ```text
//! Connect ─► defragment   observe ─► decide (pure) ─► act: one member, then observe again
//!        ├─► alarms       active alarms of the cluster
//!        ├─► learner      own member is a learner ─► promote it when it has caught up
//!        └─► peer_url     own member's peer URLs differ from the configured ones ─► update
//! ```
//!
//! Every call has its own deadline. Backups do not depend on this module, and its failures do not stop them.

pub mod alarms;
pub mod defragment;
pub mod learner;
pub mod peer_url;
pub(crate) mod previous_data;

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::Client;
use jiff::Timestamp;
use mainstay_etcd::{
    ListedMember, MemberStatus, RequestError, fetch_status, list_members, read_linearizably,
    with_deadline,
};

/// Timeout of a simple request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("connect to {endpoint}")]
pub struct EtcdConnectError {
    pub endpoint: String,
    pub source: etcd_client::Error,
}

/// Connects to members. The clients have no request timeout: callers set their own, up to minutes.
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    /// Connects to the own member, and no other.
    async fn connect_own(&self) -> Result<Client, EtcdConnectError>;

    /// Connects to the member with this client URL, and no other.
    async fn connect_to(&self, url: &str) -> Result<Client, EtcdConnectError>;

    /// Connects to any voting member; to the own one only if there is no other.
    async fn connect_cluster(&self) -> Result<Client, EtcdConnectError>;
}

/// A failed call to etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error(transparent)]
    Connect(#[from] EtcdConnectError),
    #[error("{call}")]
    Request {
        call: &'static str,
        source: RequestError,
    },
}

impl CallError {
    /// Message of etcd's gRPC error.
    fn etcd_message(&self) -> Option<&str> {
        match self {
            Self::Request { source, .. } => source.etcd_message(),
            Self::Connect(_) => None,
        }
    }
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaintenanceOutcome {
    Succeeded,
    Failed,
}

/// Metrics of maintenance.
pub trait MaintenanceMetrics: Send + Sync + 'static {
    /// Records an attempted defragmentation. There are as many endpoints as members.
    fn record_defragmentation(
        &self,
        endpoint: &str,
        outcome: MaintenanceOutcome,
        duration: Duration,
    );

    /// Records an attempted promotion of the own member.
    fn record_promotion(&self, outcome: MaintenanceOutcome, duration: Duration);
}

/// Counts nothing.
impl MaintenanceMetrics for () {
    fn record_defragmentation(&self, _: &str, _: MaintenanceOutcome, _: Duration) {}

    fn record_promotion(&self, _: MaintenanceOutcome, _: Duration) {}
}

/// Waits for a response within a limit.
fn call_with_timeout<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, CallError>> {
    let answer = with_deadline(limit, answer);
    async move {
        answer
            .await
            .map_err(|source| CallError::Request { call, source })
    }
}

/// Reads the status of a member.
async fn read_status(client: &mut Client) -> Result<MemberStatus, CallError> {
    let call = "status";
    fetch_status(client, REQUEST_TIMEOUT)
        .await
        .map_err(|source| CallError::Request { call, source })
}

/// Lists the members of the cluster.
async fn read_members(client: &mut Client) -> Result<Vec<ListedMember>, CallError> {
    let call = "list members";
    list_members(client, REQUEST_TIMEOUT)
        .await
        .map_err(|source| CallError::Request { call, source })
}

async fn connect_with_timeout(
    client: impl Future<Output = Result<Client, EtcdConnectError>>,
) -> Result<Client, CallError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, client).await {
        Ok(client) => Ok(client?),
        Err(_) => Err(CallError::Request {
            call: "connect",
            source: RequestError::Timeout {
                limit: REQUEST_TIMEOUT,
            },
        }),
    }
}

/// Performs a linearizable read: it succeeds only with a quorum, and not while the member is being defragmented.
async fn confirm_quorum(client: &Client) -> Result<(), CallError> {
    match read_linearizably(client, "\0", REQUEST_TIMEOUT).await {
        Ok(_) => Ok(()),
        // etcd checks permissions after the quorum has confirmed the read.
        Err(error) if error.is_permission_denied() => Ok(()),
        Err(source) => Err(CallError::Request {
            call: "linearizable read",
            source,
        }),
    }
}

/// Elapsed wall-clock time; precise enough for logs and metrics.
fn elapsed_since(start: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(start)).unwrap_or_default()
}
