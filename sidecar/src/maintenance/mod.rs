//! Care of the cluster itself: defragmentation, alarms, learners, peer URLs.
//!
//! ```text
//! Connect ─► defragment   observe ─► decide (pure) ─► act: one member, then look again
//!        ├─► alarms       what the cluster complains about, as a value
//!        ├─► learner      own member does not vote yet ─► promote when it has caught up
//!        └─► peer_url     own member's peer URLs differ from the configured ones ─► update
//! ```
//!
//! Every call has a deadline of its own. Nothing here is needed for backups, and nothing here stops them.

pub mod alarms;
pub mod aside;
pub mod defragment;
pub mod learner;
pub mod peer_url;

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, GetOptions, KvClient};
use jiff::Timestamp;

/// A small question, and how long its answer may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The gRPC code for "you may not".
const PERMISSION_DENIED: i32 = 7;

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
#[error("connect to {endpoint}")]
pub struct EtcdConnectError {
    /// Where to.
    pub endpoint: String,
    /// Why not.
    pub source: etcd_client::Error,
}

/// Ways to the cluster. Clients have no deadline for requests: callers bring their own, up to minutes.
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    /// To the member beside this sidecar, and no other.
    async fn connect_own(&self) -> Result<Client, EtcdConnectError>;

    /// To the member with this client URL, and no other.
    async fn connect_to(&self, url: &str) -> Result<Client, EtcdConnectError>;

    /// To any voting member, the own one only when there is no other.
    async fn connect_cluster(&self) -> Result<Client, EtcdConnectError>;
}

/// A call that did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is nobody to call.
    #[error(transparent)]
    Connect(#[from] EtcdConnectError),
    /// No answer in time.
    #[error("{call}: no answer within {limit:?}")]
    Timeout {
        /// What was asked.
        call: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// etcd refused, or the connection broke.
    #[error("{call}")]
    RequestFailed {
        /// What was asked.
        call: &'static str,
        /// What was answered.
        source: etcd_client::Error,
    },
    /// The answer lacks what every answer has.
    #[error("{call}: the answer has no header")]
    NoHeader {
        /// What was asked.
        call: &'static str,
    },
}

impl CallError {
    /// The sentence etcd refused with.
    fn etcd_message(&self) -> Option<&str> {
        match self {
            Self::RequestFailed {
                source: etcd_client::Error::GRpcStatus(status),
                ..
            } => Some(status.message()),
            _ => None,
        }
    }
}

/// What became of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaintenanceOutcome {
    /// It was done.
    Succeeded,
    /// It was not.
    Failed,
}

/// Where maintenance is counted.
pub trait MaintenanceMetrics: Send + Sync + 'static {
    /// A member was defragmented, or that was tried. There are as many endpoints as members.
    fn record_defragmentation(&self, endpoint: &str, outcome: MaintenanceOutcome, duration: Duration);

    /// The own member was promoted, or that was tried.
    fn record_promotion(&self, outcome: MaintenanceOutcome, duration: Duration);
}

/// Counts nothing.
impl MaintenanceMetrics for () {
    fn record_defragmentation(&self, _: &str, _: MaintenanceOutcome, _: Duration) {}

    fn record_promotion(&self, _: MaintenanceOutcome, _: Duration) {}
}

/// Waits for an answer, but not for ever.
async fn call_with_timeout<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(CallError::RequestFailed { call, source }),
        Err(_) => Err(CallError::Timeout { call, limit }),
    }
}

/// Waits for a client, but not for ever.
async fn connect_with_timeout(
    client: impl Future<Output = Result<Client, EtcdConnectError>>,
) -> Result<Client, CallError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, client).await {
        Ok(client) => Ok(client?),
        Err(_) => Err(CallError::Timeout {
            call: "connect",
            limit: REQUEST_TIMEOUT,
        }),
    }
}

/// A read the member can answer only with the quorum, and only while its database is free.
async fn read_linearizably(client: &Client) -> Result<(), CallError> {
    let mut kv: KvClient = client.kv_client();
    let options = GetOptions::new().with_count_only();
    match call_with_timeout("linearizable read", REQUEST_TIMEOUT, kv.get("\0", Some(options))).await {
        Ok(_) => Ok(()),
        // Permission is looked at after the quorum was asked.
        Err(CallError::RequestFailed {
            source: etcd_client::Error::GRpcStatus(status),
            ..
        }) if status.code() as i32 == PERMISSION_DENIED => Ok(()),
        Err(error) => Err(error),
    }
}

/// How long something took, by the wall: telling durations needs no more.
fn elapsed_since(start: Timestamp) -> Duration {
    Duration::try_from(Timestamp::now().duration_since(start)).unwrap_or_default()
}
