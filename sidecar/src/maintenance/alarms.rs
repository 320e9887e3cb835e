//! What the cluster complains about: a value for `/status` and metrics, nothing is disarmed.

use etcd_client::{AlarmAction, AlarmType};
use mainstay_ids::MemberId;
use serde::Serialize;

use super::{REQUEST_TIMEOUT, CallError, Connect, call_with_timeout, connect_with_timeout};

/// The kinds of alarms etcd raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ClusterAlarmKind {
    /// The database reached its quota: only reads and deletions work. Compact, defragment, disarm.
    #[serde(rename = "NOSPACE")]
    NoSpace,
    /// Members do not hold the same data.
    #[serde(rename = "CORRUPT")]
    Corrupt,
}

impl ClusterAlarmKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::NoSpace, Self::Corrupt];

    /// etcd's word, also the label of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSpace => "NOSPACE",
            Self::Corrupt => "CORRUPT",
        }
    }

    fn from_wire(number: i32) -> Option<Self> {
        match number {
            n if n == AlarmType::Nospace as i32 => Some(Self::NoSpace),
            n if n == AlarmType::Corrupt as i32 => Some(Self::Corrupt),
            _ => None,
        }
    }
}

/// An alarm, and who raised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterAlarm {
    /// What it is.
    pub kind: ClusterAlarmKind,
    /// Whose it is.
    pub member: MemberId,
}

/// The alarms of a cluster, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAlarms(pub Vec<ClusterAlarm>);

impl ClusterAlarms {
    /// Whether any member raised this one.
    pub fn has(&self, kind: ClusterAlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }
}

/// Asks the own member, which knows the alarms of all. Kinds this program does not know are left out.
///
/// # Errors
/// The member does not answer.
pub async fn list_alarms(connect: &dyn Connect) -> Result<ClusterAlarms, CallError> {
    let mut client = connect_with_timeout(connect.connect_own()).await?;
    let call = client.alarm(AlarmAction::Get, AlarmType::None, None);
    let answer = call_with_timeout("list the alarms", REQUEST_TIMEOUT, call).await?;
    // By the numbers on the wire: the client's own view takes any number for a known kind.
    let mut found: Vec<ClusterAlarm> = answer
        .0
        .alarms
        .iter()
        .filter_map(|raised| {
            Some(ClusterAlarm {
                kind: ClusterAlarmKind::from_wire(raised.alarm)?,
                member: MemberId(raised.member_id),
            })
        })
        .collect();
    found.sort_unstable();
    Ok(ClusterAlarms(found))
}
