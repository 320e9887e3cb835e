//! What became different, as Kubernetes Events: one per transition, none for standing still.

use mainstay_crds::{Condition, ConditionStatus, ConditionType, EtcdStatus, OperationState};

/// Something to tell whoever looks at the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether somebody should look.
    pub kind: NoticeKind,
    /// In one word.
    pub reason: String,
    /// In a sentence.
    pub note: String,
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Nothing to worry about.
    Normal,
    /// Somebody should.
    Warning,
}

/// What became different between two statuses.
pub fn notices(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Vec<Notice> {
    let mut notices: Vec<Notice> = after
        .conditions
        .iter()
        .flatten()
        .filter_map(|condition| transition(before, condition))
        .collect();
    notices.extend(operation(before, after));
    notices.extend(drill(before, after));
    notices
}

fn transition(before: Option<&EtcdStatus>, after: &Condition) -> Option<Notice> {
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
    Some(Notice {
        kind: if is_bad {
            NoticeKind::Warning
        } else {
            NoticeKind::Normal
        },
        reason: after.reason.clone(),
        note: format!("{} is {}: {}", after.type_, after.status, after.message),
    })
}

/// A rehearsal that is over, also one that went as the one before.
fn drill(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Option<Notice> {
    let of = |status: &EtcdStatus| status.mainstay.as_ref()?.restore_drill.clone();
    let now = of(after)?;
    if before
        .and_then(of)
        .is_some_and(|old| old.finished_at == now.finished_at)
    {
        return None;
    }
    let (kind, reason) = if now.succeeded {
        (NoticeKind::Normal, "RestoreDrillSucceeded")
    } else {
        (NoticeKind::Warning, "RestoreDrillFailed")
    };
    Some(Notice {
        kind,
        reason: reason.to_owned(),
        note: now.message,
    })
}

fn operation(before: Option<&EtcdStatus>, after: &EtcdStatus) -> Option<Notice> {
    let now = after.last_operation.as_ref()?;
    let old = before.and_then(|status| status.last_operation.as_ref());
    if old.is_some_and(|old| old.description == now.description && old.state == now.state) {
        return None;
    }
    let (kind, reason) = match now.state {
        OperationState::Error => (NoticeKind::Warning, "Failed"),
        OperationState::Requeue => (NoticeKind::Normal, "Waiting"),
        OperationState::Processing => (NoticeKind::Normal, "Processing"),
        OperationState::Succeeded => (NoticeKind::Normal, "Reconciled"),
        _ => return None,
    };
    Some(Notice {
        kind,
        reason: reason.to_owned(),
        note: now.description.clone(),
    })
}
