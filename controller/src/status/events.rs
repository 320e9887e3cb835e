//! What became different, as Kubernetes Events: one per transition, none for standing still.

use mainstay_crds::{Condition, ConditionStatus, ConditionType, EtcdStatus, OperationState};

/// Something to tell whoever looks at the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusEvent {
    /// Whether somebody should look.
    pub kind: StatusEventKind,
    /// In one word.
    pub reason: String,
    /// In a sentence.
    pub note: String,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusEventKind {
    /// Nothing to worry about.
    Normal,
    /// Somebody should.
    Warning,
}

/// What became different between two statuses.
pub fn collect_events(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Vec<StatusEvent> {
    let mut notices: Vec<StatusEvent> = after
        .conditions
        .iter()
        .flatten()
        .filter_map(|condition| condition_event(before, condition))
        .collect();
    notices.extend(operation_event(before, after));
    notices.extend(drill_event(before, after));
    notices
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
    let bad = match after.type_ {
        ConditionType::ClusterIDMismatch | ConditionType::RecoveryRequired => ConditionStatus::True,
        _ => ConditionStatus::False,
    };
    let is_bad = after.status == bad;
    // A cluster that begins is not ready in many ways; nobody needs to be told.
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

/// A rehearsal that is over, also one that went as the one before.
fn drill_event(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Option<StatusEvent> {
    let of = |status: &EtcdStatus| status.mainstay.as_ref()?.restore_drill.clone();
    let now = of(after)?;
    if before
        .and_then(of)
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
