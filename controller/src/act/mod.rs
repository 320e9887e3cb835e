//! Executes a reconcile plan: applies the objects, then executes the single step.
//!
//! **Invariants**: only the elected leader writes. Every write is based on the observed state and can be repeated: deletions
//! carry the uid, StatefulSet writes carry the observed resourceVersion, etcd rejects a duplicate membership change. An
//! object that already matches is not written. **After a crash** between two writes, the next reconcile observes the first
//! and continues with the second.

mod apply;
mod live;
mod live_hash;
mod members;
mod objects;
pub(crate) mod recovery;
mod secrets;
pub(crate) mod snapshots;
mod steps;
mod subset;
mod takeover;
mod teardown;
pub(crate) mod upkeep;

use mainstay_crds::Etcd;
use mainstay_manifests::RenderError;

use crate::context::Context;
use crate::observe::{DialError, Objects};
use crate::writer::{WriteError, WriteVerb};

use crate::model::{DesiredState, ReconcilePlan, ReconcileStep};
pub(crate) use secrets::remove_secret_finalizers;
pub(crate) use teardown::{Teardown, tear_down};
pub(crate) use upkeep::{perform_upkeep, start_compaction};

/// The Etcd being reconciled, with its desired and observed state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work<'a> {
    pub(crate) etcd: &'a Etcd,
    pub(crate) desired: &'a DesiredState,
    pub(crate) objects: &'a Objects,
}

/// Errors of executing a plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ActError {
    #[error(transparent)]
    Write { source: WriteError },
    /// The spec cannot be expressed as Kubernetes objects.
    #[error("failed to render the objects")]
    Render { source: RenderError },
    #[error("failed to serialize {kind} {name} as JSON")]
    Encode {
        kind: String,
        name: String,
        source: serde_json::Error,
    },
    #[error("failed to read {kind} {name}")]
    Read {
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
    /// A request to etcd or to its store failed.
    #[error("failed to execute {step}")]
    Etcd {
        /// Label of the step, a noun: `AddLearner`.
        step: &'static str,
        source: DialError,
    },
    /// The coordination ConfigMap was not read or written.
    #[error("failed to {step}")]
    Coordinate {
        /// Verb phrase: `acquire the lock`.
        step: &'static str,
        source: mainstay_coordination::CoordinationError,
    },
    /// The leader is unknown or has no endpoint.
    #[error("failed to execute {step}: no etcd leader found")]
    NoLeader { step: &'static str },
}

impl ActError {
    /// The error code in the status, as etcd-druid spells it: `ERR_SYNC_STATEFULSET`.
    pub(crate) fn code(&self) -> String {
        let code = |verb: &str, kind: &str| format!("ERR_{verb}_{}", to_error_component(kind));
        match self {
            Self::Render { .. } => "ERR_RENDER".to_owned(),
            Self::Encode { kind, .. } | Self::Read { kind, .. } => code("SYNC", kind),
            Self::Write {
                source: WriteError::Fenced { .. },
            } => "ERR_LEADERSHIP_LOST".to_owned(),
            Self::Write {
                source: WriteError::Request { verb, kind, .. },
            } => match verb {
                WriteVerb::Delete => code("DELETE", kind),
                _ => code("SYNC", kind),
            },
            Self::Coordinate { .. } => "ERR_COORDINATION".to_owned(),
            Self::Etcd { .. } | Self::NoLeader { .. } => "ERR_ETCD".to_owned(),
        }
    }

    /// Whether a retry cannot succeed until the spec changes.
    pub(crate) fn is_permanent(&self) -> bool {
        match self {
            Self::Render { .. } | Self::Encode { .. } => true,
            // The API server or an admission webhook rejects the object itself.
            Self::Write { source } => source.is_permanent(),
            _ => false,
        }
    }

    /// Whether the object changed since it was observed. The next reconcile observes the newer version.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { source } if source.is_conflict())
    }
}

impl From<WriteError> for ActError {
    fn from(source: WriteError) -> Self {
        Self::Write { source }
    }
}

/// `PodDisruptionBudget` as `POD_DISRUPTION_BUDGET`.
fn to_error_component(kind: &str) -> String {
    // etcd-druid spells these two without an underscore.
    match kind {
        "ConfigMap" => return "CONFIGMAP".to_owned(),
        "StatefulSet" => return "STATEFULSET".to_owned(),
        _ => {}
    }
    let mut out = String::new();
    for (index, letter) in kind.char_indices() {
        if index > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// Result of an executed plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ActOutcome {
    /// The StatefulSet was written, so its pods may be outdated.
    pub(crate) has_changed_stateful_set: bool,
}

pub(crate) async fn execute_plan(
    ctx: &Context,
    work: Work<'_>,
    plan: &ReconcilePlan,
) -> Result<ActOutcome, ActError> {
    if let Some(step @ ReconcileStep::Recover(recovery)) = &plan.step {
        steps::log_step(ctx, work, step);
        // A recovery applies the objects itself: before it scales, it must hold the lock.
        recovery::execute_plan(ctx, work, plan.effective_spec.as_ref(), recovery).await?;
        return Ok(ActOutcome::default());
    }
    if let Some(step) = plan
        .step
        .as_ref()
        .filter(|step| steps::is_before_apply(step))
    {
        // With RollingUpdate, a changed template would make the StatefulSet controller replace pods without regard to quorum.
        steps::execute_step(ctx, work, step).await?;
    }
    let applied = match &plan.effective_spec {
        Some(shape) => objects::apply_all(ctx, work, shape).await,
        None => Ok(ActOutcome::default()),
    };
    // A spec that the API server rejects must not block the repair of members that already exist.
    let is_refused = applied.as_ref().is_err_and(ActError::is_permanent);
    let may = |step: &&ReconcileStep| applied.is_ok() || (is_refused && steps::is_repair(step));
    let step = plan
        .step
        .as_ref()
        .filter(|step| !steps::is_before_apply(step));
    if let Some(step) = step.filter(may) {
        steps::execute_step(ctx, work, step).await?;
    }
    applied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_match_etcd_druid() {
        for (kind, code) in [
            ("StatefulSet", "STATEFULSET"),
            ("ConfigMap", "CONFIGMAP"),
            ("ServiceAccount", "SERVICE_ACCOUNT"),
            ("PodDisruptionBudget", "POD_DISRUPTION_BUDGET"),
            ("RoleBinding", "ROLE_BINDING"),
        ] {
            assert_eq!(to_error_component(kind), code);
        }
    }
}
