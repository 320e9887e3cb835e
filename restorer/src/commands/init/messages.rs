//! The sentences of `init`: reason and next step of each decision.

use mainstay_verdict::{
    BackupSummary, InitDecision, InitReport, RefuseCause, RestoreCause, Verdict, WaitCause,
};

use crate::failure::CommandFailure;

/// Limit of the faults in a reason: the kubelet keeps 4096 bytes of the whole message.
const MAX_FAULT_CHARS: usize = 1200;

/// Describes the decision and its reason in one sentence.
pub(super) fn describe_decision(report: &InitReport, faults: Option<&str>) -> String {
    let member = &report.member;
    let faults = faults.map(truncate_text).unwrap_or_default();
    match report.decision {
        InitDecision::Bootstrap => format!("member {member} bootstraps a new cluster"),
        InitDecision::Start => {
            let revision = report.data.revision.unwrap_or_default();
            format!("member {member} starts with its data, revision {revision}")
        }
        InitDecision::Join => format!("member {member} joins the running cluster"),
        InitDecision::RestoreRequired(cause) => match cause {
            RestoreCause::DataMissing => {
                format!("data of member {member} is missing, and no other member has a copy")
            }
            RestoreCause::DataCorrupt => format!("data of member {member} is corrupt: {faults}"),
            RestoreCause::DataBehindBackup => describe_lag(report),
            RestoreCause::BackupExists => format!(
                "member {member} would bootstrap a new cluster, but a backup of an earlier cluster exists"
            ),
        },
        InitDecision::Wait(cause) => match cause {
            WaitCause::NotAdded => {
                format!("waiting for member {member} to be added to the running cluster")
            }
            WaitCause::DataLost => {
                format!(
                    "data of member {member} is missing, but the running cluster lists the member as started"
                )
            }
            WaitCause::NotListed => format!("waiting for initial-cluster to list member {member}"),
            WaitCause::ClusterUnreachable => {
                format!("data of member {member} is missing, and no other member answers")
            }
            WaitCause::StoreUnreachable => {
                format!("store unreachable: unknown whether a backup for member {member} exists")
            }
        },
        InitDecision::Refuse(cause) => match cause {
            RefuseCause::DataCorrupt => format!("data of member {member} is corrupt: {faults}"),
            RefuseCause::DataInUse => {
                format!("data of member {member} is in use by another process")
            }
            RefuseCause::WrongVolume => faults,
            RefuseCause::Removed => format!("member {member} was removed from its cluster"),
            RefuseCause::OtherCluster => {
                format!("data of member {member} belongs to another cluster than the running one")
            }
            RefuseCause::HistoryDiverged => format!(
                "data of member {member} is valid and has another history than its newer backup: {faults}"
            ),
            RefuseCause::HistoryUnknown => format!(
                "data of member {member} is valid, and it is unproven that its newer backup has the same history: {faults}"
            ),
            RefuseCause::NothingToRestore => {
                format!("data of member {member} is missing, and there is no backup")
            }
        },
    }
}

fn describe_lag(report: &InitReport) -> String {
    let newest = match report.backup {
        BackupSummary::Present { newest_revision } => newest_revision,
        _ => 0,
    };
    let reached = report.data.highest_revision.unwrap_or_default();
    format!(
        "data of member {} ends at revision {reached}, but its backup reaches revision {newest}",
        report.member
    )
}

/// Shortens a text to [`MAX_FAULT_CHARS`].
fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(MAX_FAULT_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// What an operator can do if the controller does not act.
fn next_step(decision: InitDecision) -> Option<&'static str> {
    match decision {
        InitDecision::Bootstrap | InitDecision::Start | InitDecision::Join => None,
        InitDecision::RestoreRequired(_) => Some(
            "wait for the controller to restore, or run `mainstay-restorer restore` on this volume",
        ),
        InitDecision::Wait(WaitCause::NotAdded) => Some("add the member as a learner"),
        InitDecision::Wait(WaitCause::DataLost) => {
            Some("remove the member from the cluster and add it again as a learner")
        }
        InitDecision::Wait(WaitCause::NotListed) => Some("add the member to initial-cluster"),
        InitDecision::Wait(WaitCause::ClusterUnreachable) => Some("start the other members"),
        InitDecision::Wait(WaitCause::StoreUnreachable) => {
            Some("check the store, its endpoint and its credentials")
        }
        InitDecision::Refuse(cause) => Some(match cause {
            RefuseCause::DataCorrupt => {
                "if the other members are healthy, replace this one; otherwise restore or recover the cluster manually"
            }
            RefuseCause::DataInUse => "stop the process that uses the data directory",
            RefuseCause::WrongVolume => "mount the volume of this member",
            RefuseCause::Removed | RefuseCause::OtherCluster => {
                "give the member an empty volume and add it as a learner"
            }
            RefuseCause::HistoryDiverged | RefuseCause::HistoryUnknown => {
                "to keep the data, set another store prefix; to replace the data by the backup, create an EtcdOpsTask `restore: {}`"
            }
            RefuseCause::NothingToRestore => {
                "to accept the data loss, set initial-cluster-state to new"
            }
        }),
    }
}

/// Turns a decision that keeps etcd from starting into a failure.
pub(super) fn to_failure(report: &InitReport, reason: String) -> CommandFailure {
    let verdict = match report.decision {
        InitDecision::RestoreRequired(_) => Verdict::RestoreRequired,
        InitDecision::Wait(_) => Verdict::Waiting,
        _ => Verdict::Refused,
    };
    let failure = CommandFailure::from_reason(verdict, reason)
        .with_details(serde_json::json!({ "init": report }));
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
    fn longest_message_fits_the_kubelet_limit() {
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
        // Both characters take two bytes in JSON: one in UTF-8, one because of its escape.
        for faults in ["ö".repeat(9000), "\"".repeat(9000)] {
            let text = describe_decision(&report, Some(&faults));
            let message = to_failure(&report, text).to_json().to_string();
            assert!(message.len() <= 4096, "{} bytes", message.len());
        }
    }
}
