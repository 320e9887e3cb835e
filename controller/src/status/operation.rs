//! `lastOperation` and `lastErrors`: the current step in one sentence, and what blocks it.

use mainstay_crds::{LastError, LastOperation, OperationState, OperationType};

use super::{Facts, ReconcileFailure, timestamps};
use crate::messages::{describe_refusal, describe_step};
use crate::model::annotations::DISABLE_COMPONENT_PROTECTION;
use crate::model::{Blocker, DriftPolicy, InitFinding, ReconcileStep};

/// Keeps the previous operation and errors, with their times, when the text is unchanged: an unchanged status needs no write.
pub(super) fn compute_operation(
    facts: &Facts<'_>,
) -> (Option<LastOperation>, Option<Vec<LastError>>) {
    let (state, description) = describe_current_state(facts);
    let before = facts
        .previous_status()
        .and_then(|status| status.last_operation.as_ref());
    let type_ = if facts.desired.deletion_timestamp.is_some() {
        OperationType::Delete
    } else {
        OperationType::Reconcile
    };
    let same = before.filter(|before| {
        before.type_ == type_ && before.state == state && before.description == description
    });
    let operation = same.cloned().unwrap_or_else(|| LastOperation {
        type_,
        state,
        description,
        run_id: facts.run_id.to_owned(),
        last_update_time: timestamps::to_whole_seconds(facts.now),
    });
    (Some(operation), compute_last_errors(facts))
}

fn describe_current_state(facts: &Facts<'_>) -> (OperationState, String) {
    // A failed write explains more than the plan it interrupted.
    if let Some(failure) = facts.failure {
        return (OperationState::Error, failure.description.clone());
    }
    match (&facts.plan.step, facts.plan.refusals.first()) {
        (Some(step), _) => {
            let state = match (step.blocker(), describe_data_check(facts)) {
                (Some(blocker), _) if is_error(blocker) => OperationState::Error,
                // A member whose data check refuses to start etcd does not recover by waiting.
                (Some(_), Some(_)) => OperationState::Error,
                (Some(_), None) => OperationState::Requeue,
                (None, _) => OperationState::Processing,
            };
            (
                state,
                append_data_check(facts, describe_step(step, facts.desired)),
            )
        }
        // Only with no step left: a refusal must not hide work in progress.
        (None, Some(refusal)) => (OperationState::Requeue, describe_refusal(refusal)),
        (None, None) if facts.desired.requests.drift_policy == DriftPolicy::Keep => (
            OperationState::Succeeded,
            format!(
                "Cluster matches the spec; manual changes to its objects are kept ({DISABLE_COMPONENT_PROTECTION})"
            ),
        ),
        (None, None) => (
            OperationState::Succeeded,
            "Cluster matches the spec".to_owned(),
        ),
    }
}

/// The message of a data check that refuses to start etcd. Findings that resolve themselves are left out.
fn describe_data_check(facts: &Facts<'_>) -> Option<String> {
    let blocker = facts.plan.step.as_ref().and_then(ReconcileStep::blocker)?;
    // These blockers are about the snapshot, not about a member.
    if matches!(
        blocker,
        Blocker::SnapshotRunning { .. } | Blocker::SnapshotFailed { .. }
    ) {
        return None;
    }
    facts.observed.pods.iter().find_map(|(ordinal, pod)| {
        let is_bad = matches!(
            pod.finding?,
            InitFinding::Refused
                | InitFinding::NothingToRestore
                | InitFinding::Corrupt
                | InitFinding::Foreign
        );
        let message = pod
            .init_message
            .as_ref()
            .filter(|_| is_bad && !pod.is_deleting)?;
        Some(format!("{}: {message}", facts.desired.pod_name(*ordinal)))
    })
}

pub(super) fn append_data_check(facts: &Facts<'_>, message: String) -> String {
    match describe_data_check(facts) {
        Some(check) => format!("{message}; {check}"),
        None => message,
    }
}

/// Whether an operator has to act.
fn is_error(blocker: &Blocker) -> bool {
    match blocker {
        Blocker::SnapshotFailed { .. } => true,
        Blocker::RecoveryBlocked(hold) => hold.is_error(),
        _ => false,
    }
}

/// The failure of this reconcile, or of the change that is blocked. A failed reconcile takes precedence.
fn find_failure(facts: &Facts<'_>) -> Option<ReconcileFailure> {
    let code = match facts.plan.step.as_ref().and_then(ReconcileStep::blocker) {
        Some(Blocker::SnapshotFailed { .. }) => "ERR_CREATE_SNAPSHOT",
        Some(blocker @ Blocker::RecoveryBlocked(_)) if is_error(blocker) => "ERR_DATA_LOST",
        Some(_) if describe_data_check(facts).is_some() => "ERR_MEMBER_DATA",
        _ => return facts.failure.cloned(),
    };
    let (_, description) = describe_current_state(facts);
    Some(facts.failure.cloned().unwrap_or_else(|| ReconcileFailure {
        code: code.to_owned(),
        description,
    }))
}

fn compute_last_errors(facts: &Facts<'_>) -> Option<Vec<LastError>> {
    let failure = &find_failure(facts)?;
    let before = facts
        .previous_status()
        .and_then(|status| status.last_errors.as_ref());
    let same = before
        .into_iter()
        .flatten()
        .find(|error| error.code == failure.code && error.description == failure.description);
    let error = same.cloned().unwrap_or_else(|| LastError {
        code: failure.code.clone(),
        description: failure.description.clone(),
        observed_at: timestamps::to_whole_seconds(facts.now),
    });
    Some(vec![error])
}
