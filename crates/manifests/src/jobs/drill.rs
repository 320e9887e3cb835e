//! The Job of a restore drill: it restores into a scratch volume, without etcd.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;
use mainstay_ids::HashKv;

use super::restore::RestorePoint;
use super::{JobBuilder, WORK_DIR};
use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::render_input::RenderInput;
use crate::settings::OperatorSettings;

/// Settings of a restore drill.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DrillJob {
    /// State to restore.
    pub target: RestorePoint,
    /// Hash of the data of the members, which the restored data must match. `None`: no comparison.
    pub expected_hash: Option<HashKv>,
    /// Deadline of the Job; `None`: no deadline.
    pub deadline: Option<Duration>,
    /// Size limit of the scratch volume. `None`: the free space of the node.
    pub scratch_size: Option<Quantity>,
}

/// Renders the Job of a restore drill.
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
