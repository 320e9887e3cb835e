//! The Job that compacts the backup: it merges delta snapshots into a new full snapshot, without etcd.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;

use super::{JobBuilder, WORK_DIR};
use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::render_input::RenderInput;
use crate::settings::OperatorSettings;

/// Settings of a compaction Job.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CompactionJob {
    /// Deadline of the Job; `None`: no deadline.
    pub deadline: Option<Duration>,
    /// Size limit of the scratch volume, where the new full snapshot is built. `None`: the free space of the
    /// node.
    pub scratch_size: Option<Quantity>,
}

/// Renders the compaction Job.
pub fn render_compaction_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    compaction: &CompactionJob,
) -> Result<Job, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let name = draft.names.compaction_job();
    let size = compaction.scratch_size.as_ref();
    let frame = JobBuilder {
        container_name: "compact-backup",
        args: vec!["compact".to_owned(), format!("--scratch-dir={WORK_DIR}")],
        deadline: compaction.deadline,
        ..JobBuilder::with_scratch_volume(&draft, Component::CompactionJob, &name, size)
    };
    Ok(frame.build())
}
