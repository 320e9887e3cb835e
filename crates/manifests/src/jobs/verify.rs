//! The Job that verifies a backup. It reads the store and writes nothing.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use mainstay_crds::Etcd;

use super::JobBuilder;
use super::restore::RestorePoint;
use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::render_input::RenderInput;
use crate::settings::OperatorSettings;
use crate::values;

/// Settings of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VerifyJob {
    /// State that must be restorable.
    pub target: RestorePoint,
    /// Verify every object, not only those of the target.
    pub all_objects: bool,
    /// Deadline of the Job; `None`: no deadline.
    pub deadline: Option<Duration>,
}

/// Renders the verification Job.
pub fn render_verify_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    verify: &VerifyJob,
) -> Result<Job, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let name = draft.names.verify_job();
    let mut args = vec!["verify".to_owned()];
    args.extend(verify.target.to_flags());
    if verify.all_objects {
        args.push("--all".to_owned());
    }
    let compaction = draft.etcd.spec.backup.snapshot_compaction.as_ref();
    let resources = compaction.and_then(|compaction| compaction.resources.as_ref());
    let frame = JobBuilder {
        container_name: "verify-backup",
        args,
        resources: Some(values::resources_or_default(resources, "100m", "256Mi")),
        deadline: verify.deadline,
        ..JobBuilder::for_etcd(&draft, Component::VerifyJob, &name)
    };
    Ok(frame.build())
}
