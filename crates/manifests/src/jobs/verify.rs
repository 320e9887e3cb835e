//! The Job that reads a backup and checks it, without writing anything.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use mainstay_crds::Etcd;

use super::Frame;
use super::restore::Target;
use crate::draft::Draft;
use crate::error::RenderError;
use crate::labels::Component;
use crate::settings::Settings;
use crate::shape::Shape;
use crate::values;

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VerifyJob {
    /// Which state has to be restorable.
    pub target: Target,
    /// Whether every object is read, or those of the state only.
    pub all: bool,
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
}

/// Renders the Job.
pub fn verify_job(
    etcd: &Etcd,
    settings: &Settings,
    shape: &Shape,
    verify: &VerifyJob,
) -> Result<Job, RenderError> {
    let draft = Draft::new(etcd, settings, shape)?;
    let name = draft.names.verify_job();
    let mut args = vec!["verify".to_owned()];
    args.extend(verify.target.flags());
    if verify.all {
        args.push("--all".to_owned());
    }
    let wanted = draft.etcd.spec.backup.snapshot_compaction.as_ref();
    let resources = wanted.and_then(|wanted| wanted.resources.as_ref());
    let frame = Frame {
        container: "verify-backup",
        args,
        resources: Some(values::resources(resources, "100m", "256Mi")),
        deadline: verify.deadline,
        ..Frame::of_etcd(&draft, Component::VerifyJob, &name)
    };
    Ok(frame.job())
}
