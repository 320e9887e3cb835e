//! Looks at every member: does it answer, with the quorum, and how much of its database is air?

use std::fmt;

use etcd_client::Member;
use futures::future::join_all;
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_telemetry::ErrorChain;

use crate::maintenance::{REQUEST_TIMEOUT, CallError, Connect, call_with_timeout, connect_with_timeout, read_linearizably};

/// The alarm defragmentation is a remedy for.
const NO_SPACE: &str = "NOSPACE";

/// A cluster as its members describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedCluster {
    /// Every member of the member list.
    pub members: Vec<ObservedMember>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMember {
    /// Who it is.
    pub id: MemberId,
    /// Its name; empty before it was ever started.
    pub name: String,
    /// Whether it votes. One that does not is not looked at further.
    pub role: MemberRole,
}

/// Whether a member votes, and how it is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// It does not.
    Learner,
    /// It does.
    Voter(Result<VoterStatus, VoterProblem>),
}

/// What a healthy member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterStatus {
    /// The client URL it answered at.
    pub url: String,
    /// Who leads, as it sees it.
    pub leader: MemberId,
    /// The last entry it applied.
    pub applied: RaftIndex,
    /// Bytes of its database file.
    pub db_bytes: u64,
    /// Bytes of it that are in use.
    pub used_bytes: u64,
}

impl VoterStatus {
    /// How much of the database is free, in percent, rounded down.
    pub fn free_percent(&self) -> u64 {
        let free = self.db_bytes.saturating_sub(self.used_bytes);
        free.saturating_mul(100)
            .checked_div(self.db_bytes)
            .unwrap_or(0)
    }
}

/// Why a member is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VoterProblem {
    /// It tells no client URL: it was never started.
    NeverStarted,
    /// It does not answer, or not with the quorum.
    Unreachable {
        /// In words.
        reason: String,
    },
    /// It knows of no leader.
    NoLeader,
    /// It reports something that defragmentation does not help.
    ReportsError {
        /// In etcd's words.
        text: String,
    },
}

impl fmt::Display for VoterProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverStarted => f.write_str("was never started"),
            Self::Unreachable { reason } => write!(f, "does not answer: {reason}"),
            Self::NoLeader => f.write_str("knows of no leader"),
            Self::ReportsError { text } => write!(f, "reports {text}"),
        }
    }
}

/// Looks at all members at once.
///
/// # Errors
/// Nobody tells who the members are. A member that does not answer is no error but part of the picture.
pub async fn observe_cluster(connect: &dyn Connect) -> Result<ObservedCluster, CallError> {
    let mut own = connect_with_timeout(connect.connect_own()).await?;
    let list = call_with_timeout("list the members", REQUEST_TIMEOUT, own.member_list()).await?;
    let members = join_all(list.members().iter().map(|entry| observe_member(connect, entry))).await;
    Ok(ObservedCluster { members })
}

async fn observe_member(connect: &dyn Connect, entry: &Member) -> ObservedMember {
    let role = if entry.is_learner() {
        MemberRole::Learner
    } else {
        MemberRole::Voter(read_voter_status(connect, entry.client_urls()).await)
    };
    ObservedMember {
        id: MemberId(entry.id()),
        name: entry.name().to_owned(),
        role,
    }
}

/// Asks at each URL until one answers.
async fn read_voter_status(connect: &dyn Connect, urls: &[String]) -> Result<VoterStatus, VoterProblem> {
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

async fn read_status_at(connect: &dyn Connect, url: &str) -> Result<Result<VoterStatus, VoterProblem>, CallError> {
    let mut client = connect_with_timeout(connect.connect_to(url)).await?;
    let status = call_with_timeout("status", REQUEST_TIMEOUT, client.status()).await?;
    if status.leader() == 0 {
        return Ok(Err(VoterProblem::NoLeader));
    }
    let complaint = status.errors().iter().find(|text| !text.contains(NO_SPACE));
    if let Some(text) = complaint {
        return Ok(Err(VoterProblem::ReportsError { text: text.clone() }));
    }
    // A member that is being defragmented tells its status all the while, but reads nothing.
    read_linearizably(&client).await?;
    Ok(Ok(VoterStatus {
        url: url.to_owned(),
        leader: MemberId(status.leader()),
        applied: RaftIndex(status.raft_applied_index()),
        db_bytes: u64::try_from(status.db_size()).unwrap_or(0),
        used_bytes: u64::try_from(status.raft_used_db_size()).unwrap_or(0),
    }))
}
