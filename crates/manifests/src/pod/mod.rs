//! The pod of a member.
//!
//! ```text
//! init container  init            mainstay-restorer init: verifies the data, writes the member's configuration
//! container       etcd            upstream image, etcd --config-file=<written by init>
//! container       backup-restore  mainstay-sidecar
//!
//! volumes  <PVC>             /var/etcd/data     data directory and previous data directories
//!          etcd-config-file  /var/etcd/config   the ConfigMap
//!          etcd-run          /var/etcd/run      the configuration of this member
//!          certificates, credentials of the store
//! ```

mod etcd;
pub(crate) mod init;
pub(crate) mod probes;
pub(crate) mod security;
mod sidecar;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, EnvVar, EnvVarSource, HostAlias,
    ObjectFieldSelector, PodSpec, PodTemplateSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::{self, Component};
use crate::tls::SECRET_MODE;

/// Name of the etcd container.
pub const ETCD_CONTAINER: &str = "etcd";
/// Name of the sidecar container.
pub const SIDECAR_CONTAINER: &str = "backup-restore";
/// Name of the init container whose termination message is a verdict.
pub const INIT_CONTAINER: &str = "init";
/// Annotation with the checksum of the configuration whose change requires a restart.
pub const CONFIG_CHECKSUM: &str = "checksum/etcd-configmap";

const DATA_MOUNT: &str = "/var/etcd/data";
const CONFIG_VOLUME: &str = "etcd-config-file";
const CONFIG_MOUNT: &str = "/var/etcd/config";
const RUN_VOLUME: &str = "etcd-run";
const RUN_MOUNT: &str = "/var/etcd/run";
/// The sidecar stores the captured changes (10 s), etcd stops, the sidecar waits until etcd has stopped (15 s).
const GRACE_SECONDS: i64 = 60;

/// The pod template of members.
pub(crate) fn render_template(
    draft: &RenderContext<'_>,
    checksum: String,
) -> Result<PodTemplateSpec, RenderError> {
    let spec = &draft.etcd.spec;
    let name = draft.names.stateful_set();
    let mut labels = spec.labels.clone();
    // The labels of the controller win: Services and the PDB select on them.
    labels.extend(labels::for_object(
        draft.names.etcd,
        &name,
        Component::StatefulSet,
    ));
    let mut annotations = spec.annotations.clone().unwrap_or_default();
    annotations.extend(draft.input.pod_annotations.clone());
    annotations.insert(CONFIG_CHECKSUM.into(), checksum);
    Ok(PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(render_pod_spec(draft)?),
    })
}

fn render_pod_spec(draft: &RenderContext<'_>) -> Result<PodSpec, RenderError> {
    let spec = &draft.etcd.spec;
    let scheduling = spec.scheduling_constraints.as_ref();
    let has_account = draft.has_runtime_components();
    Ok(PodSpec {
        init_containers: Some(init::render_containers(draft)),
        containers: vec![
            etcd::render_container(draft),
            sidecar::render_container(draft)?,
        ],
        volumes: Some(build_volumes(draft)),
        host_aliases: Some(vec![HostAlias {
            // Certificates contain this name, so clients inside the pod can verify etcd on localhost.
            ip: "127.0.0.1".into(),
            hostnames: Some(vec![draft.names.local_host()]),
        }]),
        security_context: Some(security::pod_context(draft.runs_as_root())),
        image_pull_secrets: draft.settings.pull_secrets(),
        service_account_name: has_account.then(|| draft.names.service_account()),
        affinity: scheduling.and_then(|scheduling| scheduling.affinity.clone()),
        topology_spread_constraints: scheduling
            .and_then(|scheduling| scheduling.topology_spread_constraints.clone()),
        tolerations: scheduling.and_then(|scheduling| scheduling.tolerations.clone()),
        priority_class_name: spec
            .priority_class_name
            .clone()
            .filter(|name| !name.is_empty()),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        ..PodSpec::default()
    })
}

fn build_volumes(draft: &RenderContext<'_>) -> Vec<Volume> {
    let mut volumes = vec![
        Volume {
            name: CONFIG_VOLUME.into(),
            config_map: Some(ConfigMapVolumeSource {
                name: draft.names.config_map(),
                default_mode: Some(SECRET_MODE),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            // `init` writes the configuration here, because the root file system is read-only.
            name: RUN_VOLUME.into(),
            empty_dir: Some(EmptyDirVolumeSource {
                size_limit: Some(Quantity("1Mi".into())),
                ..EmptyDirVolumeSource::default()
            }),
            ..Volume::default()
        },
    ];
    volumes.extend(draft.certificates.volumes());
    volumes.extend(draft.store.iter().flat_map(|store| store.volumes.clone()));
    volumes
}

fn volume_mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        ..VolumeMount::default()
    }
}

fn into_read_only(mount: VolumeMount) -> VolumeMount {
    VolumeMount {
        read_only: Some(true),
        ..mount
    }
}

fn data_mount(draft: &RenderContext<'_>) -> VolumeMount {
    volume_mount(draft.names.pvc_template(), DATA_MOUNT)
}

/// Variables with the name and the namespace of the pod.
pub(crate) fn pod_identity_env() -> Vec<EnvVar> {
    let field = |name: &str, path: &str| EnvVar {
        name: name.into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.into(),
                ..ObjectFieldSelector::default()
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    };
    vec![
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
    ]
}

/// TLS flags of etcd clients inside the pod.
fn build_client_flags(draft: &RenderContext<'_>) -> Vec<String> {
    draft
        .certificates
        .client_files()
        .map_or_else(Vec::new, |files| {
            vec![
                format!("--cacert={}", files.ca),
                format!("--cert={}", files.certificate),
                format!("--key={}", files.key),
            ]
        })
}

/// Annotations of Job pods: those of the members, except `safe-to-evict: "false"`, which would block the
/// scale-down of nodes.
pub(crate) fn filter_job_annotations(
    given: Option<&BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let mut annotations = given?.clone();
    if annotations
        .get(SAFE_TO_EVICT)
        .is_some_and(|value| value == "false")
    {
        annotations.remove(SAFE_TO_EVICT);
    }
    (!annotations.is_empty()).then_some(annotations)
}
