//! The Job that restores a member's data on the member's own volume, while no member runs.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Volume};
use mainstay_crds::Etcd;

use super::{JobBuilder, build_work_mount};
use crate::config;
use crate::draft::RenderContext;
use crate::error::RenderError;
use crate::labels::Component;
use crate::names::Ordinal;
use crate::pod::pod_identity_env;
use crate::settings::OperatorSettings;
use crate::shape::RenderInput;
use crate::store::escape_dollar;
use crate::values;

/// A restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreJob {
    /// The member whose volume is restored.
    pub ordinal: Ordinal,
    /// The members of the restored cluster; the others join later when this is the member alone.
    pub members: Vec<Ordinal>,
    /// What the identities of the restored cluster are made of. A fresh one keeps old members out.
    pub cluster_token: String,
    /// Which state.
    pub target: RestorePoint,
    /// Whether what is on the volume is taken when it is sound and at least as new as the backup.
    pub prefer_volume: bool,
    /// How much revisions are raised, when something may have been lost.
    pub revision_bump: Option<RevisionIncrement>,
    /// Whom the Job works for. With the name of its pod it marks the volume, so that one that was overtaken writes nothing.
    pub fence: String,
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
}

/// Old data put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAsideJob {
    /// The member whose data it is.
    pub ordinal: Ordinal,
    /// Whom the Job works for, as in a restore.
    pub fence: String,
    /// After how long the Job is given up.
    pub deadline: Option<Duration>,
}

/// Which state of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RestorePoint {
    /// The newest.
    #[default]
    Newest,
    /// Up to and with a revision.
    Revision(i64),
    /// What was current at a moment, RFC 3339.
    Time(String),
    /// A full snapshot alone, by the name of its object, up to the revision it ends with.
    Full {
        /// The name of the object.
        name: String,
        /// Its last revision.
        revision: i64,
    },
}

/// Revisions are raised and everything before is called compacted, so that watchers notice.
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

/// Renders the Job. The volume has to be free: no pod may use it.
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

/// Renders the Job that puts the data of a member aside, so that it joins its cluster anew. The volume has to be free.
pub fn render_set_aside_job(
    etcd: &Etcd,
    settings: &OperatorSettings,
    shape: &RenderInput,
    aside: &SetAsideJob,
) -> Result<Job, RenderError> {
    let mut draft = RenderContext::new(etcd, settings, shape)?;
    draft.store = None; // nothing is read or written but the volume
    let args = vec![
        "set-aside".to_owned(),
        format!("--data-dir={}", config::DATA_DIR),
        format_fence_flag(&aside.fence),
    ];
    let SetAsideJob {
        ordinal, deadline, ..
    } = *aside;
    Ok(render_volume_job(&draft, ordinal, "set-aside", args, deadline))
}

/// A Job on the volume of a member, which runs where the member would.
fn render_volume_job(
    draft: &RenderContext<'_>,
    ordinal: Ordinal,
    container: &'static str,
    args: Vec<String>,
    deadline: Option<Duration>,
) -> Job {
    let claim = draft.names.pvc_template();
    let name = draft.names.restore_job(ordinal);
    let mut job = JobBuilder {
        container_name: container,
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
        // What etcd would use, which does not run meanwhile.
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

/// A volume can be mounted only where a member may run.
fn apply_member_scheduling(job: &mut Job, etcd: &Etcd) {
    let Some(pod) = job
        .spec
        .as_mut()
        .and_then(|spec| spec.template.spec.as_mut())
    else {
        return;
    };
    let placing = etcd.spec.scheduling_constraints.as_ref();
    pod.affinity = placing.and_then(|placing| placing.affinity.clone());
    pod.priority_class_name
        .clone_from(&etcd.spec.priority_class_name);
    if let Some(container) = pod.containers.first_mut() {
        container.env.get_or_insert_default().extend(pod_identity_env());
    }
}

/// Two pods of one Job are two writers.
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
        format!("--initial-cluster-token={}", escape_dollar(&restore.cluster_token)),
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
