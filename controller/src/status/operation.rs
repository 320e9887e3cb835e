//! What goes on, in one sentence, and what stopped it.

use mainstay_crds::{LastError, LastOperation, OperationState, OperationType};

use super::{Facts, Failure, clock, describe_refusal, describe_step};
use crate::decide::{Blocker, Step};
use crate::observe::Finding;
use crate::validate::{Drift, UNPROTECTED};

/// The operation and its errors; the ones told before, when they say the same.
pub(super) fn of(facts: &Facts<'_>) -> (Option<LastOperation>, Option<Vec<LastError>>) {
    let (state, description) = now(facts);
    let before = facts
        .before()
        .and_then(|status| status.last_operation.as_ref());
    let type_ = if facts.wanted.deleted.is_some() {
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
        last_update_time: clock::time(facts.now),
    });
    (Some(operation), errors(facts))
}

fn now(facts: &Facts<'_>) -> (OperationState, String) {
    if let Some(failure) = facts.failure {
        return (OperationState::Error, failure.description.clone());
    }
    match (&facts.plan.step, facts.plan.refusals.first()) {
        (Some(step), _) => {
            let state = match (step.blocker(), check(facts)) {
                (Some(on), _) if is_trouble(on) => OperationState::Error,
                (Some(_), Some(_)) => OperationState::Error,
                (Some(_), None) => OperationState::Requeue,
                (None, _) => OperationState::Processing,
            };
            (state, with_check(facts, describe_step(step, facts.wanted)))
        }
        (None, Some(refusal)) => (OperationState::Requeue, describe_refusal(refusal)),
        (None, None) if facts.wanted.requests.drift == Drift::Left => (
            OperationState::Succeeded,
            format!(
                "the cluster is what the spec asks for; changes of its objects by hand are left alone ({UNPROTECTED})"
            ),
        ),
        (None, None) => (
            OperationState::Succeeded,
            "the cluster is what the spec asks for".to_owned(),
        ),
    }
}

/// What the check of a member's data has against starting etcd, in its own words. What mends itself is left out.
fn check(facts: &Facts<'_>) -> Option<String> {
    let on = facts.plan.step.as_ref().and_then(Step::blocker)?;
    if matches!(
        on,
        Blocker::SnapshotRuns { .. } | Blocker::SnapshotFailed { .. }
    ) {
        return None;
    }
    facts.seen.pods.iter().find_map(|(ordinal, pod)| {
        let is_bad = matches!(
            pod.finding?,
            Finding::Refused | Finding::Hopeless | Finding::Corrupt | Finding::Foreign
        );
        let words = pod.words.as_ref().filter(|_| is_bad && !pod.is_deleting)?;
        Some(format!("{}: {words}", facts.wanted.pod(*ordinal)))
    })
}

/// What is waited for, and what the check of a member's data says.
pub(super) fn with_check(facts: &Facts<'_>, words: String) -> String {
    match check(facts) {
        Some(check) => format!("{words}; {check}"),
        None => words,
    }
}

/// Whether somebody should look.
fn is_trouble(on: &Blocker) -> bool {
    match on {
        Blocker::SnapshotFailed { .. } => true,
        Blocker::RecoveryNeeded(hold) => hold.is_trouble(),
        _ => false,
    }
}

/// What stopped the pass, or the change that does not happen.
fn failure(facts: &Facts<'_>) -> Option<Failure> {
    let code = match facts.plan.step.as_ref().and_then(Step::blocker) {
        Some(Blocker::SnapshotFailed { .. }) => "ERR_CREATE_SNAPSHOT",
        Some(on @ Blocker::RecoveryNeeded(_)) if is_trouble(on) => "ERR_DATA_LOST",
        Some(_) if check(facts).is_some() => "ERR_MEMBER_DATA",
        _ => return facts.failure.cloned(),
    };
    let (_, description) = now(facts);
    Some(facts.failure.cloned().unwrap_or_else(|| Failure {
        code: code.to_owned(),
        description,
    }))
}

fn errors(facts: &Facts<'_>) -> Option<Vec<LastError>> {
    let failure = &failure(facts)?;
    let before = facts
        .before()
        .and_then(|status| status.last_errors.as_ref());
    let same = before
        .into_iter()
        .flatten()
        .find(|error| error.code == failure.code && error.description == failure.description);
    let error = same.cloned().unwrap_or_else(|| LastError {
        code: failure.code.clone(),
        description: failure.description.clone(),
        observed_at: clock::time(facts.now),
    });
    Some(vec![error])
}
