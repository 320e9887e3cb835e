//! Parses the verdict of `mainstay-restorer init` from the termination message of the init container.

use crate::model::InitFinding;
use mainstay_verdict::{InitDecision, RefuseCause, RestoreCause, TerminationMessage, WaitCause};

/// Verdict of an init container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InitVerdict {
    pub(super) finding: InitFinding,
    pub(super) message: Option<String>,
    /// Newest revision in the data directory.
    pub(super) data_revision: Option<i64>,
}

/// Parses a termination message; `None` when it is not a verdict. The kubelet puts the end of the log there when the program
/// wrote none.
pub(super) fn parse_init_verdict(text: &str) -> Option<InitVerdict> {
    let message = TerminationMessage::parse(text).ok()?;
    let report = message.init_report().ok()?;
    Some(InitVerdict {
        finding: to_finding(report.decision),
        message: message.reason,
        data_revision: report.data.highest_revision.or(report.data.revision),
    })
}

fn to_finding(decision: InitDecision) -> InitFinding {
    match decision {
        InitDecision::Bootstrap | InitDecision::Start | InitDecision::Join => InitFinding::CanStart,
        InitDecision::RestoreRequired(RestoreCause::BackupExists) => InitFinding::BackupExists,
        InitDecision::RestoreRequired(_) => InitFinding::NeedsRestore,
        InitDecision::Wait(cause) => match cause {
            WaitCause::NotAdded | WaitCause::DataLost => InitFinding::WaitingToJoin,
            WaitCause::ClusterUnreachable => InitFinding::NeedsRestore,
            WaitCause::NotListed | WaitCause::StoreUnreachable => InitFinding::Refused,
        },
        InitDecision::Refuse(cause) => match cause {
            RefuseCause::DataCorrupt => InitFinding::Corrupt,
            RefuseCause::Removed | RefuseCause::OtherCluster => InitFinding::Foreign,
            RefuseCause::NothingToRestore => InitFinding::NothingToRestore,
            // The volume belongs to someone else, or it is unproven that the backup replaces its data: never deleted.
            RefuseCause::DataInUse
            | RefuseCause::WrongVolume
            | RefuseCause::HistoryDiverged
            | RefuseCause::HistoryUnknown => InitFinding::Refused,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_corrupt_removed_or_foreign_data_makes_a_volume_unusable() {
        let useless = [
            InitDecision::Refuse(RefuseCause::DataCorrupt),
            InitDecision::Refuse(RefuseCause::Removed),
            InitDecision::Refuse(RefuseCause::OtherCluster),
        ];
        for decision in useless {
            assert!(to_finding(decision).is_volume_unusable(), "{decision:?}");
        }
        let kept = [
            InitDecision::Start,
            InitDecision::Wait(WaitCause::DataLost),
            InitDecision::Wait(WaitCause::StoreUnreachable),
            InitDecision::Refuse(RefuseCause::WrongVolume),
            InitDecision::Refuse(RefuseCause::DataInUse),
            InitDecision::Refuse(RefuseCause::HistoryDiverged),
            InitDecision::Refuse(RefuseCause::HistoryUnknown),
        ];
        for decision in kept {
            assert!(!to_finding(decision).is_volume_unusable(), "{decision:?}");
        }
    }

    #[test]
    fn log_tail_is_not_parsed_as_a_verdict() {
        assert_eq!(parse_init_verdict("panic: out of memory"), None);
        assert_eq!(parse_init_verdict(""), None);
    }
}
