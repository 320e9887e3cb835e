//! The Job of an `EtcdCopyBackupsTask`.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use mainstay_crds::EtcdCopyBackupsTask;
use mainstay_crds::copy::WaitForFinalSnapshot;

use super::JobBuilder;
use crate::error::RenderError;
use crate::labels::{self, Component};
use crate::meta;
use crate::names;
use crate::settings::OperatorSettings;
use crate::store::{StoreAccess, StoreContext, StoreSide};
use crate::values;

/// Settings of a copy Job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CopyJob {
    /// Deadline of the Job. `None`: no deadline, because a copy may wait for the final snapshot.
    pub deadline: Option<Duration>,
    /// Node directory that the secret of a `Local` source names.
    pub source_local_store_root: Option<String>,
    /// Node directory that the secret of a `Local` target names.
    pub target_local_store_root: Option<String>,
}

/// Renders the copy Job.
pub fn render_copy_job(
    task: &EtcdCopyBackupsTask,
    settings: &OperatorSettings,
    copy: &CopyJob,
) -> Result<Job, RenderError> {
    let (Some(owner), Some(namespace)) = (&task.metadata.name, &task.metadata.namespace) else {
        let field = "name or namespace";
        return Err(RenderError::MissingName { field });
    };
    let name = names::copy_job_name(owner);
    let access = |store, side, field: &'static str, root: &Option<String>| {
        let root = root.as_ref().unwrap_or(&settings.local_store_root);
        let place = StoreContext {
            side,
            field,
            local_store_root: root.clone(),
        };
        StoreAccess::from_spec(store, &place)?.ok_or_else(|| RenderError::UnknownProvider {
            field,
            provider: String::new(),
        })
    };
    let target = access(
        &task.spec.target_store,
        StoreSide::Primary,
        "spec.targetStore",
        &copy.target_local_store_root,
    )?;
    let source = access(
        &task.spec.source_store,
        StoreSide::Source,
        "spec.sourceStore",
        &copy.source_local_store_root,
    )?;
    let frame = JobBuilder {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            labels: Some(labels::for_object(owner, &name, Component::CopyJob)),
            owner_references: meta::build_owner_references(task),
            ..ObjectMeta::default()
        },
        component: Component::CopyJob,
        container_name: "copy-backups",
        image: &settings.images.restorer,
        pull_policy: settings
            .image_pull_policy
            .map(|policy| policy.name().to_owned()),
        pull_secrets: settings.pull_secrets(),
        args: build_args(task),
        stores: vec![target, source],
        volumes: Vec::new(),
        mounts: Vec::new(),
        resources: None,
        deadline: copy.deadline,
        run_as_root: false,
        annotations: None,
        pod_labels: task.spec.pod_labels.clone().unwrap_or_default(),
        service_account: None,
        owner,
    };
    Ok(frame.build())
}

fn build_args(task: &EtcdCopyBackupsTask) -> Vec<String> {
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
            let limit = values::format_duration(limit);
            format!("--wait-for-final-snapshot-timeout={limit}")
        }));
    }
    args
}
