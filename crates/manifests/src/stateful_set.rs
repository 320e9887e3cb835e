//! The `StatefulSet`. It creates pods and volumes; the controller alone decides when a pod is replaced (`OnDelete`).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
    StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::context::RenderContext;
use crate::error::RenderError;
use crate::labels::{self, Component};
use crate::meta;
use crate::pod;

/// Size of a volume if the Etcd names none.
pub const DEFAULT_PVC_SIZE: &str = "16Gi";

/// Selector, service name, pod management policy and claim template are immutable, so they stay what etcd-druid
/// created.
pub(crate) fn render_stateful_set(
    draft: &RenderContext<'_>,
    config_checksum: String,
) -> Result<StatefulSet, RenderError> {
    let has_runtime = draft.has_runtime_components();
    let replicas = if has_runtime { draft.input.replicas } else { 0 };
    Ok(StatefulSet {
        metadata: meta::build_metadata(
            draft.etcd,
            &draft.names.stateful_set(),
            Component::StatefulSet,
        ),
        spec: Some(StatefulSetSpec {
            replicas: Some(i32::try_from(replicas).unwrap_or(i32::MAX)),
            selector: labels::stateful_set_selector(&draft.names),
            service_name: has_runtime.then(|| draft.names.peer_service()),
            // `OrderedReady` would never start member 1 while member 0 has no quorum.
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".into()),
                rolling_update: None,
            }),
            template: pod::render_template(draft, config_checksum)?,
            volume_claim_templates: Some(vec![render_pvc_template(draft)]),
            // Data outlives a scale-in, a hibernation and the StatefulSet.
            persistent_volume_claim_retention_policy: Some(
                StatefulSetPersistentVolumeClaimRetentionPolicy {
                    when_deleted: Some("Retain".into()),
                    when_scaled: Some("Retain".into()),
                },
            ),
            ..StatefulSetSpec::default()
        }),
        status: None,
    })
}

fn render_pvc_template(draft: &RenderContext<'_>) -> PersistentVolumeClaim {
    let spec = &draft.etcd.spec;
    let size = draft
        .input
        .pvc_size
        .as_ref()
        .or(spec.storage_capacity.as_ref());
    let size = size
        .cloned()
        .unwrap_or_else(|| Quantity(DEFAULT_PVC_SIZE.into()));
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(draft.names.pvc_template().to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: spec.storage_class.clone().filter(|class| !class.is_empty()),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size)])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
