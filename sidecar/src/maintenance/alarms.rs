//! Reads the active alarms for `/status` and the metrics. Alarms are never disarmed here.

use etcd_client::{AlarmAction, AlarmType};
use mainstay_ids::MemberId;
use serde::Serialize;

use super::{CallError, Connect, REQUEST_TIMEOUT, call_with_timeout, connect_with_timeout};

/// Kind of an etcd alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ClusterAlarmKind {
    /// The database reached its quota: etcd accepts reads and deletes only. Fix: compact, defragment, disarm.
    #[serde(rename = "NOSPACE")]
    NoSpace,
    /// The data of the members differs.
    #[serde(rename = "CORRUPT")]
    Corrupt,
}

impl ClusterAlarmKind {
    pub(crate) const ALL: [Self; 2] = [Self::NoSpace, Self::Corrupt];

    /// etcd's name, also the metric label.
    pub(crate) fn as_str(self) -> &'static str {
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

/// An active alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterAlarm {
    pub kind: ClusterAlarmKind,
    /// Member that raised it.
    pub member: MemberId,
}

/// Active alarms of a cluster, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterAlarms(pub Vec<ClusterAlarm>);

impl ClusterAlarms {
    pub fn has(&self, kind: ClusterAlarmKind) -> bool {
        self.0.iter().any(|alarm| alarm.kind == kind)
    }
}

/// Reads the alarms of all members from the own member. Unknown kinds are ignored.
///
/// # Errors
/// The member does not answer.
pub async fn list_alarms(connect: &dyn Connect) -> Result<ClusterAlarms, CallError> {
    let mut client = connect_with_timeout(connect.connect_own()).await?;
    let call = client.alarm(AlarmAction::Get, AlarmType::None, None);
    let answer = call_with_timeout("list alarms", REQUEST_TIMEOUT, call).await?;
    // Read the raw numbers: the client maps an unknown number to a known kind.
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
