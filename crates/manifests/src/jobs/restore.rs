//! The Job that restores the data of a member on the volume of the member, while the member does not run.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Volume};
use mainstay_crds::Etcd;

use super::{JobBuilder, build_work_mount};
use crate::config;
use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::names::Ordinal;
use crate::pod::pod_identity_env;
use crate::render_input::RenderInput;
use crate::settings::OperatorSettings;
use crate::store::escape_dollar;
use crate::values;

/// Settings of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreJob {
    /// Member whose volume is restored.
    pub ordinal: Ordinal,
    /// Members of the restored cluster. If it is only this member, the others join later.
    pub members: Vec<Ordinal>,
    /// Cluster token, from which etcd derives the cluster ID. A fresh token keeps old members out.
    pub cluster_token: String,
    /// State to restore.
    pub target: RestorePoint,
    /// Use the data on the volume if it is intact and at least as new as the backup.
    pub prefer_volume: bool,
    /// How much to raise the revision, if data may have been lost.
    pub revision_bump: Option<RevisionIncrement>,
    /// Identifier of the owner of the Job. With the name of its pod it marks the volume, so that a superseded
    /// Job writes nothing.
    pub fence: String,
    /// Deadline of the Job; `None`: no deadline.
    pub deadline: Option<Duration>,
}

/// Settings of a Job that moves the data of a member to a previous data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAsideJob {
    /// Member whose data is set aside.
    pub ordinal: Ordinal,
    /// Identifier of the owner of the Job, as in a restore.
    pub fence: String,
    /// Deadline of the Job; `None`: no deadline.
    pub deadline: Option<Duration>,
}

/// State of a backup to restore.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RestorePoint {
    /// The newest state.
    #[default]
    Newest,
    /// Up to and including a revision.
    Revision(i64),
    /// The revision that was current at a time, in RFC 3339.
    Time(String),
    /// A full snapshot without delta snapshots.
    Full {
        /// Object name of the snapshot.
        name: String,
        /// Last revision of the snapshot.
        revision: i64,
    },
}

/// Number by which the revision is raised. All older revisions are marked as compacted, so that watchers get an
/// error and re-list instead of missing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionIncrement(pub u64);

impl RestorePoint {
    pub(super) fn to_flags(&self) -> Vec<String> {
        match self {
            Self::Newest => Vec::new(),
            Self::Revision(revision) => vec![format!("--to-revision={revision}")],
            Self::Time(time) => vec![format!("--to-time={}", escape_dollar(time))],
            Self::Full { name, revision } => vec![
                format!("--from={}", escape_dollar(name)),
                format!("--to-revision={revision}"),
            ],
        }
    }
}

/// Renders the restore Job. No other pod may use the volume.
pub fn render_restore_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    restore: &RestoreJob,
) -> Result<Job, RenderError> {
    let draft = RenderContext::new(etcd, settings, shape)?;
    let args = build_restore_args(&draft, restore);
    Ok(render_volume_job(
        &draft,
        restore.ordinal,
        "restore",
        args,
        restore.deadline,
    ))
}

/// Renders the Job that sets the data of a member aside, so that the member joins its cluster again. No other
/// pod may use the volume.
pub fn render_set_aside_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    aside: &SetAsideJob,
) -> Result<Job, RenderError> {
    let mut draft = RenderContext::new(etcd, settings, shape)?;
    draft.store = None; // the Job uses the volume only
    let args = vec![
        "set-aside".to_owned(),
        format!("--data-dir={}", config::DATA_DIR),
        format_fence_flag(&aside.fence),
    ];
    let SetAsideJob {
        ordinal, deadline, ..
    } = *aside;
    Ok(render_volume_job(
        &draft,
        ordinal,
        "set-aside",
        args,
        deadline,
    ))
}

/// A Job on the volume of a member, scheduled like the member.
fn render_volume_job(
    draft: &RenderContext<'_>,
    ordinal: Ordinal,
    container_name: &'static str,
    args: Vec<String>,
    deadline: Option<Duration>,
) -> Job {
    let claim = draft.names.pvc_template();
    let name = draft.names.restore_job(ordinal);
    let mut job = JobBuilder {
        container_name,
        args,
        volumes: vec![Volume {
            name: claim.into(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: draft.names.pvc(ordinal),
                read_only: None,
            }),
            ..Volume::default()
        }],
        mounts: vec![build_work_mount(claim)],
        // The resources of etcd: the member does not run during the Job.
        resources: Some(values::resources_or_default(
            draft.etcd.spec.etcd.resources.as_ref(),
            "50m",
            "128Mi",
        )),
        deadline,
        ..JobBuilder::for_etcd(draft, Component::RestoreJob, &name)
    }
    .build();
    apply_member_scheduling(&mut job, draft.etcd);
    job
}

/// The volume may be bound to a zone or node, so the Job gets the affinity and tolerations of the member.
fn apply_member_scheduling(job: &mut Job, etcd: &Etcd) {
    let Some(pod) = job
        .spec
        .as_mut()
        .and_then(|spec| spec.template.spec.as_mut())
    else {
        return;
    };
    let scheduling = etcd.spec.scheduling_constraints.as_ref();
    pod.affinity = scheduling.and_then(|scheduling| scheduling.affinity.clone());
    pod.tolerations = scheduling.and_then(|scheduling| scheduling.tolerations.clone());
    pod.priority_class_name
        .clone_from(&etcd.spec.priority_class_name);
    if let Some(container) = pod.containers.first_mut() {
        container
            .env
            .get_or_insert_default()
            .extend(pod_identity_env());
    }
}

/// The pod name is part of the fence, because two pods of one Job are two writers.
fn format_fence_flag(fence: &str) -> String {
    format!("--fence={}/$(POD_NAME)", escape_dollar(fence))
}

fn build_restore_args(draft: &RenderContext<'_>, restore: &RestoreJob) -> Vec<String> {
    let listed = restore.members.iter().flat_map(|ordinal| {
        let name = draft.names.member(*ordinal);
        let urls = draft.member_peer_urls(*ordinal).into_iter();
        urls.map(move |url| format!("{name}={url}"))
    });
    let mut args = vec![
        "restore".to_owned(),
        format!("--data-dir={}", config::DATA_DIR),
        format!("--name={}", draft.names.member(restore.ordinal)),
        format!("--initial-cluster={}", listed.collect::<Vec<_>>().join(",")),
        format!(
            "--initial-cluster-token={}",
            escape_dollar(&restore.cluster_token)
        ),
        format!(
            "--initial-advertise-peer-urls={}",
            draft.member_peer_urls(restore.ordinal).join(",")
        ),
        format_fence_flag(&restore.fence),
    ];
    args.extend(restore.target.to_flags());
    if restore.prefer_volume {
        args.push(format!("--prefer-data-dir={}", config::DATA_DIR));
    }
    if let Some(RevisionIncrement(by)) = restore.revision_bump {
        args.push(format!("--bump-revision={by}"));
        args.push("--mark-compacted".to_owned());
    }
    args
}
