//! Carries out a plan: objects first, then the one step.
//!
//! **Holds**: every write is made by the elected leader, is based on what was seen, and may be repeated: deletions name the
//! uid, the StatefulSet names the version it was read at, etcd refuses what is done already. An object that says already
//! what it should is not written. **After a crash** between any two writes the next pass sees what is done and goes on.

mod apply;
mod live;
mod live_hash;
pub mod marks;
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
use crate::decide::{ReconcilePlan, ReconcileStep};
use crate::leader::LeadershipLost;
use crate::observe::{DialError, Objects};
use crate::validate::DesiredState;

pub use secrets::remove_secret_finalizers;
pub use snapshots::SnapshotError;
pub use teardown::{Teardown, tear_down};
pub use upkeep::{perform_upkeep, start_compaction};

/// What is being worked on.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The resource.
    pub etcd: &'a Etcd,
    /// What it asks for.
    pub desired: &'a DesiredState,
    /// What there is.
    pub objects: &'a Objects,
}

/// Why a plan was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActError {
    /// Somebody else leads.
    #[error("nothing is written any more")]
    Fenced {
        /// How leadership was lost.
        source: LeadershipLost,
    },
    /// The resource asks for something no object can say.
    #[error("render the objects")]
    Render {
        /// What.
        source: RenderError,
    },
    /// An object does not fit into JSON.
    #[error("write {kind} {name} as JSON")]
    Encode {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the writer said.
        source: serde_json::Error,
    },
    /// An object was not applied.
    #[error("apply {kind} {name}")]
    Apply {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// An object was not taken over.
    #[error("take over {kind} {name}")]
    TakeOver {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// An object was not deleted.
    #[error("delete {kind} {name}")]
    Delete {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// An object was not changed.
    #[error("change {kind} {name}")]
    Patch {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// etcd did not do it.
    #[error("{step}")]
    Etcd {
        /// What it was asked to do.
        step: &'static str,
        /// What it said.
        source: DialError,
    },
    /// The coordination document was not read or written.
    #[error("{step}")]
    Coordinate {
        /// What for.
        step: &'static str,
        /// What went wrong.
        source: mainstay_coordination::CoordinationError,
    },
    /// There is no member to ask.
    #[error("{step}: no member leads")]
    NoLeader {
        /// What it was to be asked.
        step: &'static str,
    },
}

impl ActError {
    /// The step as the status tells it: `ERR_SYNC_STATEFULSET` and the like.
    pub fn code(&self) -> String {
        let of = |verb: &str, kind: &str| format!("ERR_{verb}_{}", to_error_component(kind));
        match self {
            Self::Fenced { .. } => "ERR_LEADERSHIP_LOST".to_owned(),
            Self::Render { .. } => "ERR_RENDER".to_owned(),
            Self::Encode { kind, .. }
            | Self::Apply { kind, .. }
            | Self::TakeOver { kind, .. }
            | Self::Patch { kind, .. } => of("SYNC", kind),
            Self::Delete { kind, .. } => of("DELETE", kind),
            Self::Coordinate { .. } => "ERR_COORDINATION".to_owned(),
            Self::Etcd { .. } | Self::NoLeader { .. } => "ERR_ETCD".to_owned(),
        }
    }

    /// Whether it will be said again, however often it is tried: the spec asks for an object that nobody can make.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Render { .. } | Self::Encode { .. } => true,
            Self::Apply { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if matches!(status.code, 400 | 403 | 422))
            }
            _ => false,
        }
    }

    /// Whether the object had changed since it was read: nothing is wrong, the next pass sees it.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Apply { source, .. }
            | Self::TakeOver { source, .. }
            | Self::Patch { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.code == 409)
            }
            _ => false,
        }
    }
}

/// `PodDisruptionBudget` as `POD_DISRUPTION_BUDGET`, and two spellings consumers know.
fn to_error_component(kind: &str) -> String {
    match kind {
        "ConfigMap" => return "CONFIGMAP".to_owned(),
        "StatefulSet" => return "STATEFULSET".to_owned(),
        _ => {}
    }
    let mut out = String::new();
    for (at, letter) in kind.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_uppercase());
    }
    out
}

/// What came of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActOutcome {
    /// The StatefulSet is another one now: its pods have to follow.
    pub has_changed_stateful_set: bool,
}

/// Carries out a plan.
pub async fn execute_plan(ctx: &Context, work: Work<'_>, plan: &ReconcilePlan) -> Result<ActOutcome, ActError> {
    if let Some(step @ ReconcileStep::Recover(recovery)) = &plan.step {
        steps::log_step(ctx, work, step);
        recovery::execute_plan(ctx, work, plan.effective_spec.as_ref(), recovery).await?;
        return Ok(ActOutcome::default());
    }
    if let Some(step) = plan.step.as_ref().filter(|step| steps::is_before_apply(step)) {
        // What has to be stopped is stopped before the template changes.
        steps::execute_step(ctx, work, step).await?;
    }
    let applied = match &plan.effective_spec {
        Some(shape) => objects::apply_all(ctx, work, shape).await,
        None => Ok(ActOutcome::default()),
    };
    let is_refused = applied.as_ref().is_err_and(ActError::is_permanent);
    let may = |step: &&ReconcileStep| applied.is_ok() || (is_refused && steps::is_repair(step));
    let step = plan.step.as_ref().filter(|step| !steps::is_before_apply(step));
    if let Some(step) = step.filter(may) {
        steps::execute_step(ctx, work, step).await?;
    }
    applied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_nobody_can_follow_is_told_from_a_bad_moment() {
        let answer = |code: u16| ActError::Apply {
            kind: "Service".into(),
            name: "main-client".into(),
            source: Box::new(kube::Error::Api(Box::new(kube::core::Status {
                code,
                ..kube::core::Status::default()
            }))),
        };
        for (code, is_refusal) in [
            (422, true),
            (403, true),
            (409, false),
            (500, false),
            (429, false),
        ] {
            assert_eq!(answer(code).is_permanent(), is_refusal, "{code}");
        }
    }

    #[test]
    fn codes_are_those_consumers_know() {
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
