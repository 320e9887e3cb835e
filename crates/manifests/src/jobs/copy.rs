//! The Job of an `EtcdCopyBackupsTask`.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mainstay_crds::EtcdCopyBackupsTask;
use mainstay_crds::copy::WaitForFinalSnapshot;

use super::Frame;
use crate::error::RenderError;
use crate::labels::{self, Component};
use crate::meta;
use crate::names;
use crate::settings::Settings;
use crate::store::{Place, Side, Wiring};
use crate::values;

/// A copy.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CopyJob {
    /// After how long the Job is given up. `None`: never, since a copy may wait for a last snapshot.
    pub deadline: Option<Duration>,
    /// Directory of the node that the secret of a `Local` source names.
    pub source_local_store_root: Option<String>,
    /// Directory of the node that the secret of a `Local` target names.
    pub target_local_store_root: Option<String>,
}

/// Renders the Job.
pub fn copy_job(
    task: &EtcdCopyBackupsTask,
    settings: &Settings,
    copy: &CopyJob,
) -> Result<Job, RenderError> {
    let (Some(owner), Some(namespace)) = (&task.metadata.name, &task.metadata.namespace) else {
        let field = "name or namespace";
        return Err(RenderError::Unnamed { field });
    };
    let name = names::copy_job(owner);
    let wire = |store, side, field: &'static str, root: &Option<String>| {
        let root = root.as_ref().unwrap_or(&settings.local_store_root);
        let place = Place {
            side,
            field,
            local_store_root: root.clone(),
        };
        Wiring::of(store, &place)?.ok_or_else(|| RenderError::Provider {
            field,
            provider: String::new(),
        })
    };
    let target = wire(
        &task.spec.target_store,
        Side::Primary,
        "spec.targetStore",
        &copy.target_local_store_root,
    )?;
    let source = wire(
        &task.spec.source_store,
        Side::Source,
        "spec.sourceStore",
        &copy.source_local_store_root,
    )?;
    let frame = Frame {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            labels: Some(labels::of_object(owner, &name, Component::CopyJob)),
            owner_references: meta::owned_by(task),
            ..ObjectMeta::default()
        },
        component: Component::CopyJob,
        container: "copy-backups",
        image: &settings.images.restorer,
        pull_policy: settings
            .image_pull_policy
            .map(|policy| policy.name().to_owned()),
        args: args(task),
        stores: vec![target, source],
        volumes: Vec::new(),
        mounts: Vec::new(),
        resources: None,
        deadline: copy.deadline,
        as_root: false,
        annotations: None,
        pod_labels: task.spec.pod_labels.clone().unwrap_or_default(),
        service_account: None,
        owner,
    };
    Ok(frame.job())
}

fn args(task: &EtcdCopyBackupsTask) -> Vec<String> {
    let spec = &task.spec;
    let mut args = vec!["copy".to_owned()];
    args.extend(
        spec.max_backup_age
            .map(|days| format!("--max-backup-age={days}")),
    );
    args.extend(
        spec.max_backups
            .map(|count| format!("--max-backups-to-copy={count}")),
    );
    if let Some(WaitForFinalSnapshot { enabled, timeout }) = &spec.wait_for_final_snapshot {
        args.push(format!("--wait-for-final-snapshot={enabled}"));
        let limit = timeout
            .as_ref()
            .and_then(|timeout| timeout.limit().ok().flatten());
        args.extend(limit.map(|limit| {
            let limit = values::flag_duration(limit);
            format!("--wait-for-final-snapshot-timeout={limit}")
        }));
    }
    args
}
