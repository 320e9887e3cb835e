//! Observes every member: whether it answers a linearizable read, and how much of its database is free.

use std::fmt;

use futures::future::join_all;
use mainstay_etcd::ListedMember;
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_telemetry::ErrorChain;

use crate::maintenance::{
    CallError, Connect, REQUEST_TIMEOUT, call_with_timeout, confirm_quorum, connect_with_timeout,
    read_members,
};

/// The alarm that defragmentation helps against.
const NO_SPACE: &str = "NOSPACE";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedCluster {
    pub members: Vec<ObservedMember>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMember {
    pub id: MemberId,
    /// Empty for a member that never started.
    pub(crate) name: String,
    pub role: MemberRole,
}

/// Whether a member votes, and the status of a voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// Not observed further.
    Learner,
    Voter(Result<VoterStatus, VoterProblem>),
}

/// Status of a healthy voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterStatus {
    /// Client URL at which it answered.
    pub url: String,
    /// Leader, as this member reports it.
    pub leader: MemberId,
    pub(crate) applied: RaftIndex,
    /// Size of its database file.
    pub db_bytes: u64,
    /// Used part of the database file.
    pub(crate) used_bytes: u64,
}

impl VoterStatus {
    /// Free space in percent of the database, rounded down.
    pub fn free_percent(&self) -> u64 {
        let free = self.db_bytes.saturating_sub(self.used_bytes);
        free.saturating_mul(100)
            .checked_div(self.db_bytes)
            .unwrap_or(0)
    }
}

/// Why a voter is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VoterProblem {
    /// The member list has no client URL for it.
    NeverStarted,
    /// It does not answer, or its linearizable read fails.
    Unreachable {
        reason: String,
    },
    NoLeader,
    /// It reports an error other than the NOSPACE alarm.
    ReportsError {
        text: String,
    },
}

impl fmt::Display for VoterProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverStarted => f.write_str("never started"),
            Self::Unreachable { reason } => write!(f, "does not answer: {reason}"),
            Self::NoLeader => f.write_str("has no leader"),
            Self::ReportsError { text } => write!(f, "reports {text}"),
        }
    }
}

/// Observes all members concurrently.
///
/// # Errors
/// The members cannot be listed. A member that does not answer is not an error; it is observed as unhealthy.
pub async fn observe_cluster(connect: &dyn Connect) -> Result<ObservedCluster, CallError> {
    let mut own = connect_with_timeout(connect.connect_own()).await?;
    let list = read_members(&mut own).await?;
    let members = join_all(list.iter().map(|entry| observe_member(connect, entry))).await;
    Ok(ObservedCluster { members })
}

async fn observe_member(connect: &dyn Connect, entry: &ListedMember) -> ObservedMember {
    let role = if entry.is_learner {
        MemberRole::Learner
    } else {
        MemberRole::Voter(read_voter_status(connect, &entry.client_urls).await)
    };
    ObservedMember {
        id: entry.id,
        name: entry.name.clone(),
        role,
    }
}

/// Reads the status at each URL until one answers.
async fn read_voter_status(
    connect: &dyn Connect,
    urls: &[String],
) -> Result<VoterStatus, VoterProblem> {
    let mut problem = VoterProblem::NeverStarted;
    for url in urls {
        match read_status_at(connect, url).await {
            Ok(answer) => return answer,
            Err(error) => {
                problem = VoterProblem::Unreachable {
                    reason: ErrorChain(&error).to_string(),
                };
            }
        }
    }
    Err(problem)
}

async fn read_status_at(
    connect: &dyn Connect,
    url: &str,
) -> Result<Result<VoterStatus, VoterProblem>, CallError> {
    let mut client = connect_with_timeout(connect.connect_to(url)).await?;
    let status = call_with_timeout("status", REQUEST_TIMEOUT, client.status()).await?;
    if status.leader() == 0 {
        return Ok(Err(VoterProblem::NoLeader));
    }
    // NOSPACE must not block defragmentation, which is its remedy.
    let other_error = status.errors().iter().find(|text| !text.contains(NO_SPACE));
    if let Some(text) = other_error {
        return Ok(Err(VoterProblem::ReportsError { text: text.clone() }));
    }
    // A member that is being defragmented still answers status requests, but no reads.
    confirm_quorum(&client).await?;
    Ok(Ok(VoterStatus {
        url: url.to_owned(),
        leader: MemberId(status.leader()),
        applied: RaftIndex(status.raft_applied_index()),
        db_bytes: u64::try_from(status.db_size()).unwrap_or(0),
        used_bytes: u64::try_from(status.raft_used_db_size()).unwrap_or(0),
    }))
}
