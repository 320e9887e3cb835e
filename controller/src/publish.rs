//! Writes to the Etcd itself: status, finalizer, removal of handled annotations; and its Events.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::events::{Event, EventType};
use mainstay_crds::etcd::APPROVE_RECOVERY;
use mainstay_crds::{
    Condition, ConditionStatus, ConditionType, Etcd, EtcdStatus, LastError, LastOperation,
    OperationState, OperationType,
};
use serde_json::{Value, json};

use crate::context::Context;
use crate::model::EtcdKey;
use crate::model::annotations::{FINALIZER, LEGACY_OPERATION, OPERATION, RECONCILE};
use crate::status::{StatusEvent, StatusEventKind, collect_events};
use crate::validate::SpecError;
use crate::writer::{Finalizer, Target, WriteError};

/// Conditions that become Unknown when the cluster is not observed. Others record past events that are stored nowhere else,
/// or belong to other writers.
const LIVE_CONDITIONS: [ConditionType; 4] = [
    ConditionType::Ready,
    ConditionType::AllMembersReady,
    ConditionType::AllMembersUpdated,
    ConditionType::BackupReady,
];

/// The API server rejects Events with a note of more than 1024 bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// Writes the status if it differs, and an Event for each transition.
pub(crate) async fn write_status(
    ctx: &Context,
    etcd: &Etcd,
    status: &EtcdStatus,
) -> Result<(), WriteError> {
    let key = EtcdKey {
        namespace: etcd.namespace().unwrap_or_default(),
        name: etcd.name_any(),
    };
    ctx.metrics
        .record_status(&key, etcd.metadata.generation.unwrap_or_default(), status);
    // Server-side apply without a change still costs the API server a request.
    if etcd.status.as_ref() == Some(status) {
        return Ok(());
    }
    // Leadership is checked after the wait: it may end meanwhile.
    let _turn = ctx.write_scheduler.acquire_status_write().await;
    let body = mainstay_crds::status::apply(etcd, status);
    let target = Target::of(etcd);
    let written = ctx.writer.apply_status(&target, &body).await?;
    // An apply without effect keeps the version, and no watch event would follow.
    if written.resource_version() != etcd.resource_version() {
        ctx.local.record_status_write(&key, etcd.resource_version());
    }
    if let Some(stale_fields) = build_stale_fields_patch(status, written) {
        // Server-side apply does not remove fields that another manager set, for example etcd-druid before a migration.
        ctx.writer.merge_status(&target, &stale_fields).await?;
    }
    // After the write: a failed write is repeated and must not repeat its Events.
    for status_event in collect_events(etcd.status.as_ref(), status) {
        publish_event(ctx, etcd, status_event).await;
    }
    Ok(())
}

/// The patch that removes top-level fields of a written status that the desired one does not have.
fn build_stale_fields_patch(desired: &EtcdStatus, written: DynamicObject) -> Option<Value> {
    let desired = serde_json::to_value(desired).ok()?;
    // Typed: fields that this version does not know belong to another writer.
    let written = written.try_parse::<Etcd>().ok()?.status?;
    let written = serde_json::to_value(written).ok()?;
    let stale: serde_json::Map<String, Value> = written
        .as_object()?
        .keys()
        .filter(|key| desired.get(key.as_str()).is_none())
        .map(|key| (key.clone(), Value::Null))
        .collect();
    (!stale.is_empty()).then(|| json!({ "status": stale }))
}

