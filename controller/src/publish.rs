//! What is written on the Etcd itself: its status, its finalizer, and the removal of a request that is done. And Events.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource, ResourceExt};
use mainstay_crds::etcd::APPROVE_RECOVERY;
use mainstay_crds::{
    Condition, ConditionStatus, ConditionType, Etcd, EtcdStatus, LastError, LastOperation,
    OperationState, OperationType,
};
use mainstay_telemetry::ErrorChain;
use serde_json::{Value, json};
use tracing::warn;

use crate::act::marks::FIELD_MANAGER;
use crate::context::{Context, EtcdKey};
use crate::leader::LeadershipLost;
use crate::status::{StatusEvent, StatusEventKind, collect_events};
use crate::validate::{FINALIZER, LEGACY_OPERATION, OPERATION, SpecError, RECONCILE};

/// Conditions that are true as long as somebody looks. The others tell of what has happened, and nobody else remembers it; or
/// they are not ours.
const LIVE_CONDITIONS: [ConditionType; 4] = [
    ConditionType::Ready,
    ConditionType::AllMembersReady,
    ConditionType::AllMembersUpdated,
    ConditionType::BackupReady,
];

/// The longest note an Event may have.
const MAX_NOTE_BYTES: usize = 1000;

/// Why something was not told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Somebody else leads.
    #[error("nothing is written any more")]
    Fenced {
        /// How leadership was lost.
        source: LeadershipLost,
    },
    /// The status was not written.
    #[error("write the status")]
    Status {
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// The finalizer was not changed.
    #[error("change the finalizers")]
    Finalizer {
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// The annotation was not removed.
    #[error("remove an annotation that is done with")]
    Annotation {
        /// What the API server said.
        source: Box<kube::Error>,
    },
}

fn api(ctx: &Context, etcd: &Etcd) -> Api<Etcd> {
    Api::namespaced(
        ctx.client.clone(),
        etcd.metadata.namespace.as_deref().unwrap_or_default(),
    )
}

fn check_leadership(ctx: &Context) -> Result<(), PublishError> {
    ctx.leadership
        .check()
        .map_err(|source| PublishError::Fenced { source })
}

/// Writes the status when it says something new, and an Event for each transition.
pub(crate) async fn write_status(
    ctx: &Context,
    etcd: &Etcd,
    status: &EtcdStatus,
) -> Result<(), PublishError> {
    let key = EtcdKey {
        namespace: etcd.namespace().unwrap_or_default(),
        name: etcd.name_any(),
    };
    ctx.metrics
        .record_status(&key, etcd.metadata.generation.unwrap_or_default(), status);
    if etcd.status.as_ref() == Some(status) {
        return Ok(());
    }
    let _turn = ctx.write_scheduler.acquire_status_write().await;
    check_leadership(ctx)?;
    let failed = |source| PublishError::Status {
        source: Box::new(source),
    };
    let body = mainstay_crds::status::apply(etcd, status);
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let api = api(ctx, etcd);
    let written = api
        .patch_status(&etcd.name_any(), &params, &Patch::Apply(&body))
        .await
        .map_err(failed)?;
    ctx.metrics.record_write("Etcd");
    if written.resource_version() != etcd.resource_version() {
        ctx.local.record_status_write(&key, etcd.resource_version());
    }
    if let Some(leftovers) = build_stale_fields_patch(status, written.status.as_ref()) {
        // Told by a predecessor, and not true any more.
        check_leadership(ctx)?;
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        api.patch_status(&etcd.name_any(), &params, &Patch::Merge(&leftovers))
            .await
            .map_err(failed)?;
        ctx.metrics.record_write("Etcd");
    }
    for notice in collect_events(etcd.status.as_ref(), status) {
        publish_event(ctx, etcd, notice).await;
    }
    Ok(())
}

/// The patch that removes what is in a status and should not be.
fn build_stale_fields_patch(wanted: &EtcdStatus, written: Option<&EtcdStatus>) -> Option<Value> {
    let wanted = serde_json::to_value(wanted).ok()?;
    let written = serde_json::to_value(written?).ok()?;
    let gone: serde_json::Map<String, Value> = written
        .as_object()?
        .keys()
        .filter(|key| wanted.get(key.as_str()).is_none())
        .map(|key| (key.clone(), Value::Null))
        .collect();
    (!gone.is_empty()).then(|| json!({ "status": gone }))
}

/// An Event is a courtesy: one that cannot be written stops nothing.
async fn publish_event(ctx: &Context, etcd: &Etcd, notice: StatusEvent) {
    let StatusEvent {
        kind,
        reason,
        mut note,
    } = notice;
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
    match ctx.recorder.publish(&event, &etcd.object_ref(&())).await {
        Ok(()) => ctx.metrics.record_write("Event"),
        Err(error) => warn!(error = %ErrorChain(&error), "an event was not written"),
    }
}

/// Tells that a spec cannot be worked with. Nothing is looked at then, so nothing that was found before is claimed any more.
pub(crate) async fn publish_spec_error(
    ctx: &Context,
    etcd: &Etcd,
    problem: &SpecError,
) -> Result<(), PublishError> {
    let error = LastError {
        code: "ERR_VALIDATE".to_owned(),
        description: problem.to_string(),
        observed_at: now_in_seconds(),
    };
    let told = (
        OperationType::Reconcile,
        OperationState::Error,
        problem.to_string(),
    );
    let mut etcd = etcd.clone();
    if let Some(status) = &mut etcd.status {
        status.ready = None;
        let conditions = status.conditions.iter_mut().flatten();
        for condition in conditions.filter(|one| LIVE_CONDITIONS.contains(&one.type_)) {
            mark_condition_unknown(condition, &problem.to_string());
        }
    }
    publish_operation(ctx, &etcd, told, Some(vec![error])).await
}

/// Nobody knows whether a condition still holds.
fn mark_condition_unknown(condition: &mut Condition, why: &str) {
    let now = now_in_seconds();
    if condition.status != ConditionStatus::Unknown {
        condition.last_transition_time = now.clone();
    }
    condition.status = ConditionStatus::Unknown;
    "SpecInvalid".clone_into(&mut condition.reason);
    why.clone_into(&mut condition.message);
    condition.last_update_time = now;
}

/// Tells how far the end is.
pub(crate) async fn publish_deletion_progress(ctx: &Context, etcd: &Etcd, left: usize) -> Result<(), PublishError> {
    let description = format!("{left} objects are still to go");
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

/// Tells what goes on, and leaves the rest of the status as it is.
async fn publish_operation(
    ctx: &Context,
    etcd: &Etcd,
    (type_, state, description): (OperationType, OperationState, String),
    last_errors: Option<Vec<LastError>>,
) -> Result<(), PublishError> {
    let before = etcd.status.clone().unwrap_or_default();
    let is_told = before.last_operation.as_ref().is_some_and(|last| {
        last.type_ == type_ && last.state == state && last.description == description
    });
    if is_told {
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

/// Keeps the Etcd until its objects are gone.
pub(crate) async fn add_finalizer(ctx: &Context, etcd: &Etcd) -> Result<(), PublishError> {
    if etcd
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER)
    {
        return Ok(());
    }
    let mut finalizers = etcd.finalizers().to_vec();
    finalizers.push(FINALIZER.to_owned());
    patch_finalizers(ctx, etcd, &finalizers).await
}

/// Lets the Etcd go.
pub(crate) async fn remove_finalizer(ctx: &Context, etcd: &Etcd) -> Result<(), PublishError> {
    let left: Vec<String> = etcd
        .finalizers()
        .iter()
        .filter(|name| *name != FINALIZER)
        .cloned()
        .collect();
    if left.len() == etcd.finalizers().len() {
        return Ok(());
    }
    patch_finalizers(ctx, etcd, &left).await
}

async fn patch_finalizers(ctx: &Context, etcd: &Etcd, finalizers: &[String]) -> Result<(), PublishError> {
    check_leadership(ctx)?;
    // The list is written as a whole, so it names what it was made from.
    let patch = json!({ "metadata": {
        "resourceVersion": etcd.metadata.resource_version,
        "finalizers": finalizers,
    }});
    match api(ctx, etcd)
        .patch(
            &etcd.name_any(),
            &PatchParams::default(),
            &Patch::Merge(&patch),
        )
        .await
    {
        Ok(_) => {
            ctx.metrics.record_write("Etcd");
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(source) => Err(PublishError::Finalizer {
            source: Box::new(source),
        }),
    }
}

/// Removes the request for one reconciliation, unless the spec is another by now: then it is a request for that one.
pub(crate) async fn remove_reconcile_request(ctx: &Context, etcd: &Etcd) -> Result<(), PublishError> {
    let requested = [OPERATION, LEGACY_OPERATION].into_iter().filter(|key| {
        let value = etcd.annotations().get(*key);
        value.is_some_and(|value| value == RECONCILE)
    });
    let same =
        json!({ "op": "test", "path": "/metadata/generation", "value": etcd.metadata.generation });
    let annotations = requested.map(|key| (key, RECONCILE));
    remove_annotations(ctx, etcd, Some(same), annotations).await
}

/// Removes the approval of a recovery: what it was given for is over, and the next loss is another.
pub(crate) async fn remove_recovery_approval(ctx: &Context, etcd: &Etcd) -> Result<(), PublishError> {
    let given = etcd.annotations().get(APPROVE_RECOVERY);
    let given = given.map(|id| (APPROVE_RECOVERY, id.as_str()));
    remove_annotations(ctx, etcd, None, given.into_iter()).await
}

/// Removes annotations that still have these values, if a condition holds.
async fn remove_annotations<'a>(
    ctx: &Context,
    etcd: &Etcd,
    condition: Option<Value>,
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), PublishError> {
    check_leadership(ctx)?;
    let failed = |source| PublishError::Annotation {
        source: Box::new(source),
    };
    let each = annotations.flat_map(|(key, value)| {
        let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
        [
            json!({ "op": "test", "path": path, "value": value }),
            json!({ "op": "remove", "path": path }),
        ]
    });
    let patch = serde_json::from_value(condition.into_iter().chain(each).collect())
        .map_err(|source| failed(kube::Error::SerdeError(source)))?;
    let patched = api(ctx, etcd)
        .patch(
            &etcd.name_any(),
            &PatchParams::default(),
            &Patch::<()>::Json(patch),
        )
        .await;
    match patched {
        Ok(_) => {
            ctx.metrics.record_write("Etcd");
            Ok(())
        }
        // Changed or removed meanwhile: whoever did that is answered by the next pass.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_spec_that_cannot_be_read_no_condition_is_claimed() {
        let before: Condition = serde_json::from_value(json!({
            "type": "Ready", "status": "True", "reason": "Quorate", "message": "",
            "lastUpdateTime": "2026-11-16T12:00:00Z", "lastTransitionTime": "2026-11-16T12:00:00Z",
        }))
        .unwrap();
        let mut first = before.clone();
        mark_condition_unknown(&mut first, "much is no quantity");
        assert_eq!(first.status, ConditionStatus::Unknown);
        assert_eq!(
            (&*first.reason, &*first.message),
            ("SpecInvalid", "much is no quantity")
        );
        assert!(first.last_transition_time > before.last_transition_time);
        let mut again = first.clone();
        mark_condition_unknown(&mut again, "more is no quantity");
        assert_eq!(again.last_transition_time, first.last_transition_time);
    }
}
