//! What the cluster complains about: a value for `/status` and metrics, nothing is disarmed.

use etcd_client::{AlarmAction, AlarmType};
use mainstay_ids::MemberId;
use serde::Serialize;

use super::{ANSWER, CallError, Connect, ask, reach};

/// The kinds of alarms etcd raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum AlarmKind {
    /// The database reached its quota: only reads and deletions work. Compact, defragment, disarm.
    #[serde(rename = "NOSPACE")]
    NoSpace,
    /// Members do not hold the same data.
    #[serde(rename = "CORRUPT")]
    Corrupt,
}

impl AlarmKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::NoSpace, Self::Corrupt];

    /// etcd's word, also the label of metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        }
    }

    fn from_number(number: i32) -> Option<Self> {
        match number {
            n if n == AlarmType::Nospace as i32 => Some(Self::NoSpace),
            n if n == AlarmType::Corrupt as i32 => Some(Self::Corrupt),
            _ => None,
        }
    }
}

/// An alarm, and who raised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm {
    /// What it is.
    pub kind: AlarmKind,
    /// Whose it is.
    pub member: MemberId,
}

/// The alarms of a cluster, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms(pub Vec<Alarm>);

impl Alarms {
    /// Whether any member raised this one.
    pub fn has(&self, kind: AlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }
}

/// Asks the own member, which knows the alarms of all. Kinds this program does not know are left out.
///
/// # Errors
/// The member does not answer.
pub async fn alarms(connect: &dyn Connect) -> Result<Alarms, CallError> {
    let mut client = reach(connect.own()).await?;
    let call = client.alarm(AlarmAction::Get, AlarmType::None, None);
    let answer = ask("list the alarms", ANSWER, call).await?;
    // By the numbers on the wire: the client's own view takes any number for a known kind.
    let mut found: Vec<Alarm> = answer
        .0
        .alarms
        .iter()
        .filter_map(|raised| {
            Some(Alarm {
                kind: AlarmKind::from_number(raised.alarm)?,
                member: MemberId(raised.member_id),
            })
        })
        .collect();
    found.sort_unstable();
    Ok(Alarms(found))
}
