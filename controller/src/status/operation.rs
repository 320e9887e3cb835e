//! What goes on, in one sentence, and what stopped it.

use mainstay_crds::{LastError, LastOperation, OperationState, OperationType};

use super::{Facts, ReconcileFailure, clock, describe_refusal, describe_step};
use crate::decide::{Blocker, ReconcileStep};
use crate::observe::InitFinding;
use crate::validate::{DriftPolicy, DISABLE_COMPONENT_PROTECTION};

/// The operation and its errors; the ones told before, when they say the same.
pub(super) fn compute_operation(facts: &Facts<'_>) -> (Option<LastOperation>, Option<Vec<LastError>>) {
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
        last_update_time: clock::to_whole_seconds(facts.now),
    });
    (Some(operation), compute_last_errors(facts))
}

fn describe_current_state(facts: &Facts<'_>) -> (OperationState, String) {
    if let Some(failure) = facts.failure {
        return (OperationState::Error, failure.description.clone());
    }
    match (&facts.plan.step, facts.plan.refusals.first()) {
        (Some(step), _) => {
            let state = match (step.blocker(), describe_data_check(facts)) {
                (Some(on), _) if is_error(on) => OperationState::Error,
                (Some(_), Some(_)) => OperationState::Error,
                (Some(_), None) => OperationState::Requeue,
                (None, _) => OperationState::Processing,
            };
            (state, append_data_check(facts, describe_step(step, facts.desired)))
        }
        (None, Some(refusal)) => (OperationState::Requeue, describe_refusal(refusal)),
        (None, None) if facts.desired.requests.drift_policy == DriftPolicy::Keep => (
            OperationState::Succeeded,
            format!(
                "the cluster is what the spec asks for; changes of its objects by hand are left alone ({DISABLE_COMPONENT_PROTECTION})"
            ),
        ),
        (None, None) => (
            OperationState::Succeeded,
            "the cluster is what the spec asks for".to_owned(),
        ),
    }
}

/// What the check of a member's data has against starting etcd, in its own words. What mends itself is left out.
fn describe_data_check(facts: &Facts<'_>) -> Option<String> {
    let on = facts.plan.step.as_ref().and_then(ReconcileStep::blocker)?;
    if matches!(
        on,
        Blocker::SnapshotRunning { .. } | Blocker::SnapshotFailed { .. }
    ) {
        return None;
    }
    facts.observed.pods.iter().find_map(|(ordinal, pod)| {
        let is_bad = matches!(
            pod.finding?,
            InitFinding::Refused | InitFinding::NothingToRestore | InitFinding::Corrupt | InitFinding::Foreign
        );
        let words = pod.init_message.as_ref().filter(|_| is_bad && !pod.is_deleting)?;
        Some(format!("{}: {words}", facts.desired.pod_name(*ordinal)))
    })
}

/// What is waited for, and what the check of a member's data says.
pub(super) fn append_data_check(facts: &Facts<'_>, words: String) -> String {
    match describe_data_check(facts) {
        Some(check) => format!("{words}; {check}"),
        None => words,
    }
}

/// Whether somebody should look.
fn is_error(on: &Blocker) -> bool {
    match on {
        Blocker::SnapshotFailed { .. } => true,
        Blocker::RecoveryBlocked(hold) => hold.is_error(),
        _ => false,
    }
}

/// What stopped the pass, or the change that does not happen.
fn find_failure(facts: &Facts<'_>) -> Option<ReconcileFailure> {
    let code = match facts.plan.step.as_ref().and_then(ReconcileStep::blocker) {
        Some(Blocker::SnapshotFailed { .. }) => "ERR_CREATE_SNAPSHOT",
        Some(on @ Blocker::RecoveryBlocked(_)) if is_error(on) => "ERR_DATA_LOST",
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
        observed_at: clock::to_whole_seconds(facts.now),
    });
    Some(vec![error])
}
