//! Whose turn it is: a pure function of what was seen.

use std::collections::BTreeSet;
use std::fmt;

use mainstay_ids::{MemberId, RaftIndex};

use super::observe::{Ailment, Observed, Role, Vitals};

/// Entries a member may be behind: statuses are taken one after the other, under load that many pass between two.
const MOST_LAG: u64 = 10_000;

/// Why members are defragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
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
pub enum Step {
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
    Refuse(Refusal),
    /// Nothing is left to do.
    Done,
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The member list has no voter.
    NoVoters,
    /// One more member that does not answer could cost the quorum.
    Unhealthy {
        /// Who.
        member: MemberId,
        /// What is wrong with it.
        ailment: Ailment,
    },
    /// A member has to catch up first.
    Lagging {
        /// Who.
        member: MemberId,
        /// How many entries it is behind.
        entries: u64,
    },
    /// Members do not agree who leads.
    LeaderUnclear,
    /// etcd would not answer meanwhile, and nobody chose the time.
    Alone,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVoters => f.write_str("the member list has no voter"),
            Self::Unhealthy { member, ailment } => write!(f, "member {member} {ailment}"),
            Self::Lagging { member, entries } => {
                write!(f, "member {member} is {entries} entries behind")
            }
            Self::LeaderUnclear => f.write_str("members do not agree who leads"),
            Self::Alone => f.write_str(
                "a single member is defragmented on schedule only, etcd would stand still",
            ),
        }
    }
}

/// Says what to do next. `done` had their turn.
///
/// Followers come first, one at a time, the leader last and only after it has handed over. Learners are left alone.
/// While any voter is not well, nobody has a turn.
pub fn next(
    seen: &Observed,
    done: &BTreeSet<MemberId>,
    trigger: Trigger,
    threshold: &Threshold,
) -> Step {
    let voters = match voters(seen) {
        Ok(voters) => voters,
        Err(refusal) => return Step::Refuse(refusal),
    };
    let Some(leader) = agreed_leader(&voters) else {
        return Step::Refuse(Refusal::LeaderUnclear);
    };
    let is_alone = voters.len() == 1;
    if is_alone && trigger == Trigger::Threshold {
        return Step::Refuse(Refusal::Alone);
    }
    let is_due = |member: &MemberId, vitals: &Vitals| {
        !done.contains(member) && (trigger == Trigger::Schedule || threshold.is_met(vitals))
    };
    let due = || voters.iter().filter(|(id, vitals)| is_due(id, vitals));
    if let Some((member, vitals)) = due().find(|(id, _)| *id != leader || is_alone) {
        return Step::Defragment {
            member: *member,
            url: vitals.url.clone(),
        };
    }
    let Some((leader, vitals)) = due().next() else {
        return Step::Done;
    };
    let followers = voters.iter().filter(|(id, _)| id != leader);
    match followers.max_by_key(|(_, vitals)| vitals.applied) {
        Some((to, _)) => Step::MoveLeader {
            leader: *leader,
            url: vitals.url.clone(),
            to: *to,
        },
        None => Step::Done,
    }
}

impl Threshold {
    fn is_met(&self, vitals: &Vitals) -> bool {
        vitals.db_bytes >= self.minimum_bytes && vitals.free_percent() >= self.free_percent
    }
}

/// The voters, all of them well and none far behind.
fn voters(seen: &Observed) -> Result<Vec<(MemberId, &Vitals)>, Refusal> {
    let mut voters = Vec::new();
    for member in &seen.members {
        match &member.role {
            Role::Learner => {}
            Role::Voter(Ok(vitals)) => voters.push((member.id, vitals)),
            Role::Voter(Err(ailment)) => {
                return Err(Refusal::Unhealthy {
                    member: member.id,
                    ailment: ailment.clone(),
                });
            }
        }
    }
    let applied = voters.iter().map(|(_, vitals)| vitals.applied);
    let RaftIndex(ahead) = applied.max().ok_or(Refusal::NoVoters)?;
    for (member, vitals) in &voters {
        let entries = ahead - vitals.applied.0;
        if entries > MOST_LAG {
            return Err(Refusal::Lagging {
                member: *member,
                entries,
            });
        }
    }
    Ok(voters)
}

/// The voter all of them take for the leader.
fn agreed_leader(voters: &[(MemberId, &Vitals)]) -> Option<MemberId> {
    let (_, first) = voters.first()?;
    let leader = first.leader;
    let all_agree = voters.iter().all(|(_, vitals)| vitals.leader == leader);
    let is_voter = voters.iter().any(|(id, _)| *id == leader);
    (all_agree && is_voter).then_some(leader)
}

#[cfg(test)]
mod tests;
