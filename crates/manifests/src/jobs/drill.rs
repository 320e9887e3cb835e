//! The Job that rehearses a restore: into a scratch volume, without an etcd.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;
use mainstay_ids::HashKv;

use super::restore::Target;
use super::{Frame, WORK_DIR};
use crate::draft::Draft;
use crate::error::RenderError;
use crate::labels::Component;
use crate::settings::Settings;
use crate::shape::Shape;

/// A rehearsal.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DrillJob {
    /// Which state is restored.
    pub target: Target,
    /// What the members hold, and the backup has to.
    pub expected: Option<HashKv>,
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
    /// Size of the scratch volume. `None`: what the node has.
    pub scratch: Option<Quantity>,
}

/// Renders the Job.
pub fn drill_job(
    etcd: &Etcd,
    settings: &Settings,
    shape: &Shape,
    drill: &DrillJob,
) -> Result<Job, RenderError> {
    let draft = Draft::new(etcd, settings, shape)?;
    let name = draft.names.drill_job();
    let size = drill.scratch.as_ref();
    let mut args = vec![
        "restore".to_owned(),
        format!("--data-dir={WORK_DIR}/drill.etcd"),
    ];
    args.extend(drill.target.flags());
    let expected = drill.expected.as_ref();
    args.extend(expected.map(|hash| format!("--expect-hash-kv={hash}")));
    let frame = Frame {
        container: "restore-drill",
        args,
        deadline: drill.deadline,
        ..Frame::in_scratch(&draft, Component::DrillJob, &name, size)
    };
    Ok(frame.job())
}
