//! Requests with deadlines, and their responses in the types of the project.

use std::time::Duration;

use etcd_client::{Client, GetOptions, ResponseHeader};
use jiff::Timestamp;
use mainstay_ids::{ClusterId, MemberId, Revision};

/// gRPC code of a request that the user of the connection may not make.
const PERMISSION_DENIED: i32 = 7;
/// Message of etcd's `ErrCompacted`; its gRPC code `OutOfRange` is shared with other errors.
const COMPACTED: &str = "required revision has been compacted";

/// A failed request to etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// etcd returned an error, or the connection broke.
    #[error(transparent)]
    Failed(Box<etcd_client::Error>),
    /// No response within the deadline.
    #[error("no response within {} ms", limit.as_millis())]
    Timeout {
        /// The deadline.
        limit: Duration,
    },
    /// The response lacks its header, which etcd always sets.
    #[error("response without header")]
    NoHeader,
}

impl From<etcd_client::Error> for RequestError {
    fn from(source: etcd_client::Error) -> Self {
        Self::Failed(Box::new(source))
    }
}

impl RequestError {
    /// Message of etcd's gRPC error; `None` for an error of another kind.
    pub fn etcd_message(&self) -> Option<&str> {
        self.status().map(|(_, message)| message)
    }

    /// Whether etcd refused the request because the user may not make it.
    pub fn is_permission_denied(&self) -> bool {
        self.status()
            .is_some_and(|(code, _)| code == PERMISSION_DENIED)
    }

    /// Whether etcd has compacted the requested revision.
    pub fn is_compacted(&self) -> bool {
        self.etcd_message()
            .is_some_and(|message| message.contains(COMPACTED))
    }

    fn status(&self) -> Option<(i32, &str)> {
        match self {
            Self::Failed(error) => match &**error {
                etcd_client::Error::GRpcStatus(status) => {
                    Some((status.code() as i32, status.message()))
                }
                _ => None,
            },
            Self::Timeout { .. } | Self::NoHeader => None,
        }
    }
}

/// Awaits a response with a deadline. The future is boxed: `etcd_client`'s futures are large, and every caller would
/// include their size.
pub fn with_deadline<T>(
    limit: Duration,
    response: impl Future<Output = Result<T, etcd_client::Error>>,
) -> impl Future<Output = Result<T, RequestError>> {
    let response = Box::pin(response);
    async move {
        match tokio::time::timeout(limit, response).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(RequestError::Timeout { limit }),
        }
    }
}

/// Status of one member, as it reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member that answered.
    pub member: MemberId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Leader as the member reports it; `None` without leader.
    pub leader: Option<MemberId>,
    /// Raft term.
    pub term: u64,
    /// Latest revision of the member.
    pub revision: Revision,
    /// Whether it has no vote.
    pub is_learner: bool,
    /// Size of the database file.
    pub db_bytes: u64,
    /// Bytes in use within the database file.
    pub db_bytes_in_use: u64,
    /// Version of etcd.
    pub version: String,
    /// Errors that the member reports, such as active alarms.
    pub errors: Vec<String>,
    /// Time of the response.
    pub observed_at: Timestamp,
}

/// Returns the status of the member. It answers without a quorum, so a partitioned one may still report itself as leader:
/// see [`read_linearizably`].
///
/// # Errors
/// The member does not answer in time, or with an error.
pub async fn fetch_status(
    client: &mut Client,
    limit: Duration,
) -> Result<MemberStatus, RequestError> {
    let status = with_deadline(limit, client.status()).await?;
    let header = status.header().ok_or(RequestError::NoHeader)?;
    Ok(MemberStatus {
        member: MemberId(header.member_id()),
        cluster: ClusterId(header.cluster_id()),
        // etcd reports 0 for "no leader".
        leader: Some(MemberId(status.leader())).filter(|leader| leader.0 != 0),
        term: status.raft_term(),
        revision: Revision(header.revision()),
        is_learner: status.is_learner(),
        db_bytes: to_size(status.db_size()),
        db_bytes_in_use: to_size(status.raft_used_db_size()),
        version: status.version().to_owned(),
        errors: status.errors().to_vec(),
        observed_at: Timestamp::now(),
    })
}

fn to_size(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or_default()
}

/// An entry of the member list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedMember {
    /// Id of the member.
    pub id: MemberId,
    /// Name; empty until the member has started for the first time.
    pub name: String,
    /// Addresses for the other members.
    pub peer_urls: Vec<String>,
    /// Addresses for clients; empty until the member has started for the first time.
    pub client_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
}

/// Returns all members, in etcd's order.
///
/// # Errors
/// The member does not answer in time, or with an error.
pub async fn list_members(
    client: &mut Client,
    limit: Duration,
) -> Result<Vec<ListedMember>, RequestError> {
    let listed = with_deadline(limit, client.member_list()).await?;
    let members = listed.members().iter().map(|member| ListedMember {
        id: MemberId(member.id()),
        name: member.name().to_owned(),
        peer_urls: member.peer_urls().to_vec(),
        client_urls: member.client_urls().to_vec(),
        is_learner: member.is_learner(),
    });
    Ok(members.collect())
}

/// Performs a linearizable read, which only a member with a quorum answers, and not while it is being defragmented.
/// Returns the latest revision. The key need not exist.
///
/// # Errors
/// The member does not answer in time, or with an error: also if the user may not read the key, which etcd checks after
/// the quorum has confirmed the read.
pub async fn read_linearizably(
    client: &Client,
    key: &str,
    limit: Duration,
) -> Result<Revision, RequestError> {
    let mut kv = client.kv_client();
    let options = GetOptions::new().with_count_only();
    let response = with_deadline(limit, kv.get(key, Some(options))).await?;
    let header = response.header().map(ResponseHeader::revision);
    header.map(Revision).ok_or(RequestError::NoHeader)
}
