//! The Job that folds deltas into a new full snapshot, without an etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use steward_crds::Etcd;

use super::{Frame, SCRATCH, WORK_DIR, scratch, work_mount};
use crate::draft::Draft;
use crate::error::RenderError;
use crate::labels::Component;
use crate::meta;
use crate::pod::job_annotations;
use crate::settings::Settings;
use crate::shape::Shape;
use crate::values;

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
    let wanted = etcd.spec.backup.snapshot_compaction.as_ref();
    let resources = wanted.and_then(|wanted| wanted.resources.as_ref());
    let frame = Frame {
        metadata: meta::of(
            etcd,
            &draft.names.compaction_job(),
            Component::CompactionJob,
        ),
        component: Component::CompactionJob,
        container: "compact-backup",
        image: &settings.images.restorer,
        pull_policy: draft.pull_policy(),
        args: vec!["compact".to_owned(), format!("--scratch-dir={WORK_DIR}")],
        stores: draft.store.iter().cloned().collect(),
        volumes: vec![scratch(compaction.scratch.as_ref())],
        mounts: vec![work_mount(SCRATCH)],
        resources: Some(values::resources(resources, "600m", "3Gi")),
        deadline: compaction.deadline,
        as_root: draft.runs_as_root(),
        annotations: job_annotations(etcd.spec.annotations.as_ref()),
        pod_labels: BTreeMap::new(),
        service_account: Some(draft.names.service_account()),
        owner: draft.names.etcd,
    };
    Ok(frame.job())
}
