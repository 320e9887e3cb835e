//! The Job that rehearses a restore: into a scratch volume, without an etcd.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;
use mainstay_ids::HashKv;

use super::restore::RestorePoint;
use super::{JobBuilder, WORK_DIR};
use crate::draft::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::settings::OperatorSettings;
use crate::shape::RenderInput;

/// A rehearsal.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DrillJob {
    /// Which state is restored.
    pub target: RestorePoint,
    /// What the members hold, and the backup has to.
    pub expected_hash: Option<HashKv>,
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
    /// Size of the scratch volume. `None`: what the node has.
    pub scratch_size: Option<Quantity>,
}

/// Renders the Job.
pub fn render_drill_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    drill: &DrillJob,
) -> Result<Job, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let name = draft.names.drill_job();
    let size = drill.scratch_size.as_ref();
    let mut args = vec![
        "restore".to_owned(),
        format!("--data-dir={WORK_DIR}/drill.etcd"),
    ];
    args.extend(drill.target.to_flags());
    let expected = drill.expected_hash.as_ref();
    args.extend(expected.map(|hash| format!("--expect-hash-kv={hash}")));
    let frame = JobBuilder {
        container_name: "restore-drill",
        args,
        deadline: drill.deadline,
        ..JobBuilder::with_scratch_volume(&draft, Component::DrillJob, &name, size)
    };
    Ok(frame.build())
}
