//! The pod of a member.
//!
//! ```text
//! init container  init            mainstay-restorer init: verifies, decides, writes the member's configuration
//! container       etcd            upstream image, etcd --config-file=<what init wrote>
//! container       backup-restore  mainstay-sidecar
//!
//! volumes  <claim>           /var/etcd/data     data directory, and what is kept beside it
//!          etcd-config-file  /var/etcd/config   the ConfigMap
//!          etcd-run          /var/etcd/run      the member's own configuration
//!          certificates, credentials of the store
//! ```

mod etcd;
pub(crate) mod init;
pub(crate) mod probes;
pub(crate) mod security;
mod sidecar;
mod version;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, EnvVar, EnvVarSource, HostAlias,
    ObjectFieldSelector, PodSpec, PodTemplateSpec, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use version::EtcdVersion;

use crate::draft::RenderContext;
use crate::error::RenderError;
use crate::labels::{self, Component};
use crate::tls::SECRET_MODE;

/// The container of etcd.
pub const ETCD_CONTAINER: &str = "etcd";
/// The container of the sidecar.
pub const SIDECAR_CONTAINER: &str = "backup-restore";
/// The init container whose termination message is a verdict.
pub const INIT_CONTAINER: &str = "init";
/// Annotation with the checksum of what a running member would have to be restarted for.
pub const CONFIG_CHECKSUM: &str = "checksum/etcd-configmap";

const DATA_MOUNT: &str = "/var/etcd/data";
const CONFIG_VOLUME: &str = "etcd-config-file";
const CONFIG_MOUNT: &str = "/var/etcd/config";
const RUN_VOLUME: &str = "etcd-run";
const RUN_MOUNT: &str = "/var/etcd/run";
/// The sidecar stores what it has captured (10s), etcd ends, the sidecar sees it end (15s).
const GRACE_SECONDS: i64 = 60;

/// The template of member pods.
pub(crate) fn render_template(
    draft: &RenderContext<'_>,
    checksum: String,
) -> Result<PodTemplateSpec, RenderError> {
    let spec = &draft.etcd.spec;
    let name = draft.names.stateful_set();
    let mut labels = spec.labels.clone();
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
    let placing = spec.scheduling_constraints.as_ref();
    let has_account = draft.has_runtime_components();
    Ok(PodSpec {
        init_containers: Some(init::render_containers(draft)),
        containers: vec![etcd::render_container(draft), sidecar::render_container(draft)?],
        volumes: Some(build_volumes(draft)),
        host_aliases: Some(vec![HostAlias {
            ip: "127.0.0.1".into(),
            hostnames: Some(vec![draft.names.local_host()]),
        }]),
        security_context: Some(security::pod_context(draft.runs_as_root())),
        service_account_name: has_account.then(|| draft.names.service_account()),
        affinity: placing.and_then(|placing| placing.affinity.clone()),
        topology_spread_constraints: placing
            .and_then(|placing| placing.topology_spread_constraints.clone()),
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

/// The volume of the member.
fn data_mount(draft: &RenderContext<'_>) -> VolumeMount {
    volume_mount(draft.names.pvc_template(), DATA_MOUNT)
}

/// Who the pod is.
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

/// Flags by which a client inside the pod trusts etcd and is trusted.
fn build_client_flags(draft: &RenderContext<'_>) -> Vec<String> {
    draft.certificates.client_files().map_or_else(Vec::new, |files| {
        vec![
            format!("--cacert={}", files.ca),
            format!("--cert={}", files.certificate),
            format!("--key={}", files.key),
        ]
    })
}

/// Annotations of the pods of Jobs: those of members, except one that keeps nodes alive.
pub(crate) fn filter_job_annotations(
    given: Option<&BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let mut annotations = given?.clone();
    if annotations.get(SAFE_TO_EVICT).is_some_and(|value| value == "false") {
        annotations.remove(SAFE_TO_EVICT);
    }
    (!annotations.is_empty()).then_some(annotations)
}
