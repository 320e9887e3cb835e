//! Jobs of an Etcd; all of them run `mainstay-restorer`.
//!
//! | Job | volume | name |
//! | --- | --- | --- |
//! | restore, set aside | the volume of a member | `<etcd>-restore-<ordinal>` |
//! | compaction | a scratch volume | `<etcd>-compactor` |
//! | restore drill | a scratch volume | `<etcd>-restore-drill` |
//! | verification | none | `<etcd>-verify` |
//! | copy | none | `<task>-worker` |
//!
//! **Invariants**: Kubernetes never retries a Job, because the controller must read the verdict in the termination message
//! first. No member selector matches the labels of Job pods.

mod compaction;
mod copy;
mod drill;
mod restore;
mod verify;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, LocalObjectReference, PodSpec, PodTemplateSpec,
    ResourceRequirements, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use compaction::{CompactionJob, render_compaction_job};
pub use copy::{CopyJob, render_copy_job};
pub use drill::{DrillJob, render_drill_job};
pub use restore::{
    RestoreJob, RestorePoint, RevisionIncrement, SetAsideJob, render_restore_job,
    render_set_aside_job,
};
pub use verify::{VerifyJob, render_verify_job};

use crate::context::RenderContext;
use crate::labels::{self, Component};
use crate::meta;
use crate::pod::init::{RESTORER, TERMINATION_LOG, render_chown_container};
use crate::pod::{filter_job_annotations, security};
use crate::store::StoreAccess;
use crate::values;

/// Labels that gardener network policies require to reach a store.
const NETWORK_LABELS: [&str; 3] = [
    "networking.gardener.cloud/to-dns",
    "networking.gardener.cloud/to-private-networks",
    "networking.gardener.cloud/to-public-networks",
];
/// Volume for temporary data of a Job.
const SCRATCH_VOLUME: &str = "etcd-workspace-dir";
/// Working directory of a Job, the same path as in members.
const WORK_DIR: &str = "/var/etcd/data";
/// Time to abort a running upload cleanly.
const GRACE_SECONDS: i64 = 60;

/// The common parts of all Jobs.
struct JobBuilder<'a> {
    metadata: ObjectMeta,
    component: Component,
    container_name: &'static str,
    image: &'a str,
    pull_policy: Option<String>,
    pull_secrets: Option<Vec<LocalObjectReference>>,
    args: Vec<String>,
    stores: Vec<StoreAccess>,
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    resources: Option<ResourceRequirements>,
    deadline: Option<Duration>,
    run_as_root: bool,
    annotations: Option<BTreeMap<String, String>>,
    /// Additional labels of the pod; the labels of the Job win.
    pod_labels: BTreeMap<String, String>,
    /// `ServiceAccount`; `None` if the Job never calls the API server.
    service_account: Option<String>,
    owner: &'a str,
}

