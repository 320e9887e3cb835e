//! Decides which member to defragment next, from the observed cluster. Pure.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_ids::{MemberId, RaftIndex};

use super::observation::{MemberRole, ObservedCluster, VoterProblem, VoterStatus};

/// Raft entries a member may lag: the statuses are not read at the same moment, and under load that many entries pass
/// between two.
const MAX_LAG: u64 = 10_000;

/// What starts a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefragmentTrigger {
    /// The schedule: all members.
    Schedule,
    /// Free space: members above the threshold.
    Threshold,
}

/// Free space at which a member is defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Free space in percent of the database file.
    pub free_percent: u64,
    /// Smaller database files are ignored.
    pub minimum_bytes: u64,
}

/// Next step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DefragmentStep {
    /// Defragment this member, which is not the leader or is the only voter.
    Defragment {
        member: MemberId,
        /// Client URL.
        url: String,
    },
    /// Only the leader is left: move leadership away, then observe again.
    MoveLeader {
        leader: MemberId,
        /// Client URL.
        url: String,
        /// New leader.
        to: MemberId,
    },
    Refuse(DefragmentRefusal),
    Done,
}

/// Why no member may be defragmented.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefragmentRefusal {
    NoVoters,
    /// A member that is being defragmented does not answer; a second one could cost the quorum.
    Unhealthy {
        member: MemberId,
        problem: VoterProblem,
    },
    Lagging {
        member: MemberId,
        /// Lag in raft entries.
        entries: u64,
    },
    /// The voters report different leaders.
    NoAgreedLeader,
    /// Defragmenting a single member makes etcd unavailable; only the schedule may choose that time.
    SingleMember,
}

impl fmt::Display for DefragmentRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoters => f.write_str("the member list has no voting member"),
            Self::Unhealthy { member, problem } => write!(f, "member {member} {problem}"),
            Self::Lagging { member, entries } => {
                write!(f, "member {member} lags by {entries} raft entries")
            }
            Self::NoAgreedLeader => f.write_str("members report different leaders"),
            Self::SingleMember => f.write_str(
                "a single-member cluster is defragmented on schedule only, because etcd does not answer meanwhile",
            ),
        }
    }
}

/// Returns the next step. Members in `done` are defragmented already.
///
/// Followers come first, one at a time; the leader comes last, after leadership was moved away. Learners are ignored.
/// While any voter is unhealthy, no member is defragmented.
pub(crate) fn next_step(
    observed: &ObservedCluster,
    done: &BTreeSet<MemberId>,
    trigger: DefragmentTrigger,
    threshold: &Threshold,
) -> DefragmentStep {
    let voters = match collect_healthy_voters(observed) {
        Ok(voters) => voters,
        Err(refusal) => return DefragmentStep::Refuse(refusal),
    };
    let Some(leader) = find_agreed_leader(&voters) else {
        return DefragmentStep::Refuse(DefragmentRefusal::NoAgreedLeader);
    };
    let is_alone = voters.len() == 1;
    if is_alone && trigger == DefragmentTrigger::Threshold {
        return DefragmentStep::Refuse(DefragmentRefusal::SingleMember);
    }
    let is_due = |member: &MemberId, status: &VoterStatus| {
        !done.contains(member)
            && (trigger == DefragmentTrigger::Schedule || threshold.is_exceeded(status))
    };
    let due = || voters.iter().filter(|(id, status)| is_due(id, status));
    if let Some((member, status)) = due().find(|(id, _)| *id != leader || is_alone) {
        return DefragmentStep::Defragment {
            member: *member,
            url: status.url.clone(),
        };
    }
    let Some((leader, status)) = due().next() else {
        return DefragmentStep::Done;
    };
    let followers = voters.iter().filter(|(id, _)| id != leader);
    // The follower with the highest applied index takes over fastest.
    match followers.max_by_key(|(_, status)| status.applied) {
        Some((to, _)) => DefragmentStep::MoveLeader {
            leader: *leader,
            url: status.url.clone(),
            to: *to,
        },
        None => DefragmentStep::Done,
    }
}

impl Threshold {
    fn is_exceeded(&self, status: &VoterStatus) -> bool {
        status.db_bytes >= self.minimum_bytes && status.free_percent() >= self.free_percent
    }
}

/// Returns the voters if all are healthy and none lags.
fn collect_healthy_voters(
    observed: &ObservedCluster,
) -> Result<Vec<(MemberId, &VoterStatus)>, DefragmentRefusal> {
    let mut voters = Vec::new();
    for member in &observed.members {
        match &member.role {
            MemberRole::Learner => {}
            MemberRole::Voter(Ok(status)) => voters.push((member.id, status)),
            MemberRole::Voter(Err(problem)) => {
                return Err(DefragmentRefusal::Unhealthy {
                    member: member.id,
                    problem: problem.clone(),
                });
            }
        }
    }
    let applied = voters.iter().map(|(_, status)| status.applied);
    let RaftIndex(newest) = applied.max().ok_or(DefragmentRefusal::NoVoters)?;
    for (member, status) in &voters {
        let entries = newest - status.applied.0;
        if entries > MAX_LAG {
            return Err(DefragmentRefusal::Lagging {
                member: *member,
                entries,
            });
        }
    }
    Ok(voters)
}

/// Returns the leader if all voters report the same one and it is a voter.
fn find_agreed_leader(voters: &[(MemberId, &VoterStatus)]) -> Option<MemberId> {
    let (_, first) = voters.first()?;
    let leader = first.leader;
    let all_agree = voters.iter().all(|(_, status)| status.leader == leader);
    let is_voter = voters.iter().any(|(id, _)| *id == leader);
    (all_agree && is_voter).then_some(leader)
}

#[cfg(test)]
mod tests;
