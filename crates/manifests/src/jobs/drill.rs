//! The Job that rehearses a restore: into a scratch volume, without an etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use steward_crds::Etcd;

use super::restore::Target;
use super::{Frame, SCRATCH, WORK_DIR, scratch, work_mount};
use crate::draft::Draft;
use crate::error::RenderError;
use crate::labels::Component;
use crate::meta;
use crate::pod::job_annotations;
use crate::settings::Settings;
use crate::shape::Shape;
use crate::values;

/// A rehearsal.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct DrillJob {
    /// Which state is restored.
    pub target: Target,
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
    let wanted = etcd.spec.backup.snapshot_compaction.as_ref();
    let resources = wanted.and_then(|wanted| wanted.resources.as_ref());
    let mut args = vec![
        "restore".to_owned(),
        format!("--data-dir={WORK_DIR}/drill.etcd"),
    ];
    args.extend(drill.target.flags());
    let frame = Frame {
        metadata: meta::of(etcd, &draft.names.drill_job(), Component::DrillJob),
        component: Component::DrillJob,
        container: "restore-drill",
        image: &settings.images.restorer,
        pull_policy: draft.pull_policy(),
        args,
        stores: draft.store.iter().cloned().collect(),
        volumes: vec![scratch(drill.scratch.as_ref())],
        mounts: vec![work_mount(SCRATCH)],
        resources: Some(values::resources(resources, "600m", "3Gi")),
        deadline: drill.deadline,
        as_root: draft.runs_as_root(),
        annotations: job_annotations(etcd.spec.annotations.as_ref()),
        pod_labels: BTreeMap::new(),
        service_account: Some(draft.names.service_account()),
        owner: draft.names.etcd,
    };
    Ok(frame.job())
}