async fn publish_event(ctx: &Context, etcd: &Etcd, status_event: StatusEvent) {
    let StatusEvent {
        kind,
        reason,
        mut note,
    } = status_event;
    // Truncated at a character boundary: `String::truncate` panics inside of one.
    let end = note.floor_char_boundary(MAX_NOTE_BYTES);
    note.truncate(end);
    let event = Event {
        type_: match kind {
            StatusEventKind::Normal => EventType::Normal,
            StatusEventKind::Warning => EventType::Warning,
        },
        reason,
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    ctx.writer.publish_event(etcd, &event).await;
}

/// Publishes an invalid spec. The cluster is not observed in that case, so live conditions become Unknown.
pub(crate) async fn publish_spec_error(
    ctx: &Context,
    etcd: &Etcd,
    spec_error: &SpecError,
) -> Result<(), WriteError> {
    let error = LastError {
        code: "ERR_VALIDATE".to_owned(),
        description: spec_error.to_string(),
        observed_at: now_in_seconds(),
    };
    let operation = (
        OperationType::Reconcile,
        OperationState::Error,
        spec_error.to_string(),
    );
    let mut etcd = etcd.clone();
    if let Some(status) = &mut etcd.status {
        status.ready = None;
        let conditions = status.conditions.iter_mut().flatten();
        for condition in conditions.filter(|one| LIVE_CONDITIONS.contains(&one.type_)) {
            mark_condition_unknown(condition, &spec_error.to_string());
        }
    }
    publish_operation(ctx, &etcd, operation, Some(vec![error])).await
}

fn mark_condition_unknown(condition: &mut Condition, message: &str) {
    let now = now_in_seconds();
    // The transition time moves only with the status.
    if condition.status != ConditionStatus::Unknown {
        condition.last_transition_time = now.clone();
    }
    condition.status = ConditionStatus::Unknown;
    "SpecInvalid".clone_into(&mut condition.reason);
    message.clone_into(&mut condition.message);
    condition.last_update_time = now;
}

pub(crate) async fn publish_deletion_progress(
    ctx: &Context,
    etcd: &Etcd,
    left: usize,
) -> Result<(), WriteError> {
    let description = format!("Deleting: {left} objects left");
    publish_operation(
        ctx,
        etcd,
        (
            OperationType::Delete,
            OperationState::Processing,
            description,
        ),
        None,
    )
    .await
}

/// Publishes `lastOperation` and `lastErrors`, and keeps the rest of the status.
async fn publish_operation(
    ctx: &Context,
    etcd: &Etcd,
    (type_, state, description): (OperationType, OperationState, String),
    last_errors: Option<Vec<LastError>>,
) -> Result<(), WriteError> {
    let before = etcd.status.clone().unwrap_or_default();
    let is_reported = before.last_operation.as_ref().is_some_and(|last| {
        last.type_ == type_ && last.state == state && last.description == description
    });
    if is_reported {
        return Ok(());
    }
    let last_operation = Some(LastOperation {
        type_,
        state,
        description,
        run_id: ctx.next_run_id(),
        last_update_time: now_in_seconds(),
    });
    write_status(
        ctx,
        etcd,
        &EtcdStatus {
            last_operation,
            last_errors,
            ..before
        },
    )
    .await
}

fn now_in_seconds() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

pub(crate) async fn set_finalizer(
    ctx: &Context,
    etcd: &Etcd,
    wanted: Finalizer,
) -> Result<(), WriteError> {
    let finalizer = (FINALIZER, wanted);
    ctx.writer
        .set_finalizer(&Target::of(etcd), &etcd.metadata, finalizer)
        .await
}

/// Removes the request for one reconcile, unless the generation has changed: the request is then for the new spec.
pub(crate) async fn remove_reconcile_request(ctx: &Context, etcd: &Etcd) -> Result<(), WriteError> {
    let requested = [OPERATION, LEGACY_OPERATION].into_iter().filter(|key| {
        let value = etcd.annotations().get(*key);
        value.is_some_and(|value| value == RECONCILE)
    });
    let same =
        json!({ "op": "test", "path": "/metadata/generation", "value": etcd.metadata.generation });
    let annotations = requested.map(|key| (key, RECONCILE));
    ctx.writer
        .remove_annotations(&Target::of(etcd), Some(same), annotations)
        .await
}

/// Removes the approval of a finished recovery: it does not hold for the next data loss.
pub(crate) async fn remove_recovery_approval(ctx: &Context, etcd: &Etcd) -> Result<(), WriteError> {
    let given = etcd.annotations().get(APPROVE_RECOVERY);
    let given = given.map(|id| (APPROVE_RECOVERY, id.as_str()));
    ctx.writer
        .remove_annotations(&Target::of(etcd), None, given.into_iter())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_become_unknown_when_the_spec_is_invalid() {
        let before: Condition = serde_json::from_value(json!({
            "type": "Ready", "status": "True", "reason": "Quorate", "message": "",
            "lastUpdateTime": "2026-11-16T12:00:00Z", "lastTransitionTime": "2026-11-16T12:00:00Z",
        }))
        .unwrap();
        let mut first = before.clone();
        mark_condition_unknown(&mut first, "invalid quantity \"much\"");
        assert_eq!(first.status, ConditionStatus::Unknown);
        assert_eq!(
            (&*first.reason, &*first.message),
            ("SpecInvalid", "invalid quantity \"much\"")
        );
        assert!(first.last_transition_time > before.last_transition_time);
        let mut again = first.clone();
        mark_condition_unknown(&mut again, "invalid quantity \"more\"");
        assert_eq!(again.last_transition_time, first.last_transition_time);
    }
}
