//! Looks at every member: does it answer, with the quorum, and how much of its database is air?

use std::fmt;

use etcd_client::Member;
use futures::future::join_all;
use mainstay_ids::{MemberId, RaftIndex};
use mainstay_telemetry::Chain;

use crate::maintenance::{ANSWER, CallError, Connect, ask, reach, read_linearizably};

/// The alarm defragmentation is a remedy for.
const NO_SPACE: &str = "NOSPACE";

/// A cluster as its members describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
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
    pub role: Role,
}

/// Whether a member votes, and how it is then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It does not.
    Learner,
    /// It does.
    Voter(Result<Vitals, Ailment>),
}

/// What a healthy member says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vitals {
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

impl Vitals {
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
pub enum Ailment {
    /// It tells no client URL: it was never started.
    NeverStarted,
    /// It does not answer, or not with the quorum.
    Silent {
        /// In words.
        reason: String,
    },
    /// It knows of no leader.
    NoLeader,
    /// It reports something that defragmentation does not help.
    Complains {
        /// In etcd's words.
        text: String,
    },
}

impl fmt::Display for Ailment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverStarted => f.write_str("was never started"),
            Self::Silent { reason } => write!(f, "does not answer: {reason}"),
            Self::NoLeader => f.write_str("knows of no leader"),
            Self::Complains { text } => write!(f, "reports {text}"),
        }
    }
}

/// Looks at all members at once.
///
/// # Errors
/// Nobody tells who the members are. A member that does not answer is no error but part of the picture.
pub async fn observe(connect: &dyn Connect) -> Result<Observed, CallError> {
    let mut own = reach(connect.own()).await?;
    let list = ask("list the members", ANSWER, own.member_list()).await?;
    let members = join_all(list.members().iter().map(|entry| look(connect, entry))).await;
    Ok(Observed { members })
}

async fn look(connect: &dyn Connect, entry: &Member) -> ObservedMember {
    let role = if entry.is_learner() {
        Role::Learner
    } else {
        Role::Voter(vitals(connect, entry.client_urls()).await)
    };
    ObservedMember {
        id: MemberId(entry.id()),
        name: entry.name().to_owned(),
        role,
    }
}

/// Asks at each URL until one answers.
async fn vitals(connect: &dyn Connect, urls: &[String]) -> Result<Vitals, Ailment> {
    let mut ailment = Ailment::NeverStarted;
    for url in urls {
        match ask_at(connect, url).await {
            Ok(answer) => return answer,
            Err(error) => {
                ailment = Ailment::Silent {
                    reason: Chain(&error).to_string(),
                };
            }
        }
    }
    Err(ailment)
}

async fn ask_at(connect: &dyn Connect, url: &str) -> Result<Result<Vitals, Ailment>, CallError> {
    let mut client = reach(connect.to(url)).await?;
    let status = ask("status", ANSWER, client.status()).await?;
    if status.leader() == 0 {
        return Ok(Err(Ailment::NoLeader));
    }
    let complaint = status.errors().iter().find(|text| !text.contains(NO_SPACE));
    if let Some(text) = complaint {
        return Ok(Err(Ailment::Complains { text: text.clone() }));
    }
    // A member that is being defragmented tells its status all the while, but reads nothing.
    read_linearizably(&client).await?;
    Ok(Ok(Vitals {
        url: url.to_owned(),
        leader: MemberId(status.leader()),
        applied: RaftIndex(status.raft_applied_index()),
        db_bytes: u64::try_from(status.db_size()).unwrap_or(0),
        used_bytes: u64::try_from(status.raft_used_db_size()).unwrap_or(0),
    }))
}