impl<'a> JobBuilder<'a> {
    /// A Job of an Etcd without volumes.
    fn for_etcd(draft: &'a RenderContext<'_>, component: Component, name: &str) -> Self {
        Self {
            metadata: meta::build_metadata(draft.etcd, name, component),
            component,
            container_name: "",
            image: &draft.settings.images.restorer,
            pull_policy: draft.pull_policy(),
            pull_secrets: draft.settings.pull_secrets(),
            args: Vec::new(),
            stores: draft.store.iter().cloned().collect(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            resources: None,
            deadline: None,
            run_as_root: draft.runs_as_root(),
            annotations: filter_job_annotations(draft.etcd.spec.annotations.as_ref()),
            pod_labels: BTreeMap::new(),
            service_account: Some(draft.names.service_account()),
            owner: draft.names.etcd,
        }
    }

    /// The same with a scratch volume and the resources for compaction.
    fn with_scratch_volume(
        draft: &'a RenderContext<'_>,
        component: Component,
        name: &str,
        size: Option<&Quantity>,
    ) -> Self {
        let compaction = draft.etcd.spec.backup.snapshot_compaction.as_ref();
        let resources = compaction.and_then(|compaction| compaction.resources.as_ref());
        Self {
            volumes: vec![build_scratch_volume(size)],
            mounts: vec![build_work_mount(SCRATCH_VOLUME)],
            resources: Some(values::resources_or_default(resources, "600m", "3Gi")),
            ..Self::for_etcd(draft, component, name)
        }
    }

    fn build(self) -> Job {
        let name = self.metadata.name.clone().unwrap_or_default();
        let mut pod_labels = self.pod_labels.clone();
        pod_labels.extend(labels::for_job_pod(self.owner, &name, self.component));
        let mut metadata = self.metadata.clone();
        for label in NETWORK_LABELS {
            let allowed = || (label.to_owned(), "allowed".to_owned());
            pod_labels.extend([allowed()]);
            metadata.labels.get_or_insert_default().extend([allowed()]);
        }
        let deadline = self.deadline.map(|deadline| {
            // The API server requires a positive deadline.
            i64::try_from(deadline.as_secs().max(1)).unwrap_or(i64::MAX)
        });
        Job {
            metadata,
            spec: Some(JobSpec {
                completions: Some(1),
                parallelism: Some(1),
                // No retry: the controller reads the verdict first.
                backoff_limit: Some(0),
                active_deadline_seconds: deadline,
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(pod_labels),
                        annotations: self.annotations.clone(),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(self.build_pod_spec(deadline)),
                },
                ..JobSpec::default()
            }),
            status: None,
        }
    }

    fn build_pod_spec(self, deadline: Option<i64>) -> PodSpec {
        let mut args = self.args;
        args.push(format!("--termination-message-path={TERMINATION_LOG}"));
        let (mut volumes, mut mounts, mut env) = (self.volumes, self.mounts, Vec::new());
        let mut init_containers = Vec::new();
        for store in self.stores {
            if !self.run_as_root {
                let chown = render_chown_container(self.image, self.pull_policy.clone(), &store);
                init_containers.extend(chown.filter(|_| init_containers.is_empty()));
            }
            args.extend(store.flags);
            // Two `Local` stores can be the same directory, and a path can be mounted only once.
            let is_new = |mount: &VolumeMount| {
                mounts
                    .iter()
                    .all(|m: &VolumeMount| m.mount_path != mount.mount_path)
            };
            let new: Vec<VolumeMount> = store.mounts.into_iter().filter(is_new).collect();
            let used = |volume: &Volume| new.iter().any(|mount| mount.name == volume.name);
            volumes.extend(store.volumes.into_iter().filter(used));
            mounts.extend(new);
            for variable in store.env {
                if !env.contains(&variable) {
                    env.push(variable);
                }
            }
        }
        PodSpec {
            restart_policy: Some("Never".into()),
            init_containers: (!init_containers.is_empty()).then_some(init_containers),
            containers: vec![Container {
                name: self.container_name.into(),
                image: Some(self.image.to_owned()),
                image_pull_policy: self.pull_policy,
                command: Some(vec![RESTORER.into()]),
                args: Some(args),
                env: (!env.is_empty()).then_some(env),
                resources: self.resources,
                security_context: Some(security::container_context()),
                // If the program exits without a verdict, the end of its log becomes the message.
                termination_message_policy: Some("FallbackToLogsOnError".into()),
                volume_mounts: Some(mounts),
                ..Container::default()
            }],
            volumes: Some(volumes),
            security_context: Some(security::pod_context(self.run_as_root)),
            // A Job without a ServiceAccount never calls the API server.
            automount_service_account_token: self.service_account.is_none().then_some(false),
            service_account_name: self.service_account,
            image_pull_secrets: self.pull_secrets,
            active_deadline_seconds: deadline,
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            ..PodSpec::default()
        }
    }
}

/// A volume that is deleted with the pod.
fn build_scratch_volume(size: Option<&Quantity>) -> Volume {
    Volume {
        name: SCRATCH_VOLUME.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: size.cloned(),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn build_work_mount(volume: &str) -> VolumeMount {
    VolumeMount {
        name: volume.into(),
        mount_path: WORK_DIR.into(),
        ..VolumeMount::default()
    }
}
