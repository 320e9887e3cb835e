//! Jobs around an etcd, all of them runs of `mainstay-restorer`.
//!
//! | Job | on | name |
//! | --- | --- | --- |
//! | restore, set aside | the volume of a member | `<etcd>-restore-<ordinal>` |
//! | compaction | a scratch volume | `<etcd>-compactor` |
//! | drill | a scratch volume | `<etcd>-restore-drill` |
//! | verification | nothing | `<etcd>-verify` |
//! | copy | nothing | `<task>-worker` |
//!
//! **Holds**: a Job runs once and is never retried by Kubernetes, since whoever launched it has to look at the verdict
//! in its termination message first. Its pods have labels no selector of members matches.

mod compaction;
mod copy;
mod drill;
mod restore;
mod verify;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, PodSpec, PodTemplateSpec, ResourceRequirements, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use compaction::{CompactionJob, compaction_job};
pub use copy::{CopyJob, copy_job};
pub use drill::{DrillJob, drill_job};
pub use restore::{Bump, RestoreJob, SetAsideJob, Target, restore_job, set_aside_job};
pub use verify::{VerifyJob, verify_job};

use crate::draft::Draft;
use crate::labels::{self, Component};
use crate::meta;
use crate::pod::init::{RESTORER, TERMINATION_LOG, own_container};
use crate::pod::{job_annotations, security};
use crate::store::Wiring;
use crate::values;

/// What lets the pods of Jobs reach a store where networks are closed by default.
const NETWORK_LABELS: [&str; 3] = [
    "networking.gardener.cloud/to-dns",
    "networking.gardener.cloud/to-private-networks",
    "networking.gardener.cloud/to-public-networks",
];
/// The volume for what a Job needs while it runs.
const SCRATCH: &str = "etcd-workspace-dir";
/// Where a Job works, as members do.
const WORK_DIR: &str = "/var/etcd/data";
/// Time for an upload that is under way to be given up in order.
const GRACE_SECONDS: i64 = 60;

/// What all Jobs have and each fills in its own way.
struct Frame<'a> {
    metadata: ObjectMeta,
    component: Component,
    container: &'static str,
    image: &'a str,
    pull_policy: Option<String>,
    args: Vec<String>,
    stores: Vec<Wiring>,
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    resources: Option<ResourceRequirements>,
    deadline: Option<Duration>,
    as_root: bool,
    annotations: Option<BTreeMap<String, String>>,
    /// More labels of the pod; those of the Job win.
    pod_labels: BTreeMap<String, String>,
    /// The account; `None` for one that never talks to the API server.
    service_account: Option<String>,
    owner: &'a str,
}

impl<'a> Frame<'a> {
    /// A Job of an Etcd, on nothing yet.
    fn of_etcd(draft: &'a Draft<'_>, component: Component, name: &str) -> Self {
        Self {
            metadata: meta::of(draft.etcd, name, component),
            component,
            container: "",
            image: &draft.settings.images.restorer,
            pull_policy: draft.pull_policy(),
            args: Vec::new(),
            stores: draft.store.iter().cloned().collect(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            resources: None,
            deadline: None,
            as_root: draft.runs_as_root(),
            annotations: job_annotations(draft.etcd.spec.annotations.as_ref()),
            pod_labels: BTreeMap::new(),
            service_account: Some(draft.names.service_account()),
            owner: draft.names.etcd,
        }
    }

    /// The same in a scratch volume, with the resources the Etcd has for such work.
    fn in_scratch(
        draft: &'a Draft<'_>,
        component: Component,
        name: &str,
        size: Option<&Quantity>,
    ) -> Self {
        let wanted = draft.etcd.spec.backup.snapshot_compaction.as_ref();
        let resources = wanted.and_then(|wanted| wanted.resources.as_ref());
        Self {
            volumes: vec![scratch(size)],
            mounts: vec![work_mount(SCRATCH)],
            resources: Some(values::resources(resources, "600m", "3Gi")),
            ..Self::of_etcd(draft, component, name)
        }
    }

    fn job(self) -> Job {
        let name = self.metadata.name.clone().unwrap_or_default();
        let mut pod_labels = self.pod_labels.clone();
        pod_labels.extend(labels::of_job_pod(self.owner, &name, self.component));
        let mut metadata = self.metadata.clone();
        for label in NETWORK_LABELS {
            let allowed = || (label.to_owned(), "allowed".to_owned());
            pod_labels.extend([allowed()]);
            metadata.labels.get_or_insert_default().extend([allowed()]);
        }
        let deadline = self.deadline.map(|deadline| {
            // Less than a second is no deadline.
            i64::try_from(deadline.as_secs().max(1)).unwrap_or(i64::MAX)
        });
        Job {
            metadata,
            spec: Some(JobSpec {
                completions: Some(1),
                parallelism: Some(1),
                backoff_limit: Some(0),
                active_deadline_seconds: deadline,
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(pod_labels),
                        annotations: self.annotations.clone(),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(self.pod(deadline)),
                },
                ..JobSpec::default()
            }),
            status: None,
        }
    }

    fn pod(self, deadline: Option<i64>) -> PodSpec {
        let mut args = self.args;
        args.push(format!("--termination-message-path={TERMINATION_LOG}"));
        let (mut volumes, mut mounts, mut env) = (self.volumes, self.mounts, Vec::new());
        let mut init_containers = Vec::new();
        for store in self.stores {
            if !self.as_root {
                let own = own_container(self.image, self.pull_policy.clone(), &store);
                init_containers.extend(own.filter(|_| init_containers.is_empty()));
            }
            args.extend(store.flags);
            // Two stores of one node may be the same directory.
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
                name: self.container.into(),
                image: Some(self.image.to_owned()),
                image_pull_policy: self.pull_policy,
                command: Some(vec![RESTORER.into()]),
                args: Some(args),
                env: (!env.is_empty()).then_some(env),
                resources: self.resources,
                security_context: Some(security::container()),
                termination_message_policy: Some("FallbackToLogsOnError".into()),
                volume_mounts: Some(mounts),
                ..Container::default()
            }],
            volumes: Some(volumes),
            security_context: Some(security::pod(self.as_root)),
            automount_service_account_token: self.service_account.is_none().then_some(false),
            service_account_name: self.service_account,
            active_deadline_seconds: deadline,
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            ..PodSpec::default()
        }
    }
}

/// A volume that is gone with the pod.
fn scratch(size: Option<&Quantity>) -> Volume {
    Volume {
        name: SCRATCH.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: size.cloned(),
            ..EmptyDirVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn work_mount(volume: &str) -> VolumeMount {
    VolumeMount {
        name: volume.into(),
        mount_path: WORK_DIR.into(),
        ..VolumeMount::default()
    }
}
