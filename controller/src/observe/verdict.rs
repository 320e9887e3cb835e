//! The verdict of `mainstay-restorer init`, as it stands in the termination message of the init container.

use mainstay_verdict::{Decision, Message, RefuseCause, RestoreCause, WaitCause};

use super::Finding;

/// What an init container said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) finding: Finding,
    /// In words.
    pub(super) words: Option<String>,
    /// The newest revision of the data directory.
    pub(super) reaches: Option<i64>,
}

/// What the words mean, and why that is so; `None` for words that are no verdict, such as the last lines of a log.
pub(super) fn said(words: &str) -> Option<Said> {
    let message = Message::read(words).ok()?;
    let report = message.init().ok()?;
    Some(Said {
        finding: of(report.decision),
        words: message.reason,
        reaches: report.data.highest_revision.or(report.data.revision),
    })
}

fn of(decision: Decision) -> Finding {
    match decision {
        Decision::Bootstrap | Decision::Start | Decision::Join => Finding::Good,
        Decision::RestoreRequired(RestoreCause::BackupExists) => Finding::Unborn,
        Decision::RestoreRequired(_) => Finding::NeedsRestore,
        Decision::Wait(cause) => match cause {
            WaitCause::NotAdded | WaitCause::DataLost => Finding::Waits,
            WaitCause::ClusterUnreachable => Finding::NeedsRestore,
            WaitCause::NotListed | WaitCause::StoreUnreachable => Finding::Refused,
        },
        Decision::Refuse(cause) => match cause {
            RefuseCause::DataCorrupt => Finding::Corrupt,
            RefuseCause::Removed | RefuseCause::OtherCluster => Finding::Foreign,
            RefuseCause::NothingToRestore => Finding::Hopeless,
            // Not ours to judge, let alone to give up.
            RefuseCause::DataInUse | RefuseCause::WrongVolume => Finding::Refused,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_damage_and_removal_make_a_volume_useless() {
        let useless = [
            Decision::Refuse(RefuseCause::DataCorrupt),
            Decision::Refuse(RefuseCause::Removed),
            Decision::Refuse(RefuseCause::OtherCluster),
        ];
        for decision in useless {
            assert!(of(decision).is_useless(), "{decision:?}");
        }
        let kept = [
            Decision::Start,
            Decision::Wait(WaitCause::DataLost),
            Decision::Wait(WaitCause::StoreUnreachable),
            Decision::Refuse(RefuseCause::WrongVolume),
            Decision::Refuse(RefuseCause::DataInUse),
        ];
        for decision in kept {
            assert!(!of(decision).is_useless(), "{decision:?}");
        }
    }

    #[test]
    fn the_end_of_a_log_is_no_verdict() {
        assert_eq!(said("panic: out of memory"), None);
        assert_eq!(said(""), None);
    }
}
