//! The Job that folds deltas into a new full snapshot, without an etcd.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mainstay_crds::Etcd;

use super::{Frame, WORK_DIR};
use crate::draft::Draft;
use crate::error::RenderError;
use crate::labels::Component;
use crate::settings::Settings;
use crate::shape::Shape;

/// A compaction.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CompactionJob {
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
    /// Size of the scratch volume; the new full snapshot is built there. `None`: what the node has.
    pub scratch: Option<Quantity>,
}

/// Renders the Job.
pub fn compaction_job(
    etcd: &Etcd,
    settings: &Settings,
    shape: &Shape,
    compaction: &CompactionJob,
) -> Result<Job, RenderError> {
    let draft = Draft::new(etcd, settings, shape)?;
    let name = draft.names.compaction_job();
    let size = compaction.scratch.as_ref();
    let frame = Frame {
        container: "compact-backup",
        args: vec!["compact".to_owned(), format!("--scratch-dir={WORK_DIR}")],
        deadline: compaction.deadline,
        ..Frame::in_scratch(&draft, Component::CompactionJob, &name, size)
    };
    Ok(frame.job())
}
