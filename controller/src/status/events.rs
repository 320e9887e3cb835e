//! Kubernetes Events: one per transition of the status, none while it stays the same.

use mainstay_crds::{Condition, ConditionStatus, ConditionType, EtcdStatus, OperationState};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatusEvent {
    pub(crate) kind: StatusEventKind,
    pub(crate) reason: String,
    pub(crate) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusEventKind {
    Normal,
    /// An operator should have a look.
    Warning,
}

/// One Event for each transition between two statuses.
pub(crate) fn collect_events(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Vec<StatusEvent> {
    let mut events: Vec<StatusEvent> = after
        .conditions
        .iter()
        .flatten()
        .filter_map(|condition| condition_event(before, condition))
        .collect();
    events.extend(operation_event(before, after));
    events.extend(drill_event(before, after));
    events
}

fn condition_event(before: Option<&EtcdStatus>, after: &Condition) -> Option<StatusEvent> {
    let conditions = before.and_then(|status| status.conditions.as_ref());
    let old = conditions
        .into_iter()
        .flatten()
        .find(|old| old.type_ == after.type_);
    if old.is_some_and(|old| old.status == after.status) || after.status == ConditionStatus::Unknown
    {
        return None;
    }
    // Conditions named after a problem are bad when True.
    let bad = match after.type_ {
        ConditionType::ClusterIDMismatch | ConditionType::RecoveryRequired => ConditionStatus::True,
        _ => ConditionStatus::False,
    };
    let is_bad = after.status == bad;
    // A new cluster starts with most conditions unhealthy; warnings about that would be noise.
    if old.is_none() && (is_bad == (bad == ConditionStatus::False)) {
        return None;
    }
    Some(StatusEvent {
        kind: if is_bad {
            StatusEventKind::Warning
        } else {
            StatusEventKind::Normal
        },
        reason: after.reason.clone(),
        note: format!("{} is {}: {}", after.type_, after.status, after.message),
    })
}

/// A finished restore drill, also one with the same result as the drill before.
fn drill_event(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Option<StatusEvent> {
    let restore_drill = |status: &EtcdStatus| status.mainstay.as_ref()?.restore_drill.clone();
    let now = restore_drill(after)?;
    if before
        .and_then(restore_drill)
        .is_some_and(|old| old.finished_at == now.finished_at)
    {
        return None;
    }
    let (kind, reason) = if now.succeeded {
        (StatusEventKind::Normal, "RestoreDrillSucceeded")
    } else {
        (StatusEventKind::Warning, "RestoreDrillFailed")
    };
    Some(StatusEvent {
        kind,
        reason: reason.to_owned(),
        note: now.message,
    })
}

fn operation_event(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Option<StatusEvent> {
    let now = after.last_operation.as_ref()?;
    let old = before.and_then(|status| status.last_operation.as_ref());
    // The time alone is no transition.
    if old.is_some_and(|old| old.description == now.description && old.state == now.state) {
        return None;
    }
    let (kind, reason) = match now.state {
        OperationState::Error => (StatusEventKind::Warning, "Failed"),
        OperationState::Requeue => (StatusEventKind::Normal, "Waiting"),
        OperationState::Processing => (StatusEventKind::Normal, "Processing"),
        OperationState::Succeeded => (StatusEventKind::Normal, "Reconciled"),
        _ => return None,
    };
    Some(StatusEvent {
        kind,
        reason: reason.to_owned(),
        note: now.description.clone(),
    })
}
