//! What init says to people.

use mainstay_verdict::{BackupSummary, InitDecision, InitReport, RefuseCause, RestoreCause, WaitCause};

use crate::failure::{CommandFailure, ExitVerdict};

/// A termination message has 4096 bytes for everything.
const MAX_FAULT_CHARS: usize = 1200;

/// What was found and what follows, in one sentence.
pub(super) fn describe_decision(report: &InitReport, faults: Option<&str>) -> String {
    let member = &report.member;
    let faults = faults.map(truncate_text).unwrap_or_default();
    match report.decision {
        InitDecision::Bootstrap => format!("{member} begins a new cluster"),
        InitDecision::Start => {
            let revision = report.data.revision.unwrap_or_default();
            format!("{member} goes on with its data, revision {revision}")
        }
        InitDecision::Join => format!("{member} joins the running cluster"),
        InitDecision::RestoreRequired(cause) => match cause {
            RestoreCause::DataMissing => {
                format!("{member} has lost its data, and no other member has it")
            }
            RestoreCause::DataCorrupt => format!("the data of {member} is damaged: {faults}"),
            RestoreCause::DataBehindBackup => describe_lag(report),
            RestoreCause::BackupExists => format!(
                "{member} is to begin a new cluster, and the backup of a former one is there"
            ),
        },
        InitDecision::Wait(cause) => match cause {
            WaitCause::NotAdded => format!("the running cluster does not know {member} yet"),
            WaitCause::DataLost => {
                format!("the running cluster knows {member} with data, and here is none")
            }
            WaitCause::NotListed => format!("the configuration does not list {member} yet"),
            WaitCause::ClusterUnreachable => {
                format!("{member} has no data, and no other member answers")
            }
            WaitCause::StoreUnreachable => {
                format!(
                    "whether there is a backup for {member} cannot be told: no answer from the store"
                )
            }
        },
        InitDecision::Refuse(cause) => match cause {
            RefuseCause::DataCorrupt => format!("the data of {member} is damaged: {faults}"),
            RefuseCause::DataInUse => format!("another process uses the data of {member}"),
            RefuseCause::WrongVolume => faults,
            RefuseCause::Removed => format!("{member} was removed from its cluster"),
            RefuseCause::OtherCluster => {
                format!("the data of {member} is of another cluster than the one that runs")
            }
            RefuseCause::NothingToRestore => {
                format!("{member} has lost its data, and there is no backup")
            }
        },
    }
}

fn describe_lag(report: &InitReport) -> String {
    let newest = match report.backup {
        BackupSummary::Present { newest_revision } => newest_revision,
        _ => 0,
    };
    let reach = report.data.highest_revision.unwrap_or_default();
    format!(
        "the data of {} reaches revision {reach}, its backup revision {newest}",
        report.member
    )
}

/// The beginning of a text that may be long.
fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(MAX_FAULT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// What a person can do when nobody else does.
fn next_step(decision: InitDecision) -> Option<&'static str> {
    match decision {
        InitDecision::Bootstrap | InitDecision::Start | InitDecision::Join => None,
        InitDecision::RestoreRequired(_) => Some(
            "`mainstay-restorer restore` with this volume; the controller does it where it may",
        ),
        InitDecision::Wait(WaitCause::NotAdded) => Some("add the member as a learner"),
        InitDecision::Wait(WaitCause::DataLost) => {
            Some("remove the member from the cluster and add it again as a learner")
        }
        InitDecision::Wait(WaitCause::NotListed) => Some("list the member in initial-cluster"),
        InitDecision::Wait(WaitCause::ClusterUnreachable) => Some("start the other members"),
        InitDecision::Wait(WaitCause::StoreUnreachable) => {
            Some("check the store, its address and its credentials")
        }
        InitDecision::Refuse(cause) => Some(match cause {
            RefuseCause::DataCorrupt => {
                "with healthy other members, replace this one; else restore or recover by hand"
            }
            RefuseCause::DataInUse => "stop the process that uses the data",
            RefuseCause::WrongVolume => "mount the right volume",
            RefuseCause::Removed | RefuseCause::OtherCluster => {
                "give the member an empty volume, and add it as a learner"
            }
            RefuseCause::NothingToRestore => "to accept the loss, set initial-cluster-state to new",
        }),
    }
}

/// A decision by which etcd does not start.
pub(super) fn to_failure(report: &InitReport, reason: String) -> CommandFailure {
    let verdict = match report.decision {
        InitDecision::RestoreRequired(_) => ExitVerdict::RestoreRequired,
        InitDecision::Wait(_) => ExitVerdict::Waiting,
        _ => ExitVerdict::Refused,
    };
    let failure =
        CommandFailure::from_reason(verdict, reason).with_details(serde_json::json!({ "init": report }));
    match next_step(report.decision) {
        Some(next) => failure.with_next_step(next),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use mainstay_verdict::{ClusterSummary, DataDirSummary, DataState, MemberRegistration};

    use super::*;

    #[test]
    fn the_longest_message_fits_into_what_the_kubelet_keeps() {
        let report = InitReport {
            version: InitReport::VERSION,
            member: format!("{}-{}", "p".repeat(63), "n".repeat(63)),
            decision: InitDecision::Refuse(RefuseCause::DataCorrupt),
            data: DataDirSummary {
                revision: Some(i64::MAX),
                highest_revision: Some(i64::MAX),
                member_id: Some("f".repeat(16)),
                cluster_id: Some("f".repeat(16)),
                ..DataDirSummary::from_state(DataState::Corrupt)
            },
            cluster: ClusterSummary::Found {
                cluster_id: "f".repeat(16),
                has_leader: true,
                members: usize::MAX,
                mine: MemberRegistration::Started,
            },
            backup: BackupSummary::Present {
                newest_revision: i64::MAX,
            },
        };
        // Two bytes for each character, in UTF-8 and again with an escape.
        for faults in ["ö".repeat(9000), "\"".repeat(9000)] {
            let text = describe_decision(&report, Some(&faults));
            let message = to_failure(&report, text).to_json().to_string();
            assert!(message.len() <= 4096, "{} bytes", message.len());
        }
    }
}
