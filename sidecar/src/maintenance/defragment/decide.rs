//! Whose turn it is: a pure function of what was seen.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_ids::{MemberId, RaftIndex};

use super::observe::{VoterProblem, ObservedCluster, MemberRole, VoterStatus};

/// Entries a member may be behind: statuses are taken one after the other, under load that many pass between two.
const MAX_LAG: u64 = 10_000;

/// Why members are defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefragmentTrigger {
    /// It is time: all of them.
    Schedule,
    /// Some are full of air: those.
    Threshold,
}

/// When a member is full of air.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Percent of the file that is free.
    pub free_percent: u64,
    /// Smaller files are left alone.
    pub minimum_bytes: u64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefragmentStep {
    /// Defragment this member, which does not lead (or is alone).
    Defragment {
        /// Who.
        member: MemberId,
        /// Where it answers.
        url: String,
    },
    /// It is the leader's turn: move leadership away first, then look again.
    MoveLeader {
        /// Who leads.
        leader: MemberId,
        /// Where it answers.
        url: String,
        /// Who is to lead.
        to: MemberId,
    },
    /// Not now.
    Refuse(DefragmentRefusal),
    /// Nothing is left to do.
    Done,
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DefragmentRefusal {
    /// The member list has no voter.
    NoVoters,
    /// One more member that does not answer could cost the quorum.
    Unhealthy {
        /// Who.
        member: MemberId,
        /// What is wrong with it.
        problem: VoterProblem,
    },
    /// A member has to catch up first.
    Lagging {
        /// Who.
        member: MemberId,
        /// How many entries it is behind.
        entries: u64,
    },
    /// Members do not agree who leads.
    NoAgreedLeader,
    /// etcd would not answer meanwhile, and nobody chose the time.
    SingleMember,
}

impl fmt::Display for DefragmentRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoters => f.write_str("the member list has no voter"),
            Self::Unhealthy { member, problem } => write!(f, "member {member} {problem}"),
            Self::Lagging { member, entries } => {
                write!(f, "member {member} is {entries} entries behind")
            }
            Self::NoAgreedLeader => f.write_str("members do not agree who leads"),
            Self::SingleMember => f.write_str(
                "a single member is defragmented on schedule only, etcd would stand still",
            ),
        }
    }
}

/// Says what to do next. `done` had their turn.
///
/// Followers come first, one at a time, the leader last and only after it has handed over. Learners are left alone.
/// While any voter is not well, nobody has a turn.
pub fn next_step(
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
    let is_due = |member: &MemberId, vitals: &VoterStatus| {
        !done.contains(member) && (trigger == DefragmentTrigger::Schedule || threshold.is_exceeded(vitals))
    };
    let due = || voters.iter().filter(|(id, vitals)| is_due(id, vitals));
    if let Some((member, vitals)) = due().find(|(id, _)| *id != leader || is_alone) {
        return DefragmentStep::Defragment {
            member: *member,
            url: vitals.url.clone(),
        };
    }
    let Some((leader, vitals)) = due().next() else {
        return DefragmentStep::Done;
    };
    let followers = voters.iter().filter(|(id, _)| id != leader);
    match followers.max_by_key(|(_, vitals)| vitals.applied) {
        Some((to, _)) => DefragmentStep::MoveLeader {
            leader: *leader,
            url: vitals.url.clone(),
            to: *to,
        },
        None => DefragmentStep::Done,
    }
}

impl Threshold {
    fn is_exceeded(&self, vitals: &VoterStatus) -> bool {
        vitals.db_bytes >= self.minimum_bytes && vitals.free_percent() >= self.free_percent
    }
}

/// The voters, all of them well and none far behind.
fn collect_healthy_voters(observed: &ObservedCluster) -> Result<Vec<(MemberId, &VoterStatus)>, DefragmentRefusal> {
    let mut voters = Vec::new();
    for member in &observed.members {
        match &member.role {
            MemberRole::Learner => {}
            MemberRole::Voter(Ok(vitals)) => voters.push((member.id, vitals)),
            MemberRole::Voter(Err(problem)) => {
                return Err(DefragmentRefusal::Unhealthy {
                    member: member.id,
                    problem: problem.clone(),
                });
            }
        }
    }
    let applied = voters.iter().map(|(_, vitals)| vitals.applied);
    let RaftIndex(ahead) = applied.max().ok_or(DefragmentRefusal::NoVoters)?;
    for (member, vitals) in &voters {
        let entries = ahead - vitals.applied.0;
        if entries > MAX_LAG {
            return Err(DefragmentRefusal::Lagging {
                member: *member,
                entries,
            });
        }
    }
    Ok(voters)
}

/// The voter all of them take for the leader.
fn find_agreed_leader(voters: &[(MemberId, &VoterStatus)]) -> Option<MemberId> {
    let (_, first) = voters.first()?;
    let leader = first.leader;
    let all_agree = voters.iter().all(|(_, vitals)| vitals.leader == leader);
    let is_voter = voters.iter().any(|(id, _)| *id == leader);
    (all_agree && is_voter).then_some(leader)
}

#[cfg(test)]
mod tests;
